"""Choose a tokenizer by looking at the text."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from elman.text.sources import Paths, expand, sample
from elman.tokens.kind import UNKNOWN

SAMPLE_BYTES = 4 << 20

# In smaller texts words and word pieces are too rare, and characters give the better model.
SMALL_TEXT_BYTES = 8 << 20
SMALLEST_BPE, LARGEST_BPE = 1 << 12, 1 << 15

_MARK = re.compile(r"(\s?)[.,!?;:](?=\s)")


@dataclass(frozen=True, kw_only=True)
class TokenizerChoice:
    """The kind of tokenizer that suits a text, and why."""

    kind: str
    vocab_size: int
    """For bpe, the size to reach; 0 for kinds that take their size from the text."""
    reason: str
    """A phrase for the user."""
    num_bytes: int
    """The size of the text."""
    unknown_share: float
    """Fraction of the words in the sample that are <unk>."""
    spaced_marks_share: float
    """Fraction of the punctuation marks in the sample with a space before them."""


def choose(paths: Paths) -> TokenizerChoice:
    """Choose for the text in files, from a sample spread evenly over them."""
    blocks, num_bytes = sample(expand(paths), SAMPLE_BYTES)
    return choose_for([block.text for block in blocks], num_bytes)


def choose_for(texts: Sequence[str], num_bytes: int) -> TokenizerChoice:
    """Choose for a text of `num_bytes` bytes of which `texts` are samples."""
    words = [word for text in texts for word in text.split()]
    unknown_share = words.count(UNKNOWN) / max(1, len(words))
    marks = [match.group(1) for text in texts for match in _MARK.finditer(text)]
    spaced_share = sum(map(bool, marks)) / max(1, len(marks))
    vocab_size = 0
    if unknown_share > 1e-4:
        kind = "pretokenized"
        reason = f"the text contains {UNKNOWN}, so it is already tokenized"
    elif spaced_share > 0.9 and len(marks) >= 20:
        kind = "pretokenized"
        reason = f"{spaced_share:.0%} of punctuation follows a space, so it is already tokenized"
    elif num_bytes < SMALL_TEXT_BYTES:
        kind = "char"
        reason = f"small text ({_size(num_bytes)}): using characters"
    else:
        kind = "bpe"
        vocab_size = fitting_vocab_size(num_bytes)
        reason = f"{_size(num_bytes)} of text: using {vocab_size:,} word pieces"
    return TokenizerChoice(
        kind=kind,
        vocab_size=vocab_size,
        reason=reason,
        num_bytes=num_bytes,
        unknown_share=unknown_share,
        spaced_marks_share=spaced_share,
    )


def fitting_vocab_size(num_bytes: int) -> int:
    """Return a bpe vocabulary size: a power of two that grows with the root of the text size."""
    root = math.sqrt(max(num_bytes, SMALL_TEXT_BYTES) / SMALL_TEXT_BYTES)
    return min(LARGEST_BPE, SMALLEST_BPE << round(math.log2(root)))


def _size(num_bytes: int) -> str:
    if num_bytes < 1_000:
        return f"{num_bytes} bytes"
    power = 1 if num_bytes < 10**6 else 2 if num_bytes < 10**9 else 3
    return f"{num_bytes / 1000**power:.3g} {'kMG'[power - 1]}B"
