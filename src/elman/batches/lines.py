"""The lines of an encoded text as separate sequences.

The ids stay on disk (`batches/encoded.py`); only the positions of the lines are in memory.

    Lines          sequences of ids by line number, for tasks that read sentences
    LineBatches    training batches of a language model that reads each line from a fresh state
    scoring_lines  batches in which every token of a text counts once, read in the same way

A language model reads a line as the boundary token, then the line; it predicts the line and its
end. Lines of similar length form a batch, which comes in chunks along time: the first is `fresh`,
the others go on from the state of the one before.

B batch (lines), T time steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from elman.base.errors import UsageError
from elman.batches.batch import Batch
from elman.batches.buckets import SentenceBatches, batches_by_length
from elman.batches.encoded import EncodedText, encode_files
from elman.tokens.tokenizer import Tokenizer

TOKENS_PER_BATCH = 8192
"""Tokens of the lines that are scored together, padding included."""


@dataclass(frozen=True)
class Lines:
    """Sequences of ids by line number, from 0, without line ends."""

    text: EncodedText
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        return self.text.slice(int(self.starts[index]), int(self.ends[index]))

    @property
    def lengths(self) -> NDArray[np.int64]:
        return self.ends - self.starts

    @property
    def lengths_with_end(self) -> NDArray[np.int64]:
        """Lengths with the line ends, which the last line may lack."""
        return np.minimum(self.ends + 1, len(self.text)) - self.starts

    def batch(
        self, indices: Sequence[int], times: slice, *, boundary_id: int, num_rows: int
    ) -> Batch:
        """Make a batch of the given time steps of some lines, with their ends.

        Rows beyond the lines, up to `num_rows`, are padding, as is the end of short lines.
        """
        shape = num_rows, times.stop - times.start
        tokens_BT = np.full(shape, boundary_id, np.int64)
        targets_BT = np.full(shape, boundary_id, np.int64)
        mask_BT = np.zeros(shape, np.bool_)
        for row, index in enumerate(indices):
            start, end = int(self.starts[index]), int(self.ends[index]) + 1
            # From one token earlier on: the input of the first step.
            first = max(start + times.start - 1, start)
            ids = self.text.slice(first, min(end, start + times.stop))
            targets = ids if times.start == 0 else ids[1:]
            length = len(targets)
            targets_BT[row, :length] = targets
            inputs = ids[:-1]
            tokens_BT[row, length - len(inputs) : length] = inputs
            mask_BT[row, :length] = True
        return Batch(
            torch.from_numpy(tokens_BT),
            torch.from_numpy(targets_BT),
            torch.from_numpy(mask_BT),
            fresh=times.start == 0,
        )


class LineBatches(SentenceBatches[Batch]):
    """An endless, resumable stream of training batches of lines."""

    def __init__(
        self, lines: Lines, *, boundary_id: int, batch_size: int, chunk_length: int, seed: int = 0
    ) -> None:
        self._lines, self._boundary_id, self._chunk_length = lines, boundary_id, chunk_length
        lengths = lines.lengths_with_end
        super().__init__(lengths, self._chunk, batch_size=batch_size, seed=seed)  # type: ignore[arg-type]

    def _cut(self) -> list[list[int]]:
        """Return the chunks of the current epoch: two times, then the numbers of the lines."""
        chunks = []
        for group in super()._cut():
            longest, step = int(self._lengths[group].max()), self._chunk_length
            chunks += [[t, min(t + step, longest), *group] for t in range(0, longest, step)]
        return chunks

    def _chunk(self, chunk: list[int]) -> Batch:
        start, end, *group = chunk
        # All batches have the same number of rows: a saved state fits any of them.
        return self._lines.batch(
            group,
            slice(start, end),
            boundary_id=self._boundary_id,
            num_rows=self._batch_size,
        )

    def _settings(self) -> dict[str, Any]:
        return {
            **super()._settings(),
            "chunk_length": self._chunk_length,
            "text_hash": self._lines.text.content_hash,
        }


def scoring_lines(lines: Lines, *, boundary_id: int, chunk_length: int) -> Iterator[Batch]:
    """Yield batches in which every token of the lines, ends included, counts exactly once."""
    lengths = lines.lengths_with_end.tolist()
    for group in batches_by_length(lengths, TOKENS_PER_BATCH):
        longest = lengths[group[-1]]
        for start in range(0, longest, chunk_length):
            times = slice(start, min(start + chunk_length, longest))
            yield lines.batch(group, times, boundary_id=boundary_id, num_rows=len(group))


def encode_lines(path: Path, tokenizer: Tokenizer) -> Lines:
    """Encode the lines of a file; an empty line is an empty sequence."""
    end_id = line_end_id(tokenizer)
    return lines_of(encode_files([path], tokenizer), end_id)


def lines_of(text: EncodedText, end_id: int) -> Lines:
    """Find the lines of a text, which end with `end_id`."""
    found = [
        start + np.flatnonzero(text.slice(start, start + (1 << 20)) == end_id)
        for start in range(0, len(text), 1 << 20)
    ]
    ends = np.concatenate([np.zeros(0, np.int64), *found]).astype(np.int64)
    if len(text) and (not len(ends) or ends[-1] != len(text) - 1):
        ends = np.append(ends, len(text))  # the last line has no line end
    starts = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64)[: len(ends)]
    return Lines(text, starts, ends)


def line_end_id(tokenizer: Tokenizer) -> int:
    """Return the id that ends every line, or raise if line ends can be part of other tokens."""
    end_id = tokenizer.boundary_id if tokenizer.marks_lines else tokenizer.id("\n")
    if end_id is None or list(tokenizer.encode("\n\n")) != [end_id, end_id]:
        raise UsageError(
            "the tokenizer has no separate token for the end of a line",
            "let Elman train one, or use a byte-level tokenizer.json that never merges line ends",
        )
    return end_id
