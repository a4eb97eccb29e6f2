"""Text given a label: surnames of a language, reviews of a kind. P(text | label).

    c = L[label]          a learned vector for each label
    h_0 = tanh(W c + b)          h_i = g(y_{i-1}, h_{i-1}, c)

The decoder is that of translators and captioners; what it is given is one vector, so there is
nothing to attend to. Given a label (`Given`), it is a language model like any other.

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


def _decoder() -> DecoderConfig:
    return DecoderConfig(attention="none", context="both")


@dataclass(frozen=True, kw_only=True)
class ConditionalLMConfig:
    """A decoder that is given a label."""

    kind: Literal["conditional"] = "conditional"
    """A decoder that is given a label."""
    labels: tuple[str, ...] = ()
    """The labels there are."""
    label_size: int = 32
    """Numbers per label."""
    decoder: DecoderConfig = field(default_factory=_decoder)
    """The decoder."""

    def __post_init__(self) -> None:
        at_least("model.label_size", self.label_size, 1)
        if self.decoder.attention != "none":
            raise UsageError(
                "a label is one vector: there is nothing to attend to",
                "set model.decoder.attention to none",
            )

    def build(
        self,
        vocab_size: int,
        *,
        counts_V: Tensor | None = None,
        spellings: list[str] | None = None,
        boundary_id: int = 0,
    ) -> ConditionalLM:
        """A fresh model."""
        return ConditionalLM(self, vocab_size, counts_V=counts_V)


class ConditionalLM(DecoderModel):
    """A vector for each label, and a decoder that is given one of them."""

    def __init__(
        self, config: ConditionalLMConfig, vocab_size: int, *, counts_V: Tensor | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.labels = nn.Embedding(max(1, len(config.labels)), config.label_size)
        self.bridge = Bridge(config.decoder, config.label_size)
        self.decoder = Decoder(config.decoder, vocab_size, config.label_size, counts_V=counts_V)

    def condition(self, labels_B: Int[Tensor, "B"]) -> State:
        """The state of the empty text, given labels by their numbers."""
        return self._begun(self.labels(labels_B))

    def initial_state(self, batch_size: int) -> State:
        """The state of the empty text where no label is known: the mean of them all."""
        mean_E = self.labels.weight.mean(dim=0)
        return self._begun(mean_E.expand(batch_size, -1))

    def _begun(self, vectors_BE: Tensor) -> State:
        mask_BS = torch.ones(len(vectors_BE), 1, dtype=torch.bool, device=vectors_BE.device)
        layers = self.bridge(vectors_BE)
        return self.decoder.start(Condition(vectors_BE[:, None], mask_BS, vectors_BE, layers))


class Given:
    """A conditional model that has been given something: a language model like any other."""

    def __init__(self, model: ConditionalModel, state: State) -> None:
        """`state` is one row: what `model` made of the condition."""
        self.model = model
        self.state = state

    @property
    def vocab_size(self) -> int:
        """The number of token ids."""
        return self.model.vocab_size

    @property
    def head(self) -> Head:
        """The output layer."""
        return self.model.head

    def initial_state(self, batch_size: int) -> State:
        """The state of the empty text, given what was given."""
        return self.state.select([0] * batch_size)

    def hidden(self, tokens_BT: Int[Tensor, "B T"], state: State) -> tuple[Hidden, State]:
        """The model's."""
        return self.model.hidden(tokens_BT, state)

    def logprobs(
        self, tokens_BT: Int[Tensor, "B T"], targets_BT: Int[Tensor, "B T"], state: State
    ) -> tuple[Float[Tensor, "B T"], State]:
        """The model's."""
        return self.model.logprobs(tokens_BT, targets_BT, state)

    def step(self, tokens_B: Int[Tensor, "B"], state: State) -> tuple[Float[Tensor, "B V"], State]:
        """The model's."""
        return self.model.step(tokens_B, state)
