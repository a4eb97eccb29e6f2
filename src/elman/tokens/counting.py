"""Counting words in memory that does not grow with the text."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import ItemsView, Mapping
from functools import lru_cache
from pathlib import Path

from elman.text.parallel import BlockFunction, default_workers, map_blocks
from elman.text.sources import corpus_blocks
from elman.tokens import words
from elman.tokens.kind import lower
from elman.tokens.pretokenized import words_of

BLOCK_SIZE = 1 << 21


class BoundedCounts:
    """How often each word was seen, for at most `LIMIT` words at a time.

    When there are more, the rarest are forgotten (as in lossy counting, Manku and Motwani, 2002):
    a word that comes back starts from nothing, so counts may fall short by at most `forgotten`.
    """

    LIMIT = 1_000_000  # some 150 MB

    def __init__(self) -> None:
        self.num_tokens = 0
        """All that was added, forgotten words included."""
        self.forgotten = 0
        """Words seen at most so often may be missing."""
        self._counts: dict[str, int] = {}

    def add(self, counts: Mapping[str, int]) -> None:
        """Add counts, then forget the rarest words if there are too many."""
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
        """Words and their counts."""
        return self._counts.items()

    def falling(self, min_count: int = 1) -> list[str]:
        """The words seen at least `min_count` times, the most frequent first."""
        frequent = (word for word, count in self._counts.items() if count >= min_count)
        return sorted(frequent, key=lambda word: (-self._counts[word], word))


def count_words(files: list[Path], kind: str, *, lowercase: bool = False) -> BoundedCounts:
    """How often each word, as the kind cuts them, and each line end occurs in the files."""
    setup = json.dumps({"kind": kind, "lowercase": lowercase}).encode()
    workers = default_workers(sum(file.stat().st_size for file in files))
    blocks = corpus_blocks(files, BLOCK_SIZE, end_lines=True)
    counts = BoundedCounts()
    for _, result in map_blocks(f"{__name__}:{block_counter.__name__}", setup, blocks, workers):
        numbers, _, found = result.partition(b"\n")
        counts.add(dict(zip(found.decode().split(), map(int, numbers.split()), strict=True)))
    return counts


def block_counter(setup: bytes) -> BlockFunction:
    """A function from a block of UTF-8 text to a line of numbers and a line of words."""
    settings = json.loads(setup)
    splitter = words.build([]).pre_tokenizer

    @lru_cache(50_000)
    def split_foreign(stretch: str) -> list[str]:
        return [word for word, _ in splitter.pre_tokenize_str(stretch)]

    def count(data: bytes) -> bytes:
        text = data.decode()
        counts = Counter(words_of(lower(text) if settings["lowercase"] else text))
        if settings["kind"] == "word":
            stretches, counts = counts, Counter()
            for stretch, number in stretches.items():
                ascii = stretch.isascii()
                for word in words.split_ascii(stretch) if ascii else split_foreign(stretch):
                    counts[word] += number
        numbers = " ".join(map(str, counts.values()))
        return f"{numbers}\n{' '.join(counts)}".encode()

    return count
