"""Text given a label, P(text | label): surnames of a language, reviews with a rating.

    c = L[label]          a learned vector for each label
    h_0 = tanh(W c + b)          h_i = g(y_{i-1}, h_{i-1}, c)

The decoder is the one of other conditional models. The condition is one vector, so there is no
attention. With a fixed label (`FixedCondition`), it is an ordinary language model.

B batch, T time steps, V vocabulary, E embedding, N labels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from elman.base.config import at_least
from elman.base.errors import UsageError
from elman.models.decoder import Bridge, Condition, Decoder, DecoderConfig, DecoderModel
from elman.models.interface import ConditionalModel, Hidden
from elman.nn.heads import Head
from elman.nn.shapes import Float, Int
from elman.nn.state import State


@dataclass(frozen=True, kw_only=True)
class ConditionalLMConfig:
    """A decoder conditioned on a label."""

    kind: Literal["conditional"] = "conditional"
    labels: tuple[str, ...] = ()
    """The labels."""
    label_size: int = 32
    """Size of label embeddings."""
    decoder: DecoderConfig = field(
        default_factory=lambda: DecoderConfig(attention="none", context="both")
    )
    """The decoder."""

    def __post_init__(self) -> None:
        at_least("model.label_size", self.label_size, 1)
        if self.decoder.attention != "none":
            raise UsageError(
                "attention is not possible: the condition is a single label",
                "set model.decoder.attention to none",
            )

    def build(self, vocab_size: int, *, counts_V: Tensor | None = None) -> ConditionalLM:
        return ConditionalLM(self, vocab_size, counts_V=counts_V)


class ConditionalLM(DecoderModel):
    def __init__(
        self, config: ConditionalLMConfig, vocab_size: int, *, counts_V: Tensor | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.labels = nn.Embedding(max(1, len(config.labels)), config.label_size)
        self.bridge = Bridge(config.decoder, config.label_size)
        self.decoder = Decoder(config.decoder, vocab_size, config.label_size, counts_V=counts_V)

    def condition(self, labels_B: Int[Tensor, "B"]) -> State:
        """The state of the empty text, given label ids."""
        return self._begun(self.labels(labels_B))

    def initial_state(self, batch_size: int) -> State:
        """The state of the empty text without a label: for the mean of all labels."""
        mean_E = self.labels.weight.mean(dim=0)
        return self._begun(mean_E.expand(batch_size, -1))

    def _begun(self, vectors_BE: Tensor) -> State:
        mask_BS = torch.ones(len(vectors_BE), 1, dtype=torch.bool, device=vectors_BE.device)
        layers = self.bridge(vectors_BE)
        return self.decoder.start(Condition(vectors_BE[:, None], mask_BS, vectors_BE, layers))


class FixedCondition:
    """A conditional model with a fixed condition: an ordinary language model."""

    def __init__(self, model: ConditionalModel, state: State) -> None:
        """`state` is the state of the empty text given the condition, one row."""
        self.model = model
        self.state = state

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    @property
    def head(self) -> Head:
        return self.model.head

    def initial_state(self, batch_size: int) -> State:
        return self.state.select([0] * batch_size)

    def hidden(self, tokens_BT: Int[Tensor, "B T"], state: State) -> tuple[Hidden, State]:
        return self.model.hidden(tokens_BT, state)

    def logprobs(
        self, tokens_BT: Int[Tensor, "B T"], targets_BT: Int[Tensor, "B T"], state: State
    ) -> tuple[Float[Tensor, "B T"], State]:
        return self.model.logprobs(tokens_BT, targets_BT, state)

    def step(self, tokens_B: Int[Tensor, "B"], state: State) -> tuple[Float[Tensor, "B V"], State]:
        return self.model.step(tokens_B, state)
