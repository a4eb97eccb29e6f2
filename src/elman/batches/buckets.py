"""Batches for sentence tasks: sequences of like length together, to compute little padding.

`Buckets` hands out indices, whatever the sequences are; `pad` lays the chosen ones out as a
rectangle; `SentenceBatches` makes a task's own batches of them, as the training loop wants them.

B batch, T time steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from elman.base.errors import ElmanError, UsageError
from elman.batches.batch import TaskBatch

# Lengths are blurred by up to this share before sorting, so that neighbours differ between epochs.
_BLUR = 0.1


class Buckets:
    """An endless stream of batches of indices, epoch after epoch, that can go on from any batch.

    Batches hold `batch_size` sequences, or as many as fit in `tokens_per_batch` tokens with
    padding (a longer sequence makes a batch by itself). With `equal` the sequences of a batch are
    of one length: nothing is padded, and layers that read whole rectangles run two and a half times
    as fast on a CPU. Each epoch has every sequence once, in an order that depends on the seed and
    the epoch alone. `epoch` is the number of whole epochs handed out, `position` the number of
    batches of the current one.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        batch_size: int = 0,
        tokens_per_batch: int = 0,
        equal: bool = False,
        seed: int = 0,
    ) -> None:
        if (batch_size > 0) == (tokens_per_batch > 0):
            raise UsageError(
                "a batch has a size or a number of tokens", "set one of the two above 0"
            )
        if not len(lengths):
            raise ElmanError("there are no sequences to make batches of", "check the data")
        self.epoch = 0
        self.position = 0
        self._lengths = np.asarray(lengths, np.int64)
        self._batch_size, self._tokens_per_batch, self._seed = batch_size, tokens_per_batch, seed
        self._equal = equal
        self._batches = self._cut()

    @property
    def batches_per_epoch(self) -> int:
        """How many batches the current epoch has."""
        return len(self._batches)

    def __iter__(self) -> Iterator[list[int]]:
        return self

    def __next__(self) -> list[int]:
        batch = self._batches[self.position]
        self.position += 1
        if self.position == len(self._batches):
            self.epoch, self.position = self.epoch + 1, 0
            self._batches = self._cut()
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands, as plain values for `load_state_dict`."""
        return {"epoch": self.epoch, "position": self.position, **self._settings()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where another stream over the same sequences, in the same settings, stood."""
        for name, value in self._settings().items():
            if state.get(name) != value:
                raise ElmanError(
                    f"the run cannot go on: {name} was {state.get(name)} and is now {value}",
                    "resume with the same data and the same settings, or start a new run",
                )
        self.epoch, self.position = int(state["epoch"]), int(state["position"])
        self._batches = self._cut()

    def _settings(self) -> dict[str, Any]:
        return {
            "num_sequences": len(self._lengths),
            "num_tokens": int(self._lengths.sum()),
            "batch_size": self._batch_size,
            "tokens_per_batch": self._tokens_per_batch,
            "equal": self._equal,
            "seed": self._seed,
        }

    def _cut(self) -> list[list[int]]:
        """The batches of the current epoch."""
        random = np.random.default_rng((self._seed, self.epoch))
        blur = random.random(len(self._lengths))
        blurred = self._lengths + blur if self._equal else self._lengths * (1 + _BLUR * blur)
        batches: list[list[int]] = [[]]
        longest = 0
        for index in np.argsort(blurred, kind="stable").tolist():
            length = int(self._lengths[index])
            other = self._equal and length != longest
            longest = max(longest, length)
            if batches[-1] and (other or self._full(len(batches[-1]), longest)):
                batches.append([])
                longest = length
            batches[-1].append(index)
        return [batches[i] for i in random.permutation(len(batches))]

    def _full(self, num_sequences: int, longest: int) -> bool:
        """Whether a batch has no room for one sequence more, the longest then being so long."""
        if self._batch_size:
            return num_sequences >= self._batch_size
        return (num_sequences + 1) * longest > self._tokens_per_batch


class SentenceBatches:
    """An endless stream of a task's batches: `make` turns the chosen indices into one.

    `lengths` are those of the sequences in tokens; the settings are those of `Buckets`.
    """

    def __init__(
        self, lengths: Sequence[int], make: Callable[[list[int]], TaskBatch], **settings: int
    ) -> None:
        self._buckets = Buckets(lengths, **settings)  # type: ignore[arg-type]
        self._make = make
        self.tokens_per_epoch = sum(lengths)

    @property
    def epoch(self) -> int:
        """Passes completed so far."""
        return self._buckets.epoch

    @classmethod
    def of_equal_length(
        cls,
        lengths: Sequence[int],
        make: Callable[[list[int]], TaskBatch],
        *,
        batch_size: int,
        seed: int,
    ) -> SentenceBatches:
        """Batches without padding, each with about as many tokens as `batch_size` sequences have on
        average: no update weighs much more than another.
        """
        tokens_per_batch = max(1, -(-sum(lengths) * batch_size // max(1, len(lengths))))
        return cls(lengths, make, tokens_per_batch=tokens_per_batch, equal=True, seed=seed)

    def __iter__(self) -> Iterator[TaskBatch]:
        return self

    def __next__(self) -> TaskBatch:
        return self._make(next(self._buckets))

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands."""
        return self._buckets.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._buckets.load_state_dict(state)


def batches_of(lengths: Sequence[int], tokens_per_batch: int) -> Iterator[list[int]]:
    """Every sequence once, for reading rather than learning: the shortest first, as many of one
    length together as fit; empty ones are left out.
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if not lengths[index]:
            continue
        full = (len(batch) + 1) * lengths[index] > tokens_per_batch
        if batch and (full or lengths[batch[0]] != lengths[index]):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def pad(sequences: Sequence[ArrayLike], padding_id: int = 0) -> tuple[Tensor, Tensor]:
    """Sequences of ids as one rectangle: (B, T) tokens and (B, T) mask, True on real tokens."""
    arrays = [np.asarray(sequence, np.int64) for sequence in sequences]
    longest = max((len(array) for array in arrays), default=0)
    tokens_BT = np.full((len(arrays), longest), padding_id, np.int64)
    mask_BT = np.zeros((len(arrays), longest), np.bool_)
    for row, array in enumerate(arrays):
        tokens_BT[row, : len(array)] = array
        mask_BT[row, : len(array)] = True
    return torch.from_numpy(tokens_BT), torch.from_numpy(mask_BT)
