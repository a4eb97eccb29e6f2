"""Batches of sentences for a bidirectional language model, with word types as spellings.

`SentenceWindows` yields training batches of sentences of equal length, one window of the text at a
time: neither the text nor the list of its sentences is ever in memory as a whole.

B batch, X words with the marks around them, U word types, V vocabulary, C characters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elman.batches.batch import TensorBatch, bucket_size, check_resumable
from elman.batches.buckets import SentenceBatches
from elman.batches.encoded import EncodedText

WINDOW_TOKENS = 1 << 22
"""Tokens of a window, whose sentences are sorted by length."""
NUM_MARKS = 2
"""Begin and end of a sentence: the first rows of a table of spellings."""


@dataclass(frozen=True)
class BidirectionalBatch(TensorBatch):
    """Sentences of equal length, each between two marks."""

    characters_UC: Tensor
    """The spellings of the word types in the batch."""
    places_BX: Tensor
    """The row of `characters_UC` of each word, int64."""
    targets_BX: Tensor
    """The ids to predict, int64; the marks are the boundary."""
    fresh: bool = True
    """Sentences are independent: no state is carried to the next batch."""

    @property
    def num_rows(self) -> int:
        return self.places_BX.shape[0]

    @property
    def num_tokens(self) -> int:
        """Words and sentence ends."""
        return self.places_BX.shape[0] * (self.places_BX.shape[1] - 1)

    @property
    def num_targets(self) -> int:
        """Tokens of both directions (the backward one predicts the begin)."""
        return 2 * self.num_tokens

    def rows(self, rows: slice) -> BidirectionalBatch:
        types_U, places_BX = torch.unique(self.places_BX[rows], return_inverse=True)
        return BidirectionalBatch(self.characters_UC[types_U], places_BX, self.targets_BX[rows])

    def to(self, device: str) -> BidirectionalBatch:
        return BidirectionalBatch(
            self.characters_UC.to(device, non_blocking=True),
            self.places_BX.to(device, non_blocking=True),
            self.targets_BX.to(device, non_blocking=True),
        )


@dataclass(frozen=True)
class Spellings:
    """The spellings of a vocabulary, and which of its words are predicted."""

    table_VC: NDArray[np.int16]
    """Rows for begin and end of a sentence, then one for each id."""
    lengths_V: NDArray[np.int64]
    """Length of each row without padding."""
    margin: int
    """Padding after the longest word: the width of the widest filter."""
    num_targets: int
    """Ids below this are predicted, the others as unknown."""
    boundary_id: int
    unknown_id: int

    def batch(self, tokens_BT: NDArray[np.int64], *, bucketed: bool = False) -> BidirectionalBatch:
        """Make a batch of sentences of T words; `bucketed`: with one of few numbers of spellings,
        of which the first are repeated, and with one of few lengths of them, for CUDA graphs."""
        marks = ((0, 0), (1, 1))
        rows_BX = np.pad(tokens_BT + NUM_MARKS, marks, constant_values=((0, 0), (0, 1)))
        types_U, places = np.unique(rows_BX, return_inverse=True)
        width = int(self.lengths_V[types_U].max()) + self.margin
        if bucketed:
            width = bucket_size(width)
            types_U = np.pad(types_U, (0, bucket_size(len(types_U), 2) - len(types_U)), "wrap")
        predicted_BT = np.where(tokens_BT < self.num_targets, tokens_BT, self.unknown_id)
        targets_BX = np.pad(predicted_BT, marks, constant_values=self.boundary_id)
        return BidirectionalBatch(
            torch.from_numpy(self.table_VC[types_U, :width]),
            torch.from_numpy(places.reshape(rows_BX.shape)),
            torch.from_numpy(targets_BX),
        )


class SentenceWindows:
    """An endless source of training batches whose position can be saved.

    An epoch is the windows of the text in order. The sentences of a window come in batches of equal
    length, in an order that depends only on the seed, the epoch and the window. Lines of more than
    `longest` words are cut into pieces of that length.
    """

    def __init__(
        self,
        text: EncodedText,
        spellings: Spellings,
        *,
        batch_size: int,
        longest: int,
        seed: int,
        bucketed: bool = False,
        window_tokens: int = WINDOW_TOKENS,
    ) -> None:
        """`bucketed`: pad batches to few shapes, for CUDA graphs."""
        self.epoch = 0
        self.tokens_per_epoch = text.num_tokens
        self._text, self._spellings = text, spellings
        self._batch_size, self._longest, self._seed = batch_size, longest, seed
        self._bucketed, self._window_tokens = bucketed, window_tokens
        self._edges = self._window_edges()
        self._window = 0
        self._open()

    def __next__(self) -> BidirectionalBatch:
        batch = next(self._batches)
        if self._batches.epoch:  # the window has been read
            self._window += 1
            if self._window == len(self._edges) - 1:
                self.epoch, self._window = self.epoch + 1, 0
            self._open()
        return batch

    def state_dict(self) -> dict[str, Any]:
        """The position, as JSON values."""
        return {
            "epoch": self.epoch,
            "window": self._window,
            "batches": self._batches.state_dict(),
            **self._settings(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a position; text and settings must be the same."""
        check_resumable(state, self._settings())
        self.epoch, self._window = int(state["epoch"]), int(state["window"])
        self._open()
        self._batches.load_state_dict(state["batches"])

    def _settings(self) -> dict[str, Any]:
        return {
            "num_tokens": self._text.num_tokens,
            "text_hash": self._text.content_hash,
            "batch_size": self._batch_size,
            "longest": self._longest,
            "seed": self._seed,
        }

    def _window_edges(self) -> list[int]:
        """Where windows begin: at the start of a sentence, about `window_tokens` apart."""
        text, boundary = self._text, self._spellings.boundary_id
        edges = [0]
        while (position := edges[-1] + self._window_tokens) < len(text):
            while position < len(text) and text.ids[position - 1] != boundary:
                position += 1
            edges.append(position)
        return [*edges, len(text)] if edges[-1] < len(text) else edges

    def _open(self) -> None:
        """Sort the sentences of the current window into batches."""
        start, stop = self._edges[self._window : self._window + 2]
        ids = self._text.slice(start, stop)
        starts_S, lengths_S = sentences(ids, self._spellings.boundary_id, self._longest)

        def make(indices: list[int]) -> BidirectionalBatch:
            length = int(lengths_S[indices[0]])
            places_BT = starts_S[indices][:, None] + np.arange(length)
            return self._spellings.batch(ids[places_BT], bucketed=self._bucketed)

        self._batches = SentenceBatches(
            lengths_S.tolist(),
            make,
            batch_size=self._batch_size,
            equal=True,
            seed=self._seed + self._window + len(self._edges) * self.epoch,
        )


def sentences(
    ids: NDArray[np.int64], boundary_id: int, longest: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Start and length of each sentence of a text; empty ones are left out, long ones are cut."""
    ends_S = np.append(np.flatnonzero(ids == boundary_id), len(ids))
    starts_S = np.append(0, ends_S[:-1] + 1)
    lengths_S = ends_S - starts_S
    pieces_S = -(-lengths_S // longest)
    sentence_P = np.repeat(np.arange(len(starts_S)), pieces_S)
    first_P = np.cumsum(pieces_S)[sentence_P] - pieces_S[sentence_P]
    offsets_P = (np.arange(len(sentence_P)) - first_P) * longest
    return (
        starts_S[sentence_P] + offsets_P,
        np.minimum(lengths_S[sentence_P] - offsets_P, longest),
    )
