"""The tagger: a label for every word of a sentence.

    x_t = [E w_t ; characters(spelling of w_t)]       h_t = layers over x, usually bidirectional
    labels: a softmax over each h_t, or a conditional random field over all of them (Huang, Xu and
    Yu, 2015; Lample and others, 2016; Ma and Hovy, 2016)

During training, words are randomly replaced by the unknown word, rare ones more often (Kiperwasser
and Goldberg, 2016), so that the network learns to use spelling and context for unknown words.
Pre-trained vectors may be concatenated to the x_t, or to the h_t of the last layer
(`models/embeddings.py`).

B batch, T time steps, U word types of the batch, C characters, V vocabulary, N labels, H hidden.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elman.base.config import at_least, check_reads
from elman.batches.wording import Wording
from elman.models.embedder import Embedder
from elman.models.embeddings import Embeddings, EmbeddingsConfig
from elman.nn.character_cnn import CharacterCNN, CharacterCNNConfig
from elman.nn.dropout import Dropout
from elman.nn.shapes import Bool, Float, Int
from elman.nn.stack import CellConfig, DirectionsConfig, Stack, StackConfig
from elman.tasks.tagging.character_rnn import CharacterRNN
from elman.tasks.tagging.crf import LinearChainCRF
from elman.tasks.tagging.vocabulary import UNKNOWN_ID, TagVocabulary
from elman.tasks.task import WordTable
from elman.tokens.kind import UNKNOWN


@dataclass(frozen=True, kw_only=True)
class TaggerConfig(DirectionsConfig, StackConfig):
    """A tagger."""

    kind: Literal["tagger"] = "tagger"
    num_layers: int = 2
    hidden_size: int = 128
    embedding_size: int = 100
    """Size of word embeddings; 0: characters alone."""
    characters: Literal["cnn", "lstm", "cell", "none"] = "cnn"
    """How spellings are encoded: by a convolution, an LSTM in both directions, the model's own cell
    in both directions, or not at all."""
    character_size: int = 100
    """Size of the vector computed from the spelling."""
    character_cnn: CharacterCNNConfig = field(
        default_factory=lambda: CharacterCNNConfig(
            character_size=32, filters=(8, 32, 64, 64), num_highway=0
        )
    )
    """The convolution; its character_size and max_characters apply to recurrent layers too."""
    embeddings: EmbeddingsConfig = field(default_factory=EmbeddingsConfig)
    """Pre-trained vectors beside these."""
    output: Literal["softmax", "crf"] = "softmax"
    """Labels independent of one another, or a conditional random field over the sequence."""
    constrained: bool = True
    """crf, entities: whether sequences that BIOES does not allow are excluded."""
    word_dropout: float = 0.25
    """A word seen n times is replaced by unknown with probability d / (d + n), d being this."""
    dropout_input: float = 0.3
    """Dropout on the input of the first layer."""
    dropout_hidden: float = 0.3
    dropout_output: float = 0.5
    """Dropout on the output of the last layer."""
    init_range: float = 0.1
    """Word embeddings start uniform within plus or minus this: small, so that the spelling of a
    rare word counts more than its embedding.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_dropout_hidden()
        self.check_directions()
        for name in ("word_dropout", "init_range", "embedding_size"):
            at_least(f"model.{name}", getattr(self, name), 0)
        recurrent = self.characters in ("lstm", "cell")
        at_least("model.character_size", self.character_size, 2 if recurrent else 1)
        if self.characters == "none" and not self.embeddings.path:
            at_least("model.embedding_size", self.embedding_size, 1)
        spelling = ["character_size", "character_cnn"]
        check_reads(self, "model", "characters", dict.fromkeys(("cnn", "lstm", "cell"), spelling))
        check_reads(self, "model", "output", {"crf": ["constrained"]})

    def build(self, vocab_size: int, num_labels: int, **given: Any) -> Tagger:
        """Build a new model with the arguments of its constructor."""
        return Tagger(self, vocab_size, num_labels, **given)


class Tagger(nn.Module):
    unknown_rate_V: Tensor

    def __init__(
        self,
        config: TaggerConfig,
        vocab_size: int,
        num_labels: int,
        *,
        counts_V: Tensor | None = None,
        allowed: Tensor | None = None,
        embedder: Embedder | None = None,
    ) -> None:
        """`counts_V` counts words in the training data, `allowed` is for the CRF, `embedder` is
        what `embeddings` names.
        """
        super().__init__()
        self.config = config
        self.input = (
            nn.Embedding(vocab_size, config.embedding_size) if config.embedding_size else None
        )
        if self.input is not None:
            nn.init.uniform_(self.input.weight, -config.init_range, config.init_range)
        self.characters = _make_characters(config)
        self.embeddings = Embeddings(config.embeddings, embedder)
        width = config.embedding_size + (0 if self.characters is None else config.character_size)
        self.dropout_input = Dropout(config.dropout_input, locked=config.locked)
        width += self.embeddings.size("input")
        self.stack = Stack(config, width, bidirectional=config.bidirectional, merge=config.merge)
        self.dropout_output = Dropout(config.dropout_output, locked=config.locked)
        width = self.stack.output_size + self.embeddings.size("output")
        self.output = nn.Linear(width, num_labels)
        self.crf = LinearChainCRF(num_labels, allowed=allowed) if config.output == "crf" else None
        counts_V = torch.ones(vocab_size) if counts_V is None else counts_V.float()
        rate_V = config.word_dropout / (config.word_dropout + counts_V).clamp(min=1e-9)
        self.register_buffer("unknown_rate_V", rate_V, persistent=False)

    def emissions(
        self,
        words_BT: Int[Tensor, "B T"],
        spellings_BT: Int[Tensor, "B T"],
        characters_UC: Int[Tensor, "U C"],
        lengths_B: Int[Tensor, "B"],
        wording: Wording | None = None,
    ) -> Float[Tensor, "B T N"]:
        """The score of every label for every word.

        `spellings_BT` are the rows of `characters_UC` that spell the words; `wording` is for
        pre-trained embeddings.
        """
        parts = []
        if self.input is not None:
            if self.training and self.config.word_dropout:
                dropped_BT = torch.rand(words_BT.shape, device=words_BT.device)
                unknown_BT = dropped_BT < self.unknown_rate_V[words_BT]
                words_BT = words_BT.masked_fill(unknown_BT, UNKNOWN_ID)
            parts.append(self.input(words_BT))
        if self.characters is not None:
            # On a GPU, the longest word's length would have to be waited for.
            longest = characters_UC.shape[1] if characters_UC.is_cuda else None
            vectors_UE = self.characters.spelled(characters_UC, longest)
            parts.append(F.embedding(spellings_BT, vectors_UE))
        if not parts:  # pre-trained vectors alone
            parts.append(self.output.weight.new_zeros(*words_BT.shape, 0))
        inputs_BTE = self.dropout_input(torch.cat(parts, dim=2))
        layers_LBTD = self.embeddings.read(wording, words_BT.shape[1])
        inputs_BTE = self.embeddings.beside(inputs_BTE, layers_LBTD, "input")
        hidden_BTH, _ = self.stack(inputs_BTE, None, lengths_B)
        hidden_BTH = self.embeddings.beside(self.dropout_output(hidden_BTH), layers_LBTD, "output")
        return cast(Tensor, self.output(hidden_BTH).float())

    def losses(
        self,
        emissions_BTN: Float[Tensor, "B T N"],
        labels_BT: Int[Tensor, "B T"],
        mask_BT: Bool[Tensor, "B T"],
    ) -> Float[Tensor, "B"]:
        """-log P of the labels, summed over each sentence."""
        if self.crf is not None:
            return self.crf.losses(emissions_BTN, labels_BT, mask_BT)
        logprobs_BTN = emissions_BTN.log_softmax(2)
        chosen_BT = logprobs_BTN.gather(2, labels_BT.clamp(min=0).unsqueeze(2)).squeeze(2)
        return -(chosen_BT * mask_BT).sum(1)

    def best(
        self, emissions_BTN: Float[Tensor, "B T N"], mask_BT: Bool[Tensor, "B T"]
    ) -> Int[Tensor, "B T"]:
        """The best label sequence of each sentence."""
        if self.crf is not None:
            return self.crf.viterbi(emissions_BTN, mask_BT)[0]
        return emissions_BTN.argmax(2) * mask_BT

    def marginals(
        self, emissions_BTN: Float[Tensor, "B T N"], mask_BT: Bool[Tensor, "B T"]
    ) -> Float[Tensor, "B T N"]:
        """The probability of every label for every word; 0 for padding."""
        if self.crf is not None:
            return self.crf.marginals(emissions_BTN, mask_BT)
        return emissions_BTN.softmax(2) * mask_BT.unsqueeze(2)


def word_tables(model: Tagger, vocabulary: TagVocabulary) -> dict[str, WordTable]:
    """The vectors of words, if the tagger has any of its own."""
    if model.input is None:
        return {}
    return {"words": ((UNKNOWN, *vocabulary.words), model.input.weight)}


def _make_characters(config: TaggerConfig) -> CharacterCNN | CharacterRNN | None:
    if config.characters == "none":
        return None
    if config.characters == "cnn":
        # It has no vocabulary: the batch brings spellings, of unknown words too.
        return CharacterCNN(config.character_cnn, 0, config.character_size)
    layer = StackConfig()
    if config.characters == "cell":
        choices = [*(f.name for f in fields(CellConfig)), "forget_bias"]
        layer = StackConfig(**{name: getattr(config, name) for name in choices})
    return CharacterRNN(config.character_cnn.character_size, config.character_size, layer)
