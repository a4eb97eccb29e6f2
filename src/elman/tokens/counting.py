"""Count words in memory that does not grow with the text."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from elman.base.tables import imported
from elman.text.parallel import BlockFunction, default_workers, map_blocks
from elman.text.sources import corpus_blocks
from elman.tokens.kind import lower, words_of

BLOCK_SIZE = 1 << 21


class BoundedCounts(Counter[str]):
    """Counts of at most `LIMIT` words at a time.

    Beyond that the rarest are dropped, as in lossy counting (Manku and Motwani, 2002). A dropped
    word that comes back starts from zero, so counts may be low by at most `forgotten`.
    """

    LIMIT = 1_000_000  # about 150 MB

    def __init__(self) -> None:
        super().__init__()
        self.num_tokens = 0
        """Everything that was added, dropped words included."""
        self.forgotten = 0
        """Words seen at most this often may be missing."""

    def add(self, counts: Mapping[str, int]) -> None:
        self.update(counts)
        self.num_tokens += sum(counts.values())
        if len(self) > self.LIMIT:
            floor, kept = 0, dict(self)
            while len(kept) > self.LIMIT // 2:
                floor += 1
                kept = {word: count for word, count in kept.items() if count > floor}
            self.forgotten += floor
            self.clear()
            self.update(kept)


def most_frequent(counts: Mapping[str, int], min_count: int = 1) -> list[str]:
    """Return the words counted at least `min_count` times, by falling count, then by spelling."""
    frequent = sorted(word for word, count in counts.items() if count >= min_count)
    frequent.sort(key=counts.__getitem__, reverse=True)  # stable: ties stay sorted
    return frequent


def split_counts(
    stretches: Iterable[tuple[str, int]], split: Callable[[str], list[str]]
) -> Counter[str]:
    """Count words, given the counts of the stretches between spaces that `split` splits."""
    counts: Counter[str] = Counter()
    for stretch, number in stretches:
        for word in split(stretch):
            counts[word] += number
    return counts


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
    split = imported(settings["splitter"])() if settings["splitter"] else None

    def count(data: bytes) -> bytes:
        text = data.decode()
        counts = Counter(words_of(lower(text) if settings["lowercase"] else text))
        if split is not None:
            counts = split_counts(counts.items(), split)
        numbers = " ".join(map(str, counts.values()))
        return f"{numbers}\n{' '.join(counts)}".encode()

    return count
