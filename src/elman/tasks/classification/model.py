"""The classifier: one label for a whole text, or for a pair of texts.

    h_t = layers over the embedded tokens, usually bidirectional
    s   = pooled h_t: last state, mean, max or attention
    P(label | text) = softmax(O s)

Two texts are read by the same layers and compared as in InferSent (Conneau and others, 2017):

    P(label | texts) = softmax(O relu(J [s; s'; |s - s'|; s * s'] + j))

B batch, T time steps, H hidden, P pooled vector, J units that compare, N labels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from elman.base.config import at_least
from elman.base.errors import UsageError
from elman.batches.wording import Wording
from elman.models.embedder import Embedder
from elman.models.embeddings import Embeddings, EmbeddingsConfig
from elman.nn.dropout import Dropout
from elman.nn.inputs import Lookup
from elman.nn.shapes import Float, Int
from elman.nn.stack import DirectionsConfig, Stack, StackConfig
from elman.tasks.classification.batches import LabelledBatch
from elman.tasks.classification.pooling import Pool, Pooling


@dataclass(frozen=True, kw_only=True)
class ClassifierConfig(DirectionsConfig, StackConfig):
    """A classifier of texts."""

    kind: Literal["classifier"] = "classifier"
    hidden_size: int = 128
    embedding_size: int = 100
    """Size of token embeddings."""
    embeddings: EmbeddingsConfig = field(default_factory=EmbeddingsConfig)
    """Pre-trained vectors beside these."""
    pooling: tuple[Pooling, ...] = ("max",)
    """How steps are pooled: last, mean, max, attention, or several of them concatenated."""
    dropout_embedding: float = 0.0
    """Fraction of words whose whole embedding is dropped for a batch."""
    dropout_input: float = 0.3
    """Dropout on the input of the first layer."""
    joint_size: int = 128
    """Pairs of texts: units of the layer that compares their vectors."""
    dropout_output: float = 0.5
    """Dropout on the input of the output layer; for pairs also of the layer before it."""
    init_range: float = 0.1
    """Embeddings start uniform within plus or minus this: small, so that a word seen once has
    little influence.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_dropout_hidden()
        self.check_directions()
        at_least("model.embedding_size", self.embedding_size, 1)
        at_least("model.joint_size", self.joint_size, 1)
        at_least("model.init_range", self.init_range, 0)
        if not self.pooling:
            raise UsageError("model.pooling is empty", "set it to max, for example")

    def build(self, vocab_size: int, num_labels: int, **given: Any) -> Classifier:
        """Build a new model with the arguments of its constructor."""
        return Classifier(self, vocab_size, num_labels, **given)


class Classifier(nn.Module):
    def __init__(
        self,
        config: ClassifierConfig,
        vocab_size: int,
        num_labels: int,
        *,
        embedder: Embedder | None = None,
        pairs: bool = False,
    ) -> None:
        """`embedder` is what `embeddings` names; `pairs`: rows are of two texts each."""
        super().__init__()
        self.config = config
        self.input = Lookup(vocab_size, config.embedding_size, dropout=config.dropout_embedding)
        # Deviation 1 costs 15 points of accuracy on SST-2: rare words are noise.
        nn.init.uniform_(self.input.embedding.weight, -config.init_range, config.init_range)
        self.dropout_input = Dropout(config.dropout_input, locked=config.locked)
        self.embeddings = Embeddings(config.embeddings, embedder)
        self.stack = Stack(
            config,
            config.embedding_size + self.embeddings.size("input"),
            bidirectional=config.bidirectional,
            merge=config.merge,
        )
        concatenated = config.bidirectional and config.merge == "concat"
        self.pool = Pool(config.pooling, self.stack.output_size, bidirectional=concatenated)
        # Pre-trained vectors have no last state: pool them over all words.
        ways: list[Pooling] = ["mean" if way == "last" else way for way in config.pooling]
        added = self.embeddings.size("output")
        self.pool_added = Pool(ways, added, bidirectional=False) if added else None
        self.dropout_output = Dropout(config.dropout_output, locked=False)
        size = self.pool.output_size + (self.pool_added.output_size if self.pool_added else 0)
        self.joint = nn.Linear(4 * size, config.joint_size) if pairs else None
        self.output = nn.Linear(config.joint_size if pairs else size, num_labels)

    def encode(
        self,
        tokens_BT: Int[Tensor, "B T"],
        lengths_B: Int[Tensor, "B"],
        wording: Wording | None = None,
    ) -> Float[Tensor, "B P"]:
        """The pooled vector of each text; `wording` is for pre-trained embeddings."""
        layers_LBTD = self.embeddings.read(wording, tokens_BT.shape[1])
        inputs_BTE = self.input(tokens_BT, self.dropout_input)
        inputs_BTE = self.embeddings.beside(inputs_BTE, layers_LBTD, "input")
        hidden_BTH, _ = self.stack(inputs_BTE, None, lengths_B)
        mask_BT = None
        # Lengths on a GPU are not looked at: that would mean waiting for it.
        if lengths_B.is_cuda or not lengths_B.eq(tokens_BT.shape[1]).all():
            time_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
            mask_BT = time_T < lengths_B.to(time_T.device).unsqueeze(1)
        summary_BP = cast(Tensor, self.pool(hidden_BTH, mask_BT))
        if self.pool_added is None:
            return summary_BP
        nothing_BT0 = hidden_BTH[:, :, :0]
        added_BTD = self.embeddings.beside(nothing_BT0, layers_LBTD, "output")
        return torch.cat([summary_BP, self.pool_added(added_BTD, mask_BT)], dim=1)

    def forward(
        self,
        tokens_BT: Int[Tensor, "B T"],
        lengths_B: Int[Tensor, "B"],
        wording: Wording | None = None,
        second: LabelledBatch | None = None,
    ) -> Float[Tensor, "B N"]:
        """The score of every label for each non-empty text, or pair with the text of `second`."""
        vectors_BP = self.encode(tokens_BT, lengths_B, wording)
        if self.joint is not None:
            assert second is not None, "a classifier of pairs needs two texts"
            others_BP = self.encode(second.tokens_BT, second.read_lengths, second.wording)
            apart_BP, together_BP = (vectors_BP - others_BP).abs(), vectors_BP * others_BP
            features = torch.cat([vectors_BP, others_BP, apart_BP, together_BP], dim=1)
            vectors_BP = torch.relu(self.joint(self.dropout_output(features)))
        return cast(Tensor, self.output(self.dropout_output(vectors_BP)).float())
