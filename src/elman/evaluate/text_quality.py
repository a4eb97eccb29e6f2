"""How good and how diverse is a generated text, without references?

    surprisal    of the text under another model: low for text that the other model expects
    distinct     the share of different n-grams among all of its own (Li and others, 2016)
    repeated     the share of n-grams that also occur shortly before (Welleck and others, 2020)
    copied       the share of n-grams that occur in the training text (McCoy and others, 2023), and
                 the longest stretch of the text that does

Tokens are words between white space, or characters; a line end is a token. An n-gram is one 64-bit
hash, so a comparison can be wrong with a probability of about 1e-5 for a million tokens against a
gigabyte. The training text is read in blocks: memory grows with the generated text only, by about
300 bytes per token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from elman.base.errors import ElmanError, UsageError, nearest
from elman.tokens.kind import BOUNDARY, words_of

Unit = Literal["word", "char"]
ORDERS: dict[str, tuple[int, ...]] = {"word": (1, 2, 3, 4, 8), "char": (1, 2, 4, 8, 16, 32)}
"""Lengths of n-grams that are reported, by unit."""
REPEATED_ORDER = {"word": 4, "char": 16}
"""The length of n-grams whose repetitions are counted."""
REPEATED_WITHIN = 512
"""How many tokens back a repetition is looked for."""
LONGEST_QUOTE = 1000
"""Characters shown of the longest copied stretch."""
_CANDIDATES = 7
"""Lengths tried at a time in the search for the longest copied stretch."""

Hashes = NDArray[np.uint64]
Blocks = Callable[[], Iterable[str]]


@dataclass(frozen=True, kw_only=True)
class TextQuality:
    """Measures of a generated text; shares are from 0 to 1."""

    unit: str
    """What a token is here: a word or a char."""
    tokens: int
    """Number of tokens, line ends included."""
    characters: int
    """Number of characters."""
    nats_per_token: float | None = None
    """Mean surprisal of a token of the other model; None without one."""
    nats_per_character: float | None = None
    """Surprisal of the whole text divided by its characters: comparable between models."""
    unknown: float | None = None
    """The share of tokens that the other model does not know, scored as its unknown token."""
    reads_as: str = ""
    """How the other model changed the text to the form of its training text; empty: not at all."""
    distinct: dict[int, float] = field(default_factory=dict)
    """By length of n-grams, different ones divided by all. Falls with the length of the text."""
    repeated: float | None = None
    """The share of n-grams of `repeated_order` tokens that occur in the 512 tokens before, too."""
    repeated_order: int
    copied: dict[int, float] | None = None
    """By length of n-grams, the share that occurs in the training text; None without one."""
    longest_copied: int | None = None
    """Tokens of the longest stretch that occurs in the training text."""
    longest_copied_text: str | None = None
    """The stretch, at most its first 1,000 characters."""


def check_unit(unit: str) -> None:
    if unit not in get_args(Unit):
        raise UsageError(f"unit cannot be '{unit}'", nearest(unit, get_args(Unit)))


def text_quality(
    text: Iterable[str], *, unit: str = "word", against: Blocks | None = None, **scores: Any
) -> TextQuality:
    """Measure a text, given in blocks.

    `against` returns the blocks of the training text each time it is called; blocks end between
    words. `scores` are the fields that another model fills in.
    """
    check_unit(unit)
    blocks = list(text)
    tokens = np.concatenate([np.zeros(0, np.uint64), *(_tokens(block, unit) for block in blocks)])
    if not len(tokens):
        raise ElmanError("the text is empty", "generate some text first")
    lengths = [n for n in ORDERS[unit] if n <= len(tokens)]
    found: dict[str, Any] = {}
    if against is not None:
        parts = _Parts(tokens)
        parts.look_for([*lengths, *_powers(len(tokens))], _streams(against, unit))
        while candidates := parts.candidates():
            parts.look_for(candidates, _streams(against, unit))
        start, length = parts.longest()
        quoted = _quote(blocks, unit, start, length)
        found = {
            "copied": {n: float(parts.marks[n].mean()) for n in lengths},
            "longest_copied": length,
            "longest_copied_text": quoted[:LONGEST_QUOTE],
        }
    return TextQuality(
        unit=unit,
        tokens=len(tokens),
        characters=sum(map(len, blocks)),
        distinct={n: len(np.unique(hashes)) / len(hashes) for n, hashes in ngrams(tokens, lengths)},
        repeated=_repeated(dict(ngrams(tokens, [REPEATED_ORDER[unit]]))[REPEATED_ORDER[unit]]),
        repeated_order=REPEATED_ORDER[unit],
        **found,
        **scores,
    )


def ngrams(tokens: Hashes, lengths: Iterable[int]) -> Iterator[tuple[int, Hashes]]:
    """For each length n, in increasing order, yield it and a hash of the n-gram that begins at each
    token; they are fewer by n - 1 than tokens."""
    hashes, length = tokens, 1
    for n in lengths:
        while 2 * length <= n <= len(tokens):
            hashes, length = _joined(hashes[:-length], hashes[length:]), 2 * length
        if n > len(tokens):
            yield n, tokens[:0]
        elif n == length:
            yield n, hashes
        else:  # the first and the last `length` tokens, which overlap, determine the n-gram
            yield n, _joined(hashes[: len(tokens) - n + 1], hashes[n - length :])


def _tokens(text: str, unit: str) -> Hashes:
    if unit == "char":
        return _mixed(np.frombuffer(text.encode("utf-32-le"), np.uint32).astype(np.uint64))
    words = words_of(text)
    return np.fromiter(map(hash, words), np.int64, len(words)).astype(np.uint64)


def _joined(left: Hashes, right: Hashes) -> Hashes:
    return _mixed(left * np.uint64(0x9E3779B97F4A7C15) + right)


def _mixed(values: Hashes) -> Hashes:
    """Mix the bits (Steele, Lea and Flood: SplitMix)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _repeated(hashes: Hashes) -> float | None:
    """The share of n-grams that also begin in the `REPEATED_WITHIN` tokens before."""
    if not len(hashes):
        return None
    order = np.argsort(hashes, kind="stable")
    same = np.diff(hashes[order]) == 0
    return float((same & (np.diff(order) <= REPEATED_WITHIN)).sum() / len(hashes))


def _powers(most: int) -> list[int]:
    return [1 << k for k in range(most.bit_length())]


def _streams(blocks: Blocks, unit: str) -> Iterator[Hashes]:
    return (_tokens(block, unit) for block in blocks())


def _quote(blocks: Sequence[str], unit: str, start: int, length: int) -> str:
    if unit == "char":
        return "".join(blocks)[start : start + length]
    words = [word for block in blocks for word in words_of(block)][start : start + length]
    return " ".join(words).replace(BOUNDARY, "\n")


class _Parts:
    """The n-grams of a text, and which of them occur in another text."""

    def __init__(self, tokens: Hashes) -> None:
        self.tokens = tokens
        self.marks: dict[int, NDArray[np.bool_]] = {}
        """By length, whether the n-gram that begins at each token was found."""

    def look_for(self, lengths: Iterable[int], stream: Iterable[Hashes]) -> None:
        """Mark the n-grams of these lengths that occur in a stream of blocks of tokens."""
        wanted = sorted(set(lengths))
        tables, rows_of, found = {}, {}, {}
        for n, own in ngrams(self.tokens, wanted):
            tables[n], rows_of[n] = np.unique(own, return_inverse=True)
            found[n] = np.zeros(len(tables[n]), np.bool_)
        before = self.tokens[:0]
        for block in stream:
            read = np.concatenate([before, block])
            # An n-gram can only be found where a shorter one was: few places are left soon.
            places = np.arange(len(read))
            for n, all_hashes in ngrams(read, wanted):
                places = places[places <= len(read) - n]
                if not len(places):
                    break
                hashes = all_hashes[places]
                rows = np.searchsorted(tables[n], hashes)
                rows[rows == len(tables[n])] = 0
                hits = tables[n][rows] == hashes
                found[n][rows[hits]] = True
                places = places[hits]
            before = read[max(0, len(read) - wanted[-1] + 1) :]
        self.marks |= {n: found[n][rows_of[n]] for n in wanted}

    def candidates(self) -> list[int]:
        """Lengths to look for next, to find the longest stretch; none if it is known."""
        low = max((n for n, marks in self.marks.items() if marks.any()), default=0)
        high = min((n for n in self.marks if n > low), default=len(self.tokens) + 1)
        between = np.linspace(low, high, _CANDIDATES + 2).round().astype(int)[1:-1]
        return sorted({int(n) for n in between if low < n < high})

    def longest(self) -> tuple[int, int]:
        """The first token and the length of the longest stretch that was found."""
        length = max((n for n, marks in self.marks.items() if marks.any()), default=0)
        return (int(self.marks[length].argmax()), length) if length else (0, 0)
