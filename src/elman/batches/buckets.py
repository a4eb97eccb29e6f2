"""Batches for sentence tasks: sequences of similar length together, to compute little padding.

`SentenceBatches` is a stream of batches for training, `batches_by_length` covers data once, for
evaluation. `pad` lays sequences out as a rectangle.

B batch, T time steps.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, Self, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from elman.base.errors import ElmanError
from elman.batches.batch import TensorBatch, bucket_size, check_resumable, padded
from elman.batches.wording import Wording

# Add up to this fraction to each length before sorting, so that batches differ between epochs.
_BLUR = 0.1

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class SentenceBatch(TensorBatch):
    """Padded sequences that are independent of one another: a `TaskBatch` for tasks to extend.

    Fields named `..._B` and `..._BT` have a row for each sequence, others none.
    """

    lengths_B: Tensor
    """Tokens of each sequence, on the CPU: packing needs them there. 0 for a row of padding."""
    steps_B: Tensor | None = None
    """The same on the batch's device, if the batch is for a CUDA graph, and 1 for a row of padding:
    layers and pooling need one step."""
    real_B: Tensor | None = None
    """False for a row of padding; None if there is none."""
    wording: Wording | None = None
    """The words as text, for pre-trained embeddings."""
    fresh: bool = True

    @property
    def num_rows(self) -> int:
        return len(self.lengths_B)

    @cached_property
    def num_tokens(self) -> int:
        return int(sum(self.lengths_B.tolist()))

    @cached_property
    def num_targets(self) -> int:
        """Number of labels: one per sequence, unless a task labels every token."""
        return sum(length > 0 for length in self.lengths_B.tolist())

    @property
    def read_lengths(self) -> Tensor:
        """The steps of each row for layers to read."""
        return self.lengths_B if self.steps_B is None else self.steps_B

    def total(self, values_B: Tensor) -> Tensor:
        """Sum values of the rows, without those of padding."""
        return (values_B if self.real_B is None else values_B.where(self.real_B, 0)).sum()

    def mean(self, values_B: Tensor) -> Tensor:
        """Average values of the rows, without those of padding."""
        if self.real_B is None:
            return values_B.mean()
        return self.total(values_B) / self.total(torch.ones_like(values_B))

    def rows(self, rows: slice) -> Self:
        longest = int(self.lengths_B[rows].max())
        chosen: dict[str, Any] = {}
        for name, value in vars(self).items():
            if value is None:
                continue
            if name.endswith("_B") or isinstance(value, Wording):
                chosen[name] = value[rows]
            elif name.endswith("_BT"):
                chosen[name] = value[rows, :longest]
        return replace(self, **chosen)

    def to(self, device: str) -> Self:
        moved: dict[str, Any] = {
            name: value.to(device, non_blocking=True)
            for name, value in vars(self).items()
            if isinstance(value, Tensor) and name != "lengths_B"
        }
        return replace(self, **moved)

    def bucketed(self) -> Self:
        """Pad rows and steps to one of few shapes, for CUDA graphs; the loss stays the same."""
        num_rows = bucket_size(self.num_rows)
        length = bucket_size(int(self.lengths_B.max()))
        chosen: dict[str, Any] = {}
        for name, value in vars(self).items():
            if name.endswith("_BT"):
                chosen[name] = padded(value, num_rows, length)
            elif name.endswith("_B") and value is not None:
                chosen[name] = padded(value, num_rows)
        lengths_B = chosen["lengths_B"]
        return replace(self, **chosen, steps_B=lengths_B.clamp(min=1), real_B=lengths_B > 0)

    def graph_key(self) -> Hashable | None:
        """Return the shapes; None if lengths or words have to be read on the host."""
        is_static = self.steps_B is not None and self.wording is None
        return super().graph_key() if is_static else None


class SentenceBatches(Generic[T]):
    """An endless, resumable stream of batches: `make` turns the indices of sequences into one.

    Batches hold `batch_size` sequences of similar length. With `equal`, they hold sequences of the
    same length, with about as many tokens as `batch_size` average sequences, so that all updates
    weigh about the same. There is no padding then, and layers that read whole rectangles run 2.5
    times as fast on a CPU. Each epoch has every sequence once, in an order that depends only on the
    seed and the epoch. `epoch` counts completed epochs, `position` the batches handed out in the
    current one.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        make: Callable[[list[int]], T],
        *,
        batch_size: int,
        equal: bool = False,
        seed: int = 0,
    ) -> None:
        if not len(lengths):
            raise ElmanError("there are no sequences to batch", "check the data")
        self.epoch = 0
        self.position = 0
        self.tokens_per_epoch = int(sum(lengths))
        self._make = make
        self._lengths = np.asarray(lengths, np.int64)
        self._batch_size, self._equal, self._seed = batch_size, equal, seed
        self._tokens_per_batch = max(1, -(-self.tokens_per_epoch * batch_size // len(lengths)))
        self._batches = self._cut()

    def __next__(self) -> T:
        batch = self._batches[self.position]
        self.position += 1
        if self.position == len(self._batches):
            self.epoch, self.position = self.epoch + 1, 0
            self._batches = self._cut()
        return self._make(batch)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "position": self.position, **self._settings()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from the state of a stream over the same sequences with the same settings."""
        check_resumable(state, self._settings())
        self.epoch, self.position = int(state["epoch"]), int(state["position"])
        self._batches = self._cut()
        if self.position >= len(self._batches):
            raise ValueError(f"position is {self.position}")

    def _settings(self) -> dict[str, Any]:
        return {
            "num_sequences": len(self._lengths),
            "num_tokens": self.tokens_per_epoch,
            "batch_size": 0 if self._equal else self._batch_size,
            "tokens_per_batch": self._tokens_per_batch if self._equal else 0,
            "equal": self._equal,
            "seed": self._seed,
        }

    def _cut(self) -> list[list[int]]:
        """Return the batches of the current epoch."""
        random = np.random.default_rng((self._seed, self.epoch))
        blur = random.random(len(self._lengths))
        blurred = self._lengths + blur if self._equal else self._lengths * (1 + _BLUR * blur)
        batches: list[list[int]] = [[]]
        before = 0
        for index in np.argsort(blurred, kind="stable").tolist():
            length, size = int(self._lengths[index]), len(batches[-1])
            if self._equal:
                full = length != before or (size + 1) * length > self._tokens_per_batch
            else:
                full = size >= self._batch_size
            if size and full:
                batches.append([])
            before = length
            batches[-1].append(index)
        return [batches[i] for i in random.permutation(len(batches))]


def batches_by_length(
    lengths: Sequence[int], tokens_per_batch: int, *, alike: int = 0
) -> Iterator[list[int]]:
    """Yield every index once, shortest first, as many per batch as fit in `tokens_per_batch` with
    padding.

    With `alike`, a batch of that many rows or more takes no further length (1: no padding at all),
    and empty sequences are left out.
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        length = lengths[index]  # the longest so far
        if alike and not length:
            continue
        full = (len(batch) + 1) * length > tokens_per_batch
        other = bool(alike) and len(batch) >= alike and length != lengths[batch[-1]]
        if batch and (full or other):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def beginning(texts: Iterable[T], length: Callable[[T], int], limit: int | None) -> Iterator[T]:
    """Yield the first texts, up to the one with which they have `limit` tokens; None: all."""
    if limit is None:
        yield from texts
        return
    for text in texts:
        if limit <= 0:
            return
        yield text
        limit -= length(text)


def pad(sequences: Sequence[ArrayLike], padding_id: int = 0) -> tuple[Tensor, Tensor]:
    """Pad sequences of ids to a rectangle: (B, T) tokens and (B, T) mask, True for real tokens."""
    arrays = [np.asarray(sequence, np.int64) for sequence in sequences]
    lengths = [len(array) for array in arrays]
    longest = max(lengths, default=0)
    shape = len(arrays), longest
    if arrays and min(lengths) == longest:
        tokens_BT = np.concatenate(arrays).reshape(shape)
        return torch.from_numpy(tokens_BT), torch.ones(shape, dtype=torch.bool)
    tokens_BT, mask_BT = np.full(shape, padding_id, np.int64), np.zeros(shape, np.bool_)
    for row, (array, length) in enumerate(zip(arrays, lengths, strict=True)):
        tokens_BT[row, :length] = array
        mask_BT[row, :length] = True
    return torch.from_numpy(tokens_BT), torch.from_numpy(mask_BT)
