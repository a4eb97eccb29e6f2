"""Pairs of lines, encoded: a source file and a target file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elman.batches.buckets import pad
from elman.batches.conditional import ConditionalBatch, conditional_batch
from elman.batches.lines import Lines, encode_lines
from elman.batches.wording import Spelled, Wording
from elman.tasks.translation.vocabulary import TokenizerPair
from elman.text.pairs import check_same_length, lines_of


@dataclass(frozen=True)
class Pairs:
    """Some of the lines of two files."""

    files: tuple[Path, Path]
    source: Lines
    target: Lines
    source_end: int
    """The id of the boundary token, which ends a source."""
    numbers: NDArray[np.int64]
    """The line numbers of the pairs, ascending from 0."""
    spelled: list[Spelled] | None = None
    """The words of all sources, for pre-trained embeddings."""

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def lengths(self) -> list[int]:
        """Target tokens of each pair, the boundary at the end included."""
        return [int(length) + 1 for length in self.target.lengths[self.numbers]]

    def part(self, indices: NDArray[np.int64] | slice) -> Pairs:
        return replace(self, numbers=self.numbers[indices])

    def first(self, number: int) -> Pairs:
        return self.part(slice(number))

    def at_most(self, length: int) -> Pairs:
        """The pairs without those that have an empty side or one of more than `length` tokens."""
        source, target = self.source.lengths[self.numbers], self.target.lengths[self.numbers]
        fitting = (source > 0) & (target > 0) & (source <= length) & (target <= length)
        return self.part(np.flatnonzero(fitting))

    def texts(self) -> tuple[list[str], list[str]]:
        """Read the source and the target lines from the files."""
        wanted = set(self.numbers.tolist())
        sources, targets = (
            [line for number, line in enumerate(lines_of(file)) if number in wanted]
            for file in self.files
        )
        return sources, targets

    def sources(self) -> Iterator[str]:
        """Read the source lines from their file, in constant memory."""
        wanted = np.zeros(len(self.source), dtype=bool)
        wanted[self.numbers] = True
        return (line for line, is_ in zip(lines_of(self.files[0]), wanted, strict=True) if is_)

    def words(self) -> list[tuple[str, ...]]:
        """The words of the sources; none without pre-trained embeddings."""
        return [self.spelled[number].words for number in self.numbers] if self.spelled else []

    def batch(self, boundary_id: int, indices: Sequence[int]) -> ConditionalBatch:
        numbers = self.numbers[list(indices)]
        sources = [np.append(self.source[number], self.source_end) for number in numbers]
        wording: tuple[Wording, ...] = ()
        if self.spelled is not None:
            wording = (Wording.of([self.spelled[number] for number in numbers]),)
        targets = [self.target[number] for number in numbers]
        padded = pad(sources, self.source_end)
        given = (*padded, *wording)
        return conditional_batch(given, targets, boundary_id, num_padded=len(padded))


def read_pairs(
    files: tuple[Path, Path], tokenizers: TokenizerPair, *, spelled: bool = False
) -> Pairs:
    """Encode both files, which must have the same number of lines; `spelled`: read words too."""
    source = encode_lines(files[0], tokenizers.source)
    target = encode_lines(files[1], tokenizers.target)
    check_same_length(*files, len(source), len(target))
    words = None
    if spelled:
        words = [Spelled.of_text(line, tokenizers.source) for line in lines_of(files[0])]
    numbers = np.arange(len(source))
    return Pairs(files, source, target, tokenizers.source.boundary_id, numbers, words)
