"""What an output layer is: hidden vectors in, log probabilities over the vocabulary out.

Hidden vectors come with any leading axes, (N, H) or (B, T, H); implementations see them flattened
to (N, H) in the order in which they lie in memory. Output layers with direct connections
(`connect_ngrams`) also read the hashed contexts of each vector.

B batch, T time steps, N rows, V vocabulary, H hidden, O orders of n-grams.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Protocol, runtime_checkable

from torch import Tensor, nn

from elman.base.errors import UsageError
from elman.nn.shapes import Float, Int


class Head(nn.Module, ABC):
    """An output layer over `vocab_size` words, reading vectors of `hidden_size`."""

    exact: ClassVar[bool] = True
    """Whether training losses are minus log probabilities, and not those of a sampled task."""

    def __init__(self, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.vocab_size = vocab_size

    def connect_ngrams(self, num_slots: int) -> None:
        """Add scores of hashed n-grams to the words' own, from a table of so many slots: zeros.

        From then on, the contexts of the vectors are to be given with them, and training losses
        let the targets' n-grams claim their slots.
        """
        raise UsageError(
            "this output layer has no direct connections from n-grams",
            "use model.head.kind=full or sampled",
        )

    def logprobs_all(
        self, hidden: Float[Tensor, "*batch H"], contexts: Int[Tensor, "*batch O"] | None = None
    ) -> Float[Tensor, "*batch V"]:
        """The natural log probability of every word: for decoding, where there are few vectors."""
        logprobs_NV = self._logprobs_all(
            hidden.flatten(0, -2), None if contexts is None else contexts.flatten(0, -2)
        )
        return logprobs_NV.reshape(*hidden.shape[:-1], self.vocab_size)

    def logprobs(
        self,
        hidden: Float[Tensor, "*batch H"],
        targets: Int[Tensor, "*batch"],
        contexts: Int[Tensor, "*batch O"] | None = None,
    ) -> Float[Tensor, "*batch"]:
        """The natural log probability of each vector's target; no (N, V) beyond a chunk."""
        return _in_memory_order(self._logprobs, hidden, targets, contexts)

    def losses(
        self,
        hidden: Float[Tensor, "*batch H"],
        targets: Int[Tensor, "*batch"],
        contexts: Int[Tensor, "*batch O"] | None = None,
    ) -> Float[Tensor, "*batch"]:
        """The training loss of each target: minus its log probability, unless sampled."""
        return _in_memory_order(self._losses, hidden, targets, contexts)

    @abstractmethod
    def _logprobs_all(self, hidden_NH: Tensor, contexts_NO: Tensor | None) -> Tensor: ...

    @abstractmethod
    def _logprobs(
        self, hidden_NH: Tensor, targets_N: Tensor, contexts_NO: Tensor | None
    ) -> Tensor: ...

    def _losses(self, hidden_NH: Tensor, targets_N: Tensor, contexts_NO: Tensor | None) -> Tensor:
        return -self._logprobs(hidden_NH, targets_N, contexts_NO)


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
    function: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    hidden: Tensor,
    targets: Tensor,
    contexts: Tensor | None,
) -> Tensor:
    """`function` of the flattened arguments; (B, T, H) that views (T, B, H) flattens without a
    copy."""
    if hidden.dim() == 3 and not hidden.is_contiguous() and hidden.transpose(0, 1).is_contiguous():
        swapped = None if contexts is None else contexts.transpose(0, 1)
        return _in_memory_order(function, hidden.transpose(0, 1), targets.t(), swapped).t()
    contexts_NO = None if contexts is None else contexts.flatten(0, -2)
    results = function(hidden.flatten(0, -2), targets.flatten(), contexts_NO)
    return results.view(hidden.shape[:-1])
