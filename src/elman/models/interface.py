"""What a language model is: a function from a prefix to a distribution over the vocabulary.

Scoring, decoding, evaluation and serving are written once, against `LanguageModel`; counting
models, networks and mixtures all satisfy it. Training also needs the hidden vectors before the
output layer: networks satisfy `NeuralLanguageModel`, and most derive from `NetworkLM`. A
`ConditionalModel` first receives an input, and is an ordinary language model from there on.

B batch, T time steps, V vocabulary, H hidden, O orders of n-grams.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeGuard, runtime_checkable

import torch
from torch import Tensor, nn

from elman.nn.heads import Head
from elman.nn.shapes import Float, Int
from elman.nn.state import State


@runtime_checkable
class LanguageModel(Protocol):
    """Maps a prefix, kept as a `State`, to log probabilities of the next token."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids, 0 to `vocab_size` - 1."""
        ...

    def initial_state(self, batch_size: int) -> State:
        """Return the state of the empty prefix, on the model's device."""
        ...

    def step(self, tokens_B: Int[Tensor, "B"], state: State) -> tuple[Float[Tensor, "B V"], State]:
        """Read one token; return the log probability of every possible next one."""
        ...

    def logprobs(
        self, tokens_BT: Int[Tensor, "B T"], targets_BT: Int[Tensor, "B T"], state: State
    ) -> tuple[Float[Tensor, "B T"], State]:
        """Read T tokens; return the log probability of each one's target."""
        ...


@dataclass(frozen=True)
class Hidden:
    """The last layer's vectors: `dropped_BTH` enters the output layer, `raw_BTH` is before its
    dropout.

    Activation regularisation (Merity and others, 2018) penalises the size of the first and the
    change of the second.
    """

    dropped_BTH: Float[Tensor, "B T H"]
    raw_BTH: Float[Tensor, "B T H"]
    contexts_BTO: Int[Tensor, "B T O"] | None = None
    """Hashed contexts, if n-grams are connected to the output layer."""


class NeuralLanguageModel(LanguageModel, Protocol):
    """A differentiable language model: hidden vectors, then an output layer."""

    @property
    def head(self) -> Head: ...

    def hidden(self, tokens_BT: Int[Tensor, "B T"], state: State) -> tuple[Hidden, State]:
        """Read T tokens; return the input of the output layer after each."""
        ...


class NetworkLM(nn.Module, ABC):
    """A neural language model as a module; subclasses define `hidden`, language models also
    `initial_state`.
    """

    vocab_size: int
    head: Head

    @abstractmethod
    def hidden(self, tokens_BT: Int[Tensor, "B T"], state: State) -> tuple[Hidden, State]:
        """Read T tokens; return the input of the output layer after each."""

    def logprobs(
        self, tokens_BT: Int[Tensor, "B T"], targets_BT: Int[Tensor, "B T"], state: State
    ) -> tuple[Float[Tensor, "B T"], State]:
        """Read T tokens; return the log probability of each one's target."""
        hidden, state = self.hidden(tokens_BT, state)
        return self.head.logprobs(hidden.dropped_BTH, targets_BT, hidden.contexts_BTO), state

    def step(self, tokens_B: Int[Tensor, "B"], state: State) -> tuple[Float[Tensor, "B V"], State]:
        """Read one token; return the log probability of every possible next one."""
        hidden, state = self.hidden(tokens_B.unsqueeze(1), state)
        contexts_BO = None if hidden.contexts_BTO is None else hidden.contexts_BTO.squeeze(1)
        return self.head.logprobs_all(hidden.dropped_BTH.squeeze(1), contexts_BO), state


def is_neural(model: LanguageModel) -> TypeGuard[NeuralLanguageModel]:
    """Whether the model has hidden vectors and an output layer.

    A function: `isinstance` does not see submodules, such as the output layer, from Python 3.12 on.
    """
    return callable(getattr(model, "hidden", None)) and hasattr(model, "head")


@contextmanager
def reading(model: LanguageModel | nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; training mode is restored afterwards.

    Never hold it across a `yield`: gradient mode belongs to the thread, so the consumer of the
    generator would lose its gradients.
    """
    training = isinstance(model, nn.Module) and model.training
    if isinstance(model, nn.Module) and training:
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        if isinstance(model, nn.Module) and training:
            model.train()


@runtime_checkable
class Adaptive(Protocol):
    """A language model that can keep something of one text for the next: its memory."""

    @property
    def adapts(self) -> bool:
        """Whether it does keep anything: a mixture does if one of its models does."""
        ...

    @property
    def learns(self) -> bool:
        """Whether weights change while it reads, so that a text is read from front to back."""
        ...

    @property
    def warm_up(self) -> int:
        """Tokens to read before those that are scored, beyond what its network needs."""
        ...

    def next_text(self, state: State, last_B: Int[Tensor, "B"]) -> State:
        """The state at the beginning of another text, with the memory kept; `last_B` is the last
        token of the text before, which was predicted but not read."""
        ...

    def memory(self, state: State) -> State:
        """The part of a state that is kept."""
        ...

    def with_memory(self, memory: State) -> LanguageModel:
        """The model whose initial state has this memory, of one row."""
        ...


def adapts(model: object) -> bool:
    """Whether what a model has read of one text changes its predictions in the next."""
    return isinstance(model, Adaptive) and model.adapts


def learns(model: object) -> bool:
    """Whether weights of the model change while it reads."""
    return isinstance(model, Adaptive) and model.learns


def warm_up(model: object) -> int:
    return model.warm_up if isinstance(model, Adaptive) else 0


def next_text(model: LanguageModel, state: State, last_B: Tensor) -> State:
    """The state of any model at the beginning of another text."""
    if isinstance(model, Adaptive):
        return model.next_text(state, last_B)
    return model.initial_state(len(last_B))


def memory_of(model: LanguageModel, state: State) -> State:
    """What a model keeps of the texts so far; empty for most models."""
    return model.memory(state) if isinstance(model, Adaptive) else State({})


def with_memory(model: LanguageModel, memory: State) -> LanguageModel:
    """The model that begins with a memory."""
    return model.with_memory(memory) if isinstance(model, Adaptive) else model


class ConditionalModel(NeuralLanguageModel, Protocol):
    """P(text | X): a language model whose initial state depends on an input X."""

    @property
    def condition(self) -> Callable[..., State]:
        """Makes the state of the empty text given X (a sentence and its mask, a picture, a label),
        as batch-first tensors."""
        ...
