"""Choosing a tokenizer by looking at the text."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from elman.text.sources import Paths, expand, sample
from elman.tokens.kind import UNKNOWN

SAMPLE_BYTES = 4 << 20

# Below this, words and word pieces are too rare to be learnt well, and characters give the better
# model.
SMALL_TEXT_BYTES = 8 << 20
SMALLEST_BPE, LARGEST_BPE = 1 << 12, 1 << 15

_MARK = re.compile(r"(\s?)[.,!?;:](?=\s)")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A kind of tokenizer, and why it suits the text."""

    kind: str
    vocab_size: int
    """For bpe, the size to reach; 0 for kinds that take their size from the text."""
    reason: str
    """A sentence for the user."""
    num_bytes: int
    """The size of the text."""
    unknown_share: float
    """Which part of the words in the sample is <unk>."""
    spaced_marks_share: float
    """Before which part of the punctuation marks in the sample a space stands."""


def choose(paths: Paths) -> Choice:
    """Choose for the text in files, from a sample spread evenly over them."""
    blocks, num_bytes = sample(expand(paths), SAMPLE_BYTES)
    return choose_for([block.text for block in blocks], num_bytes)


def choose_for(texts: Sequence[str], num_bytes: int) -> Choice:
    """Choose for a text of `num_bytes` bytes of which `texts` are samples."""
    words = [word for text in texts for word in text.split()]
    unknown_share = words.count(UNKNOWN) / max(1, len(words))
    marks = [match.group(1) for text in texts for match in _MARK.finditer(text)]
    spaced_share = sum(map(bool, marks)) / max(1, len(marks))
    vocab_size = 0
    if unknown_share > 1e-4:
        kind = "pretokenized"
        reason = f"{UNKNOWN} stands in the text, so it is pre-tokenised and is read word by word"
    elif spaced_share > 0.9 and len(marks) >= 20:
        kind = "pretokenized"
        reason = (
            f"spaces stand before {spaced_share:.0%} of its punctuation, "
            "so it is pre-tokenised and is read word by word"
        )
    elif num_bytes < SMALL_TEXT_BYTES:
        kind = "char"
        reason = f"{_size(num_bytes)} is little text, from which characters are learnt best"
    else:
        kind = "bpe"
        vocab_size = fitting_vocab_size(num_bytes)
        reason = f"{_size(num_bytes)} is enough text for {vocab_size:,} word pieces"
    return Choice(
        kind=kind,
        vocab_size=vocab_size,
        reason=reason,
        num_bytes=num_bytes,
        unknown_share=unknown_share,
        spaced_marks_share=spaced_share,
    )


def fitting_vocab_size(num_bytes: int) -> int:
    """A number of word pieces for so many bytes: a power of two that grows as their root."""
    root = math.sqrt(max(num_bytes, SMALL_TEXT_BYTES) / SMALL_TEXT_BYTES)
    return min(LARGEST_BPE, SMALLEST_BPE << round(math.log2(root)))


def _size(num_bytes: int) -> str:
    if num_bytes < 1_000:
        return f"{num_bytes} bytes"
    power = 1 if num_bytes < 10**6 else 2 if num_bytes < 10**9 else 3
    return f"{num_bytes / 1000**power:.3g} {'kMG'[power - 1]}B"
