"""What an output layer is: hidden vectors in, log probabilities over the vocabulary out.

Hidden vectors come with any leading axes, (N, H) or (B, T, H); implementations see them flattened
to (N, H) in the order in which they lie in memory.

B batch, T time steps, N rows, V vocabulary, H hidden.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Protocol, runtime_checkable

from torch import Tensor, nn

from elman.nn.shapes import Float, Int


class Head(nn.Module, ABC):
    """An output layer over `vocab_size` words, reading vectors of `hidden_size`."""

    exact: ClassVar[bool] = True
    """Whether training losses are minus log probabilities, and not those of a sampled task."""

    def __init__(self, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.vocab_size = vocab_size

    def logprobs_all(self, hidden: Float[Tensor, "*batch H"]) -> Float[Tensor, "*batch V"]:
        """The natural log probability of every word: for decoding, where there are few vectors."""
        logprobs_NV = self._logprobs_all(hidden.flatten(0, -2))
        return logprobs_NV.reshape(*hidden.shape[:-1], self.vocab_size)

    def logprobs(
        self, hidden: Float[Tensor, "*batch H"], targets: Int[Tensor, "*batch"]
    ) -> Float[Tensor, "*batch"]:
        """The natural log probability of each vector's target; no (N, V) beyond a chunk."""
        return _in_memory_order(self._logprobs, hidden, targets)

    def losses(
        self, hidden: Float[Tensor, "*batch H"], targets: Int[Tensor, "*batch"]
    ) -> Float[Tensor, "*batch"]:
        """The training loss of each target: minus its log probability, unless sampled."""
        return _in_memory_order(self._losses, hidden, targets)

    @abstractmethod
    def _logprobs_all(self, hidden_NH: Tensor) -> Tensor: ...

    @abstractmethod
    def _logprobs(self, hidden_NH: Tensor, targets_N: Tensor) -> Tensor: ...

    def _losses(self, hidden_NH: Tensor, targets_N: Tensor) -> Tensor:
        return -self._logprobs(hidden_NH, targets_N)


@runtime_checkable
class HeadConfig(Protocol):
    """What the config of an output layer can do."""

    own_width: ClassVar[bool]
    """Whether the layer brings hidden vectors to the width of a tied matrix by itself."""

    @property
    def kind(self) -> str:
        """The name of the output layer in the table."""
        ...

    def build(
        self,
        hidden_size: int,
        vocab_size: int,
        *,
        tied_to: nn.Embedding | None = None,
        counts_V: Tensor | None = None,
    ) -> Head:
        """A fresh output layer.

        `tied_to` is the embedding whose matrix it shares. `counts_V` are the words' frequencies;
        what is learnt from them is kept in buffers, so that a saved model needs them no more.
        """
        ...


def _in_memory_order(
    function: Callable[[Tensor, Tensor], Tensor], hidden: Tensor, targets: Tensor
) -> Tensor:
    """`function` of the flattened arguments; (B, T, H) that views (T, B, H) flattens without a
    copy."""
    if hidden.dim() == 3 and not hidden.is_contiguous():
        swapped = hidden.transpose(0, 1)
        results = function(swapped.flatten(0, 1), targets.t().flatten())
        return results.view(swapped.shape[:2]).t()
    results = function(hidden.flatten(0, -2), targets.flatten())
    return results.view(hidden.shape[:-1])
