"""Count words in memory that does not grow with the text."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, ItemsView, Mapping
from pathlib import Path

from elman.base.tables import look_up
from elman.text.parallel import BlockFunction, default_workers, map_blocks
from elman.text.sources import corpus_blocks
from elman.tokens.kind import lower, words_of

BLOCK_SIZE = 1 << 21


class BoundedCounts:
    """Counts of at most `LIMIT` words at a time.

    Beyond that the rarest are dropped, as in lossy counting (Manku and Motwani, 2002). A dropped
    word that comes back starts from zero, so counts may be low by at most `forgotten`.
    """

    LIMIT = 1_000_000  # about 150 MB

    def __init__(self) -> None:
        self.num_tokens = 0
        """Everything that was added, dropped words included."""
        self.forgotten = 0
        """Words seen at most this often may be missing."""
        self._counts: dict[str, int] = {}

    def add(self, counts: Mapping[str, int]) -> None:
        mine = self._counts
        for word, count in counts.items():
            mine[word] = mine.get(word, 0) + count
        self.num_tokens += sum(counts.values())
        if len(mine) > self.LIMIT:
            floor = 0
            while len(mine) > self.LIMIT // 2:
                floor += 1
                mine = {word: count for word, count in mine.items() if count > floor}
            self.forgotten += floor
            self._counts = mine

    def __getitem__(self, word: str) -> int:
        return self._counts.get(word, 0)

    def __contains__(self, word: object) -> bool:
        return word in self._counts

    def __len__(self) -> int:
        return len(self._counts)

    def items(self) -> ItemsView[str, int]:
        return self._counts.items()

    def falling(self, min_count: int = 1) -> list[str]:
        """Return the words seen at least `min_count` times, the most frequent first."""
        frequent = (word for word, count in self._counts.items() if count >= min_count)
        return sorted(frequent, key=lambda word: (-self._counts[word], word))


def count_words(files: list[Path], splitter: str, *, lowercase: bool = False) -> BoundedCounts:
    """Count the words and line ends of the files.

    `splitter` ("module:function") makes the function that splits what stands between spaces into
    words; if empty, that is one word.
    """
    setup = json.dumps({"splitter": splitter, "lowercase": lowercase}).encode()
    workers = default_workers(sum(file.stat().st_size for file in files))
    blocks = corpus_blocks(files, BLOCK_SIZE, end_lines=True)
    counts = BoundedCounts()
    for _, result in map_blocks(f"{__name__}:{block_counter.__name__}", setup, blocks, workers):
        numbers, _, found = result.partition(b"\n")
        counts.add(dict(zip(found.decode().split(), map(int, numbers.split()), strict=True)))
    return counts


def block_counter(setup: bytes) -> BlockFunction:
    """Return a function from a block of UTF-8 text to a line of counts and a line of words."""
    settings = json.loads(setup)
    split: Callable[[str], list[str]] | None = None
    if settings["splitter"]:
        split = look_up({"": settings["splitter"]}, "", "splitter")()

    def count(data: bytes) -> bytes:
        text = data.decode()
        counts = Counter(words_of(lower(text) if settings["lowercase"] else text))
        if split is not None:
            stretches, counts = counts, Counter()
            for stretch, number in stretches.items():
                for word in split(stretch):
                    counts[word] += number
        numbers = " ".join(map(str, counts.values()))
        return f"{numbers}\n{' '.join(counts)}".encode()

    return count
