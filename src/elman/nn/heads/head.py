"""The interface of an output layer: hidden vectors to log probabilities over the vocabulary.

Hidden vectors may have any leading axes, (N, H) or (B, T, H); implementations see them flattened to
(N, H) in memory order. Output layers with direct n-gram connections (`connect_ngrams`) also read
the hashed contexts of each vector.

B batch, T time steps, N rows, V vocabulary, H hidden, O orders of n-grams.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from elman.base.errors import UsageError
from elman.nn.shapes import Float, Int


class Head(nn.Module, ABC):
    """An output layer over `vocab_size` words that reads vectors of `hidden_size`."""

    exact: bool = True
    """Whether training losses are negative log probabilities, not those of a sampled or adversarial
    objective."""

    def __init__(self, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.vocab_size = vocab_size

    def connect_ngrams(self, num_slots: int) -> None:
        """Add scores of hashed n-grams to the words' own, from a table of `num_slots` slots,
        initially 0.

        From then on contexts must be passed with the vectors, and training losses let the targets'
        n-grams claim their slots.
        """
        raise UsageError(
            "this output layer has no direct connections from n-grams",
            "use model.head.kind=full or sampled",
        )

    def logprobs_all(
        self, hidden: Float[Tensor, "*batch H"], contexts: Int[Tensor, "*batch O"] | None = None
    ) -> Float[Tensor, "*batch V"]:
        """Return the log probability of every word; for decoding, where there are few vectors."""
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
        """Return the log probability of each vector's target; (N, V) is only built in chunks."""
        return _in_memory_order(self._logprobs, hidden, targets, contexts)

    def losses(
        self,
        hidden: Float[Tensor, "*batch H"],
        targets: Int[Tensor, "*batch"],
        contexts: Int[Tensor, "*batch O"] | None = None,
    ) -> Float[Tensor, "*batch"]:
        """Return the training loss of each target: its negative log probability unless sampled."""
        return _in_memory_order(self._losses, hidden, targets, contexts)

    def smoothed_losses(
        self,
        hidden_NH: Float[Tensor, "N H"],
        targets_N: Int[Tensor, "N"],
        smoothing: float,
        contexts_NO: Int[Tensor, "N O"] | None = None,
    ) -> tuple[Float[Tensor, "N"], Float[Tensor, "N"]]:
        """Return losses with label smoothing, and the negative log probabilities of the targets."""
        logprobs_NV = self.logprobs_all(hidden_NH, contexts_NO).float()
        chosen_N, means_N = logprobs_NV.gather(1, targets_N[:, None])[:, 0], logprobs_NV.mean(dim=1)
        return -((1 - smoothing) * chosen_N + smoothing * means_N), -chosen_N

    @abstractmethod
    def _logprobs_all(self, hidden_NH: Tensor, contexts_NO: Tensor | None) -> Tensor: ...

    @abstractmethod
    def _logprobs(
        self, hidden_NH: Tensor, targets_N: Tensor, contexts_NO: Tensor | None
    ) -> Tensor: ...

    def _losses(self, hidden_NH: Tensor, targets_N: Tensor, contexts_NO: Tensor | None) -> Tensor:
        return -self._logprobs(hidden_NH, targets_N, contexts_NO)


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The settings of an output layer, with a subclass for each kind."""

    layer: ClassVar[Callable[..., Head]]
    """Makes the layer: its class."""
    own_width: ClassVar[bool] = False
    """Whether the layer itself projects hidden vectors to the width of a tied matrix."""

    kind: str
    unigram_bias: bool = True
    """Whether biases start at the log word frequencies."""

    def build(
        self,
        hidden_size: int,
        vocab_size: int,
        *,
        tied_to: nn.Embedding | None = None,
        counts_V: Tensor | None = None,
    ) -> Head:
        """Build the output layer.

        `tied_to` is the embedding whose matrix it shares. `counts_V` are the word frequencies; what
        is derived from them is saved in buffers, so that a saved model does not need them.
        """
        return type(self).layer(hidden_size, vocab_size, tied_to, counts_V, self)


def _in_memory_order(
    function: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    hidden: Tensor,
    targets: Tensor,
    contexts: Tensor | None,
) -> Tensor:
    """Apply `function` to the flattened arguments; a (B, T, H) view of (T, B, H) is not copied."""
    if hidden.dim() == 3 and not hidden.is_contiguous() and hidden.transpose(0, 1).is_contiguous():
        swapped = None if contexts is None else contexts.transpose(0, 1)
        return _in_memory_order(function, hidden.transpose(0, 1), targets.t(), swapped).t()
    contexts_NO = None if contexts is None else contexts.flatten(0, -2)
    results = function(hidden.flatten(0, -2), targets.flatten(), contexts_NO)
    return results.view(hidden.shape[:-1])
