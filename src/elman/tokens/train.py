"""Making a tokenizer from text, in memory that does not grow with the text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elman.base.errors import UsageError
from elman.text.sources import Block, Paths, corpus_blocks, expand, sample
from elman.tokens import bpe, characters, pretokenized, words
from elman.tokens import bytes as all_bytes
from elman.tokens.choose import choose, fitting_vocab_size
from elman.tokens.counting import BoundedCounts, count_words
from elman.tokens.kind import BOUNDARY, UNKNOWN, lower
from elman.tokens.tokenizer import Tokenizer
from elman.tokens.tokenizer_config import TokenizerConfig

Counts = NDArray[np.int64]

BPE_SAMPLE_BYTES = 16 << 20
"""Merges are learnt from at most so much text, spread evenly over the corpus: some 10 seconds."""
MAX_WORDS = 50_000
"""The largest vocabulary of words that is made unasked, but for text whose makers closed theirs."""


def train_tokenizer(paths: Paths, config: TokenizerConfig) -> tuple[Tokenizer, Counts]:
    """A tokenizer for the text in `paths`, and how often each of its ids occurs there.

    Ids of characters and words fall in frequency, after the special tokens: adaptive output layers
    rely on it. The counts of a bpe tokenizer, and of one read from a file, are those of a sample.
    """
    files = expand(paths)
    kind, vocab_size = config.kind, config.vocab_size
    if config.file is not None:
        return _with_sampled_counts(Tokenizer.load(config.file), files)
    if kind == "auto":
        choice = choose(files)
        kind, vocab_size = choice.kind, vocab_size or choice.vocab_size  # type: ignore[assignment]
    if kind == "char":
        return _characters(files, config)
    if kind == "byte":
        if config.lowercase:
            raise UsageError("a byte tokenizer cannot lower the case", "use char or bpe")
        return _with_sampled_counts(Tokenizer(all_bytes.build()), files)
    if kind == "bpe":
        return _byte_pairs(files, vocab_size, config.lowercase)
    return _words(files, kind, config)


def _characters(files: list[Path], config: TokenizerConfig) -> tuple[Tokenizer, Counts]:
    seen = np.zeros(characters.NUM_CODE_POINTS, np.int64)
    for block in corpus_blocks(files):
        text = lower(block.text) if config.lowercase else block.text
        numbers = np.bincount(characters.code_points(text))
        seen[: len(numbers)] += numbers
    frequent = np.argsort(-seen, kind="stable")[: np.count_nonzero(seen)]
    frequent = frequent[seen[frequent] >= max(1, config.min_count)]
    if config.vocab_size:
        frequent = frequent[: max(0, config.vocab_size - 2)]
    counts_V = np.concatenate([[0, seen.sum() - seen[frequent].sum()], seen[frequent]])
    backend = characters.build([chr(i) for i in frequent], lowercase=config.lowercase)
    return Tokenizer(backend), counts_V


def _words(files: list[Path], kind: str, config: TokenizerConfig) -> tuple[Tokenizer, Counts]:
    counts = count_words(files, kind, lowercase=config.lowercase)
    closed = kind == "pretokenized" and UNKNOWN in counts
    min_count = config.min_count or (1 if closed else 2)
    limit = config.vocab_size or (BoundedCounts.LIMIT if closed else MAX_WORDS)
    special = [BOUNDARY, UNKNOWN]
    chosen = [word for word in counts.falling(min_count) if word not in special][
        : max(0, limit - 2)
    ]
    known = [counts[word] for word in [BOUNDARY, *chosen]]
    counts_V = np.array([known[0], counts.num_tokens - sum(known), *known[1:]], np.int64)
    build = words.build if kind == "word" else pretokenized.build
    return Tokenizer(build(chosen, lowercase=config.lowercase)), counts_V


def _byte_pairs(files: list[Path], vocab_size: int, lowercase: bool) -> tuple[Tokenizer, Counts]:
    blocks, num_bytes = sample(files, BPE_SAMPLE_BYTES)
    size = vocab_size or fitting_vocab_size(num_bytes)
    if size < 257:
        raise UsageError(
            f"a bpe vocabulary of {size} is too small for the 256 bytes and {BOUNDARY}",
            "set tokenizer.vocab_size to 512 or more, or tokenizer.kind to byte",
        )
    lines = (line for block in blocks for line in block.text.splitlines(keepends=True))
    tokenizer = Tokenizer(bpe.train(lines, size, lowercase=lowercase))
    return tokenizer, _sampled_counts(tokenizer, blocks)


def _with_sampled_counts(tokenizer: Tokenizer, files: list[Path]) -> tuple[Tokenizer, Counts]:
    blocks, _ = sample(files, BPE_SAMPLE_BYTES)
    return tokenizer, _sampled_counts(tokenizer, blocks)


def _sampled_counts(tokenizer: Tokenizer, blocks: Sequence[Block]) -> Counts:
    counts_V = np.zeros(tokenizer.vocab_size, np.int64)
    for block in blocks:
        counts_V += np.bincount(tokenizer.encode(block.text), minlength=tokenizer.vocab_size)
    return counts_V
