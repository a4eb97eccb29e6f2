"""What a language model is: a function from a prefix to a distribution over the vocabulary.

Scoring, decoding, evaluation and serving are written once, against `LanguageModel`; counting
models, networks and mixtures of them all satisfy it. Training needs one thing more, the hidden
vectors before the output layer, so networks satisfy `NeuralLanguageModel`. A `ConditionalModel` is
one that is given something first, and a language model like any other from there on.

B batch, T time steps, V vocabulary, H hidden, O orders of n-grams.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from elman.nn.heads import Head
from elman.nn.shapes import Float, Int
from elman.nn.state import State


@runtime_checkable
class LanguageModel(Protocol):
    """A prefix goes in, kept as a `State`; natural log probabilities of the next token come out."""

    @property
    def vocab_size(self) -> int:
        """The number of token ids, 0 to `vocab_size` - 1."""
        ...

    def initial_state(self, batch_size: int) -> State:
        """The state of the empty prefix, on the model's device."""
        ...

    def step(self, tokens_B: Int[Tensor, "B"], state: State) -> tuple[Float[Tensor, "B V"], State]:
        """Read one token; return the log probability of every possible next one."""
        ...

    def logprobs(
        self, tokens_BT: Int[Tensor, "B T"], targets_BT: Int[Tensor, "B T"], state: State
    ) -> tuple[Float[Tensor, "B T"], State]:
        """Read T tokens; return the log probability that each is followed by its target."""
        ...


@dataclass(frozen=True)
class Hidden:
    """The last layer's vectors: `dropped_BTH` goes to the output layer, `raw_BTH` is before its
    dropout.

    Activation regularisation (Merity and others, 2018) penalises the first's size and the second's
    change.
    """

    dropped_BTH: Float[Tensor, "B T H"]
    raw_BTH: Float[Tensor, "B T H"]
    contexts_BTO: Int[Tensor, "B T O"] | None = None
    """Hashed contexts, where n-grams are connected to the output layer: it reads them as well."""


@runtime_checkable
class NeuralLanguageModel(LanguageModel, Protocol):
    """A language model made of differentiable parts: hidden vectors, then an output layer."""

    @property
    def head(self) -> Head:
        """The output layer."""
        ...

    def hidden(self, tokens_BT: Int[Tensor, "B T"], state: State) -> tuple[Hidden, State]:
        """Read T tokens; return the vector that the output layer sees after each of them."""
        ...


@runtime_checkable
class ConditionalModel(NeuralLanguageModel, Protocol):
    """P(text | X): a language model whose states begin with what they are given."""

    @property
    def condition(self) -> Callable[..., State]:
        """Makes the state of the empty text given X: a sentence and its mask, a picture, a label;
        tensors, batch first."""
        ...
