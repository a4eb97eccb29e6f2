"""The classifier: one label for a whole text.

    h_t = layers over the embedded tokens, usually bidirectional
    s   = pooled h_t: last state, mean, max or attention
    P(label | text) = softmax(O s)

B batch, T time steps, H hidden, N labels.
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
    dropout_output: float = 0.5
    """Dropout on the pooled vector."""
    init_range: float = 0.1
    """Embeddings start uniform within plus or minus this: small, so that a word seen once has
    little influence.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_dropout_hidden()
        self.check_directions()
        at_least("model.embedding_size", self.embedding_size, 1)
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
    ) -> None:
        """`embedder` is what `embeddings` names."""
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
        self.output = nn.Linear(
            self.pool.output_size + (self.pool_added.output_size if self.pool_added else 0),
            num_labels,
        )

    def encode(
        self,
        tokens_BT: Int[Tensor, "B T"],
        lengths_B: Int[Tensor, "B"],
        wording: Wording | None = None,
    ) -> Float[Tensor, "B P"]:
        """The pooled vector of each text; `wording` is for pre-trained embeddings."""
        layers_LBTD = self.embeddings.read(wording, tokens_BT.shape[1])
        inputs_BTE = self.dropout_input(self.input(tokens_BT))
        inputs_BTE = self.embeddings.beside(inputs_BTE, layers_LBTD, "input")
        hidden_BTH, _ = self.stack(inputs_BTE, None, lengths_B)
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
    ) -> Float[Tensor, "B N"]:
        """The score of every label for each non-empty text."""
        logits_BN = self.output(self.dropout_output(self.encode(tokens_BT, lengths_B, wording)))
        return cast(Tensor, logits_BN.float())
