"""Describe a text before training on it: `elman data check`.

`check` reads the files twice, in blocks: once for a sample, from which a tokenizer is chosen, and
once to count. It reports damage instead of stopping at it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from elman.base.counting import counted
from elman.base.origins import origin
from elman.text.sources import (
    HEAD,
    Block,
    Paths,
    byte_blocks,
    expand,
    open_bytes,
    read_bytes,
    sample,
    wide_encoding,
)
from elman.tokens import bpe
from elman.tokens.characters import NUM_CODE_POINTS, code_points
from elman.tokens.choose import SAMPLE_BYTES, TokenizerChoice, choose_for
from elman.tokens.counting import BoundedCounts
from elman.tokens.kind import BOUNDARY, UNKNOWN
from elman.tokens.pretokenized import MAX_WORDS
from elman.tokens.tokenizer import Tokenizer

MAX_EXAMPLES = 20
LONG_LINE = 10_000
"""Characters from which a line counts as very long."""
FEW_CHARACTERS = 10_000
HELD_OUT = 0.1
"""The fraction at the end of the text that serves as unseen text."""
MAX_REMEMBERED_LINES = 1_000_000
_BLOCK_SIZE = 1 << 20


def check(paths: Paths) -> dict[str, Any]:
    """Describe one or more files as plain values, ready to be printed as JSON.

    Invalid bytes, NUL bytes and the like are found and counted (`encoding_errors`, `problems`). The
    last tenth of the text is compared with the rest: `out_of_vocabulary` lists words and characters
    that a vocabulary made from the rest would lack.
    """
    files = expand(paths)
    blocks, num_bytes = sample(files, SAMPLE_BYTES)
    texts = [_lenient(block) for block in blocks]
    choice = choose_for(texts, num_bytes)
    found = _Findings(num_bytes)
    for file in files:
        found.read(file)
    estimated = choice.kind == "bpe"
    tokens = _estimate(texts, choice) if estimated else found.tokens(choice.kind)
    return {
        "files": [origin(file) for file in files],
        "bytes_on_disk": sum(os.stat(file).st_size for file in files),
        "bytes": num_bytes,
        "lines": found.num_lines,
        "words": found.num_words,
        "characters": int(found.characters.sum()),
        "word_types": sum(1 for _ in found.all_words()),
        "word_types_exact": not any(words.forgotten for words in found.words),
        "character_types": found.num_character_types,
        "tokenizer": asdict(choice),
        "tokens": tokens,
        "tokens_exact": not estimated,
        "vocab_size": found.vocab_size(choice),
        "out_of_vocabulary": {
            "words": found.unseen_words(),
            "characters": found.unseen_characters(),
        },
        "blank_lines": found.num_blank,
        "duplicate_lines": found.num_duplicate,
        "very_long_lines": found.num_long,
        "longest_line": found.longest_line,
        "nul_bytes": found.num_nul,
        "encoding_errors": {"lines": found.num_bad_lines, "first": found.bad_lines},
        "problems": found.problems(),
    }


class _Findings:
    """Counts collected while reading the text."""

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes_head = (1 - HELD_OUT) * num_bytes
        self._num_bytes_read = 0
        self.words = BoundedCounts(), BoundedCounts()
        """Of the text without its last tenth, and of the last tenth."""
        self.characters = np.zeros((2, NUM_CODE_POINTS), np.int64)
        """In the same two parts."""
        self.num_lines = self.num_blank = self.num_duplicate = self.num_long = 0
        self.longest_line = self.num_nul = self.num_bad_lines = 0
        self.bad_lines: list[dict[str, Any]] = []
        self.wide: dict[str, str] = {}
        """Encodings of the files in UTF-16 or UTF-32, by name."""
        self._remembered: set[int] = set()

    def read(self, file: Path) -> None:
        # Small blocks in a small file, so that its last tenth is not empty.
        size = int(min(_BLOCK_SIZE, max(16, self._num_bytes_head // 50)))
        line, line_length = "", 0
        with open_bytes(file) as stream:
            if encoding := wide_encoding(read_bytes(stream, HEAD, file)):
                self.wide[origin(file)] = encoding
        for block in byte_blocks(file, size):
            self.num_nul += block.data.count(0)
            self._count_errors(block)
            text = _lenient(block)
            self._count_units(text, len(block.data))
            first, *others = text.split("\n")
            # A line may continue from the block before; only the end of such a line is stored.
            line, line_length = first, line_length + len(first)
            for following in others:
                self._count_line(line, line_length)
                line, line_length = following, len(following)
        if line_length:
            self._count_line(line, line_length)

    def _count_units(self, text: str, num_bytes: int) -> None:
        self._num_bytes_read += num_bytes
        part = int(self._num_bytes_read > self._num_bytes_head)
        self.words[part].add(Counter(text.split()))
        numbers = np.bincount(code_points(text))
        self.characters[part, : len(numbers)] += numbers

    def _count_line(self, line: str, length: int) -> None:
        self.num_lines += 1
        self.longest_line = max(self.longest_line, length)
        self.num_long += length >= LONG_LINE
        if not line.strip():
            self.num_blank += 1
            return
        key = hash((line, length))
        if key in self._remembered:
            self.num_duplicate += 1
        elif len(self._remembered) < MAX_REMEMBERED_LINES:
            self._remembered.add(key)

    def _count_errors(self, block: Block) -> None:
        try:
            block.data.decode()
        except UnicodeDecodeError:
            for number, line in enumerate(block.data.split(b"\n"), block.first_line):
                try:
                    line.decode()
                except UnicodeDecodeError as error:
                    self.num_bad_lines += 1
                    if len(self.bad_lines) < MAX_EXAMPLES:
                        self.bad_lines.append(_describe(block.path, number, line, error))

    def tokens(self, kind: str) -> int:
        """Return the number of tokens of a kind that can be derived from the counts."""
        if kind == "char":
            return int(self.characters.sum())
        return self.num_words + self.num_lines

    def vocab_size(self, choice: TokenizerChoice) -> int:
        """Return the size of the vocabulary that would be made."""
        if choice.kind == "char":
            return self.num_character_types + 2
        if choice.kind == "bpe":
            return choice.vocab_size
        kept = (count for word, count in self.all_words() if word not in (BOUNDARY, UNKNOWN))
        if choice.unknown_share > 0:  # a closed vocabulary
            return 2 + sum(1 for _ in kept)
        return min(MAX_WORDS, 2 + sum(count >= 2 for count in kept))

    @property
    def num_words(self) -> int:
        return sum(words.num_tokens for words in self.words)

    @property
    def num_character_types(self) -> int:
        return int(np.count_nonzero(self.characters.sum(0)))

    def all_words(self) -> Iterator[tuple[str, int]]:
        """Yield every word with its count."""
        head, tail = self.words
        yield from ((word, count + tail[word]) for word, count in head.items())
        yield from ((word, count) for word, count in tail.items() if word not in head)

    def unseen_words(self) -> dict[str, Any]:
        """Return the words of the last tenth that do not occur in the rest."""
        head, tail = self.words
        unseen = [(word, count) for word, count in tail.items() if word not in head]
        return _unseen(unseen, tail.num_tokens)

    def unseen_characters(self) -> dict[str, Any]:
        """Return the characters of the last tenth that do not occur in the rest."""
        head, tail = self.characters
        numbers = np.flatnonzero((head == 0) & (tail > 0))
        unseen = [(chr(number), int(tail[number])) for number in numbers]
        return _unseen(unseen, int(tail.sum()))

    def problems(self) -> list[str]:
        """Return a sentence for each thing that the user may want to fix."""
        lines = max(1, self.num_lines)
        characters, returns = int(self.characters.sum()), int(self.characters[:, ord("\r")].sum())
        candidates = [
            (
                self.num_bad_lines,
                f"not UTF-8: {counted(self.num_bad_lines, 'line')}; name the encoding, such as "
                "--encoding cp1252",
            ),
            (
                self.num_nul,
                f"{counted(self.num_nul, 'NUL byte')}: this may not be a text file",
            ),
            (
                returns,
                f"{counted(returns, 'carriage return')} inside lines, perhaps meant as line ends",
            ),
            (
                characters < FEW_CHARACTERS,
                f"{counted(characters, 'character')}: too few to learn much from",
            ),
            (
                self.num_duplicate > lines / 4,
                f"lines that repeat an earlier line: {self.num_duplicate:,} of {lines:,}",
            ),
            (
                self.num_long,
                f"lines with {LONG_LINE:,} characters or more: {self.num_long:,}",
            ),
        ]
        wide = [
            f"{name} is {encoding.upper()}, not UTF-8: add --encoding {encoding}"
            for name, encoding in self.wide.items()
        ]  # its counts mean nothing
        return wide or [sentence for present, sentence in candidates if present]


def _lenient(block: Block) -> str:
    return block.data.decode("utf-8", errors="replace")


def _describe(path: Path, number: int, line: bytes, error: UnicodeDecodeError) -> dict[str, Any]:
    around = line[max(0, error.start - 20) : error.start + 20]
    return {
        "file": origin(path),
        "line": number,
        "column": error.start + 1,
        "byte": f"0x{line[error.start]:02x}",
        "text": around.decode("utf-8", errors="replace"),
    }


def _unseen(unseen: list[tuple[str, int]], num_tokens: int) -> dict[str, Any]:
    unseen.sort(key=lambda pair: (-pair[1], pair[0]))
    num_unseen = sum(count for _, count in unseen)
    return {
        "tokens": num_unseen,
        "share": num_unseen / max(1, num_tokens),
        "types": len(unseen),
        "examples": [unit for unit, _ in unseen[:MAX_EXAMPLES]],
    }


def _estimate(texts: list[str], choice: TokenizerChoice) -> int:
    """Estimate the number of bpe tokens from merges learnt on the sample."""
    lines = (line for text in texts for line in text.splitlines(keepends=True))
    tokenizer = Tokenizer(bpe.train(lines, choice.vocab_size))
    num_bytes = sum(len(text.encode()) for text in texts)
    num_tokens = sum(len(tokenizer.encode(text)) for text in texts)
    return round(num_tokens * choice.num_bytes / max(1, num_bytes))
