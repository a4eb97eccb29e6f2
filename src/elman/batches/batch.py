"""The batch protocol of the training loop, and the batches of language models.

B batch, T time steps.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, Self

from torch import Tensor

from elman.base.errors import ElmanError


class TaskBatch(Protocol):
    """What the training loop asks of a batch."""

    @property
    def num_rows(self) -> int:
        """Number of sequences."""
        ...

    @property
    def num_tokens(self) -> int:
        """Number of tokens read: the unit of speed and progress."""
        ...

    @property
    def num_targets(self) -> int:
        """Number of predictions that the loss is averaged over."""
        ...

    @property
    def fresh(self) -> bool:
        """True to start from the model's initial state, False to go on from the last batch's."""
        ...

    def rows(self, rows: slice) -> Self:
        """Return a batch of some of the sequences."""
        ...

    def to(self, device: str) -> Self:
        """Return a copy on `device`."""
        ...


@dataclass(frozen=True)
class TensorBatch:
    """A batch whose tensors a CUDA graph can read (`nn/graphed.py`): a dataclass of tensors, tuples
    of them, and other such batches."""

    def graph_key(self) -> Hashable | None:
        """Return what batches for the same graph share, all shapes; None if it has no graph."""
        return tuple(tuple(tensor.shape) for tensor in self.tensors())

    def clone(self) -> Self:
        """Return a copy with its own tensors, for a graph to read."""
        return self.mapped(lambda tensor: tensor.clone())

    def copy_(self, other: Self) -> None:
        """Overwrite the tensors with those of a batch with the same `graph_key`."""
        for mine, theirs in zip(self.tensors(), other.tensors(), strict=True):
            mine.copy_(theirs, non_blocking=True)

    def tensors(self) -> list[Tensor]:
        """All tensors, in the order of the fields."""
        found: list[Tensor] = []

        def add(tensor: Tensor) -> Tensor:
            found.append(tensor)
            return tensor

        self.mapped(add)
        return found

    def mapped(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Return a batch with `function` applied to every tensor."""

        def change(part: Any) -> Any:
            if isinstance(part, Tensor):
                return function(part)
            if isinstance(part, TensorBatch):
                return part.mapped(function)
            return tuple(map(change, part)) if isinstance(part, tuple) else part

        return replace(self, **{f.name: change(getattr(self, f.name)) for f in fields(self)})


def bucket_size(size: int, per_octave: int = 4) -> int:
    """Round up to one of few sizes, `per_octave` of them between a power of two and the next."""
    step = max(1, (1 << max(0, (size - 1).bit_length() - 1)) // per_octave)
    return -(-size // step) * step


def padded(tensor: Tensor, *sizes: int, value: int = 0) -> Tensor:
    """Return the tensor with `value` after it along its first axes, up to these sizes."""
    room = tensor.new_full((*sizes, *tensor.shape[len(sizes) :]), value)
    room[tuple(slice(size) for size in tensor.shape[: len(sizes)])] = tensor
    return room


@dataclass(frozen=True)
class Batch(TensorBatch):
    """Tokens and targets of a language model."""

    tokens_BT: Tensor
    """Input, int64."""
    targets_BT: Tensor
    """The tokens to predict, int64, one step ahead of `tokens_BT`."""
    mask_BT: Tensor | None = None
    """True where a target counts; None if all do."""
    fresh: bool = False
    """True to start from the model's initial state, False to go on from the last batch's."""

    @property
    def num_rows(self) -> int:
        return self.tokens_BT.shape[0]

    @property
    def num_tokens(self) -> int:
        return self.targets_BT.numel() if self.mask_BT is None else int(self.mask_BT.sum())

    @property
    def num_targets(self) -> int:
        """As `num_tokens`: each token is predicted once."""
        return self.num_tokens

    def rows(self, rows: slice) -> Batch:
        mask = None if self.mask_BT is None else self.mask_BT[rows]
        return Batch(self.tokens_BT[rows], self.targets_BT[rows], mask, self.fresh)

    def to(self, device: str) -> Batch:
        mask = None if self.mask_BT is None else self.mask_BT.to(device, non_blocking=True)
        return Batch(
            self.tokens_BT.to(device, non_blocking=True),
            self.targets_BT.to(device, non_blocking=True),
            mask,
            self.fresh,
        )

    def graph_key(self) -> Hashable | None:
        """Return the shapes; None with a mask, whose number of targets varies."""
        return super().graph_key() if self.mask_BT is None else None


def check_resumable(state: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raise an error if a stream of batches was saved with other data or settings."""
    for name in state.keys() - settings.keys():
        if isinstance(state[name], int) and state[name] < 0:
            raise ValueError(f"{name} is {state[name]}")
    for name, value in settings.items():
        # States saved before a setting existed do not have it.
        if state.get(name, value) != value:
            raise ElmanError(
                f"cannot resume: {name} was {state[name]} and is now {value}",
                "resume with the same data and the same settings, or start a new run",
            )
