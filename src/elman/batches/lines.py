"""The lines of an encoded text as separate sequences, for tasks that read sentences.

The ids stay on disk (`batches/encoded.py`); only the positions of the lines are in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elman.base.errors import UsageError
from elman.batches.encoded import EncodedText, encode_files
from elman.tokens.tokenizer import Tokenizer


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


def encode_lines(path: Path, tokenizer: Tokenizer) -> Lines:
    """Encode the lines of a file; an empty line is an empty sequence."""
    end_id = line_end_id(tokenizer)
    text = encode_files([path], tokenizer)
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
