"""A trie of counts, without suffix links, as a folder of files: three for each length.

    3.words   3.counts   3.first_child     the arrays of a `Level`, 32-bit integers in order

They are written from the front, and read in stretches or mapped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elman.ngrams.trie import Array, CountTrie, Level

FIELDS = ("words", "counts", "first_child")
_STRETCH = 1 << 20


class TrieFiles:
    """The files of a trie whose longest n-grams have `order` tokens."""

    def __init__(self, folder: Path, order: int) -> None:
        self.folder = folder
        self.order = order

    def path(self, level: int, field: str) -> Path:
        return self.folder / f"{level + 1}.{field}"

    def sizes(self) -> list[int]:
        """The number of n-grams of each length."""
        return [os.stat(self.path(level, "words")).st_size // 4 for level in range(self.order)]

    def write(self, trie: CountTrie) -> None:
        for i, level in enumerate(trie.levels):
            for field in FIELDS:
                with self.path(i, field).open("wb") as file:
                    file.write(np.ascontiguousarray(getattr(level, field)).data)

    def append(self, level: int, parts: Sequence[Array]) -> None:
        """Add n-grams at the end of a level; their `first_child` are given without the last."""
        for field, part in zip(FIELDS, parts, strict=True):
            if field != "first_child" or level + 1 < self.order:
                with self.path(level, field).open("ab") as file:
                    file.write(part.data)

    def finish(self, sizes: Sequence[int]) -> None:
        """End the `first_child` of each level that was appended to."""
        for level in range(self.order):
            with self.path(level, "first_child").open("ab") as file:
                file.write(np.array(sizes[level + 1 : level + 2], np.int32).data)

    def allocate(self, sizes: Sequence[int]) -> None:
        """Make files of the full size, to copy parts into."""
        for level, size in enumerate(sizes):
            for field in FIELDS:
                inner = level + 1 < self.order
                number = size if field != "first_child" else inner * (size + 1)
                with self.path(level, field).open("ab") as file:
                    file.truncate(4 * number)

    def copy_to(self, whole: TrieFiles, starts: Sequence[int]) -> None:
        """Copy all n-grams into larger files; `starts` has their place in each level there."""
        for level, start in enumerate(starts):
            for field in FIELDS:
                if field == "first_child" and level + 1 == self.order:
                    continue
                with whole.path(level, field).open("r+b") as file:
                    file.seek(4 * start)
                    for part in self._stretches(level, field):
                        if field == "first_child":
                            part += np.int32(starts[level + 1])
                        file.write(part.data)

    def read(self, level: int, first: int, into: Sequence[Array]) -> None:
        """Fill `words`, `counts` and the number of continuations of n-grams from `first` on."""
        words, counts, num_children = into
        words[:] = self._stretch(level, "words", first, len(words))
        counts[:] = self._stretch(level, "counts", first, len(words))
        if level + 1 < self.order:
            found = self._stretch(level, "first_child", first, len(words) + 1)
            np.subtract(found[1:], found[:-1], out=num_children)

    def first_child(self, level: int, index: int) -> int:
        return int(self._stretch(level, "first_child", index, 1)[0])

    def open(self, mapped: Callable[[Path], NDArray[np.int32]], boundary_id: int) -> CountTrie:
        """Map the files."""
        arrays = (
            [mapped(self.path(level, field)) for field in FIELDS] for level in range(self.order)
        )
        return CountTrie([Level(w, c, first_child=f) for w, c, f in arrays], boundary_id)

    def _stretches(self, level: int, field: str) -> Iterator[Array]:
        with self.path(level, field).open("rb") as file:
            while len(part := np.fromfile(file, np.int32, _STRETCH)):
                yield part

    def _stretch(self, level: int, field: str, first: int, number: int) -> Array:
        # Opened for each stretch: there may be more runs than files that can be open.
        found = np.fromfile(self.path(level, field), np.int32, number, offset=4 * first)
        if len(found) != number:
            raise OSError(f"{self.path(level, field)} was cut short")
        return found
