"""Batches for truncated backpropagation through time, and for scoring.

A text is read as the boundary token followed by its ids; each token is predicted from those before
it. For training (`Lanes`) the text is cut into `batch_size` pieces of equal length, the lanes,
which advance in parallel, one chunk at a time; the state at the end of a chunk starts the next
chunk. For scoring (`scoring_lanes`) lanes overlap, so that every token has a context and is counted
once.

B batch (lanes), T time steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from elman.base.counting import counted
from elman.base.errors import ElmanError, UsageError
from elman.batches.batch import Batch, check_resumable
from elman.batches.encoded import EncodedText

# Merity and others (2018): one chunk in twenty is cut to about half and the rest vary a little, so
# that chunk ends, whose tokens have the shortest gradient history, differ between epochs.
_FULL_PROBABILITY = 0.95
_DEVIATION = 5.0
# A CUDA graph is captured for each length: multiples of five are varied enough, and few.
_STEP = 5


class Lanes:
    """An endless, resumable stream of training batches, epoch after epoch.

    `epoch` counts completed epochs; `position` is where in the lanes the next batch begins, 0
    exactly when an epoch has just ended. Up to `batch_size` - 1 tokens at the end of the text are
    not used.

    With `vary_chunks` chunk lengths are random as in AWD-LSTM, determined by seed and epoch. With
    `shuffle_lanes` each lane begins at a random token, anew in every epoch, and what is before it
    is read last (partial shuffle: Press, 2019): chunks and the lanes beside them then differ
    between epochs, and the order of the words hardly does.
    """

    def __init__(
        self,
        text: EncodedText,
        *,
        boundary_id: int,
        batch_size: int,
        chunk_length: int,
        vary_chunks: bool = False,
        shuffle_lanes: bool = False,
        seed: int = 0,
    ) -> None:
        if batch_size < 1 or chunk_length < 1:
            raise UsageError("batch_size and chunk_length must be at least 1")
        if text.num_tokens < batch_size:
            raise ElmanError(
                f"the text has only {counted(text.num_tokens, 'token')}, too few for a batch of "
                f"{batch_size}",
                "train on more text, or set a smaller batch_size",
            )
        self.epoch = 0
        self.position = 0
        self._text = text
        self._batch_size, self._chunk_length = batch_size, chunk_length
        self._vary, self._shuffle, self._seed = vary_chunks, shuffle_lanes, seed
        self._lane_length = text.num_tokens // batch_size
        self._targets_BL = text.ids[: batch_size * self._lane_length].reshape(batch_size, -1)
        # Lane 0 follows the boundary, each other lane the last token of the one before it.
        self._before_B = np.append(boundary_id, self._targets_BL[:-1, -1]).astype(np.int64)
        self._begin_epoch()

    @property
    def tokens_per_epoch(self) -> int:
        """Number of targets in an epoch."""
        return self._lane_length * self._batch_size

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        start = self.position
        stop = int(self._ends[np.searchsorted(self._ends, start, side="right")])
        targets_BT = self._read(start, stop)
        before_B = self._read(start - 1, start)[:, 0]
        if start == 0:
            before_B = np.where(self._firsts_B == 0, self._before_B, before_B)
        tokens_BT = np.concatenate([before_B[:, None], targets_BT[:, :-1]], axis=1)
        self._text.touched(targets_BT.size)
        self.position = stop
        if stop == self._lane_length:
            self.epoch, self.position = self.epoch + 1, 0
            self._begin_epoch()
        return Batch(torch.from_numpy(tokens_BT), torch.from_numpy(targets_BT), fresh=start == 0)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "position": self.position, **self._settings()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from the state of a stream over the same text with the same settings."""
        check_resumable(state, self._settings())
        self.epoch, self.position = int(state["epoch"]), int(state["position"])
        self._begin_epoch()
        if self.position >= self._lane_length:
            raise ValueError(f"position is {self.position}")

    def _settings(self) -> dict[str, Any]:
        return {
            "num_tokens": self._text.num_tokens,
            "text_hash": self._text.content_hash,
            "batch_size": self._batch_size,
            "chunk_length": self._chunk_length,
            "vary_chunks": self._vary,
            "shuffle_lanes": self._shuffle,
            "seed": self._seed,
        }

    def _begin_epoch(self) -> None:
        """Draw where the lanes begin and where the chunks of the current epoch end."""
        self._ends = self._chunk_ends()
        firsts_B = np.zeros(self._batch_size, np.int64)
        if self._shuffle:
            random = np.random.default_rng((self._seed, self.epoch, 1))
            firsts_B = random.integers(self._lane_length, size=self._batch_size)
        self._firsts_B = firsts_B

    def _read(self, start: int, stop: int) -> NDArray[np.int64]:
        """Read tokens `start` to `stop` of each lane, counted from where it begins."""
        if not self._shuffle and start >= 0:
            return self._targets_BL[:, start:stop].astype(np.int64)
        at_BT = (self._firsts_B[:, None] + np.arange(start, stop)) % self._lane_length
        return np.take_along_axis(self._targets_BL, at_BT, axis=1).astype(np.int64)

    def _chunk_ends(self) -> NDArray[np.int64]:
        """Return where the chunks of the current epoch end within a lane."""
        length, chunk = self._lane_length, self._chunk_length
        if not self._vary:
            return np.append(np.arange(chunk, length, chunk), length)
        random = np.random.default_rng((self._seed, self.epoch))
        ends: list[NDArray[np.int64]] = []
        reached = 0
        while reached < length:
            num_chunks = 2 * (length - reached) // chunk + 1
            halved = random.random(num_chunks) >= _FULL_PROBABILITY
            means = np.where(halved, chunk / 2, chunk)
            # Bounded, to bound memory use.
            deviations = random.normal(0.0, _DEVIATION, num_chunks).clip(
                -3.5 * _DEVIATION, 3.5 * _DEVIATION
            )
            lengths = np.rint((means + deviations) / _STEP).astype(np.int64) * _STEP
            lengths = np.maximum(_STEP, lengths)
            ends.append(reached + np.cumsum(lengths))
            reached = int(ends[-1][-1])
        all_ends = np.concatenate(ends)
        return np.append(all_ends[all_ends < length], length)


def scoring_lanes(
    text: EncodedText, *, boundary_id: int, batch_size: int, chunk_length: int, overlap: int
) -> Iterator[Batch]:
    """Yield batches in which every token of the text is a target that counts exactly once.

    The text is cut into up to `batch_size` lanes. Every lane but the first begins `overlap` tokens
    early; those tokens warm up its state and are masked out. With one lane the text is scored
    exactly. The mask also covers the padding of lanes shorter than the longest.
    """
    num_tokens = text.num_tokens
    num_lanes = min(batch_size, num_tokens)
    if num_lanes == 0:
        return
    stops_B = np.arange(1, num_lanes + 1) * num_tokens // num_lanes
    counted_B = np.append(0, stops_B[:-1])
    starts_B = np.maximum(0, counted_B - overlap)
    longest = int((stops_B - starts_B).max())
    for offset in range(0, longest, chunk_length):
        length = min(chunk_length, longest - offset)
        tokens_BT = np.full((num_lanes, length), boundary_id, np.int64)
        targets_BT = np.full((num_lanes, length), boundary_id, np.int64)
        mask_BT = np.zeros((num_lanes, length), np.bool_)
        for lane in range(num_lanes):
            start = int(starts_B[lane]) + offset
            stop = min(start + length, int(stops_B[lane]))
            if start >= stop:
                continue
            targets_BT[lane, : stop - start] = text.slice(start, stop)
            before = text.slice(max(0, start - 1), stop - 1)
            tokens_BT[lane, stop - start - len(before) : stop - start] = before
            mask_BT[lane, max(0, int(counted_B[lane]) - start) : stop - start] = True
        yield Batch(
            torch.from_numpy(tokens_BT),
            torch.from_numpy(targets_BT),
            torch.from_numpy(mask_BT),
            fresh=offset == 0,
        )
