"""The table of characters of a SentencePiece model, as normalizers of a tokenizer.json.

SentencePiece goes through a text from left to right and rewrites the longest sequence of characters
that its table has. `Precompiled` of Hugging Face rewrites whole graphemes, by their shortest match.
So:

1. `_BLOCK` is put after each sequence of the table, and elsewhere before each character that could
   join the one before it.
2. `_APART` makes every character a grapheme, so that `Precompiled` rewrites each by itself.
3. NFC composes what is not blocked: what a sequence becomes is the composition of what its
   characters become. For the few sequences of which that is not so, there is a step each.

The separators are escaped where the text has them.
"""

from __future__ import annotations

import struct
import unicodedata
from collections.abc import Iterable, Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, normalizers

# Characters that may be part of a grapheme with another one.
_JOINING = (
    "\\p{M}\u200c\u200d\uff9e\uff9f\U0001f3fb-\U0001f3ff\u0e33\u0eb3\u1100-\u11ff\ua960-\ua97c"
    "\ud7b0-\ud7fb\U0001f1e6-\U0001f1ff\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\u0d4e\U000110bd"
    "\U000110cd\U000111c2\U000111c3\U0001193f\U00011941\U00011a3a\U00011a84-\U00011a89\U00011d46"
    "\U00011f02"
)
ISOLATED = rf"(?!\A)(?!\z)(?:(?<=[{_JOINING}])|(?=[{_JOINING}]))"
_APART, _BLOCK, _ESCAPE = "\ufff0", "\ufff1", "\ufff2"
_ESCAPED = {_ESCAPE: "\ufff5", _APART: "\ufff3", _BLOCK: "\ufff4"}
STANDARD = ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf")
"""The tables that come with SentencePiece."""
_MOST_KEYS = 1 << 22
"""Sequences of one length, far more than any table has: a damaged one may have a cycle."""
_LONGEST_KEY = 64
"""Limit on the bytes of a sequence: a damaged table may have a cycle."""


@lru_cache(maxsize=4)
def rewriting(table: bytes, name: str) -> tuple[normalizers.Normalizer, ...] | None:
    """The steps that rewrite text by the table of this name; None if there are none.

    Reading a table takes seconds, and most models have the same one.
    """
    replace = normalizers.Replace
    rules = read_rules(table)
    own = uncomposed(rules)
    if own and name not in STANDARD:
        return None  # its sequences may overlap, and one step each would not be exact
    escape = [replace(one, _ESCAPE + other) for one, other in _ESCAPED.items()]
    restore = [replace(_ESCAPE + other, one) for one, other in _ESCAPED.items()]
    sequences = [key for key in rules if len(key) > 1]
    by_value: dict[str, list[str]] = {}
    for key in own:
        by_value.setdefault(rules[key], []).append(key)
    steps = [
        replace(Regex(_alternatives(keys)), value)
        for value, keys in sorted(by_value.items(), key=lambda one: -max(map(len, one[1])))
    ]
    joining = [key for key, value in rules.items() if len(key) == 1 and _joins(value)]
    later = f"[{_JOINING}{_ranges({*joining, *(key[1] for key in sequences)})}]"
    ends = f"{_alternatives(sequences)}\\K|" if sequences else ""
    return (
        *escape,
        *steps,
        replace(Regex(f"(?=.{later})(?:{ends}.\\K)"), _BLOCK),
        replace(Regex(ISOLATED), _APART),
        normalizers.Precompiled(table),
        replace(_APART, ""),
        normalizers.NFC(),
        replace(_BLOCK, ""),
        *restore[::-1],
    )


def uncomposed(rules: Mapping[str, str]) -> list[str]:
    """The sequences that become something else than the composition of their characters."""

    compose = normalizers.NFC().normalize_str

    def composed(key: str) -> str:
        return compose("".join(rules.get(c, c) for c in key))

    return [key for key, value in rules.items() if len(key) > 1 and composed(key) != value]


def read_rules(table: bytes) -> dict[str, str]:
    """The sequences of characters of a compiled table, and what they become.

    It is a double-array trie over UTF-8 (Darts-clone), then texts that end with a zero byte.
    """
    (size,) = struct.unpack_from("<I", table)
    units = np.frombuffer(table, "<u4", size // 4, 4).astype(np.int64)
    texts = table[4 + size :]
    bytes_ = np.arange(1, 256)
    found: dict[str, str] = {}
    places, keys = np.zeros(1, np.int64), [b""]
    for _ in range(_LONGEST_KEY):
        next_places, next_keys = [], []
        for start in range(0, len(places), 4096):
            some = places[start : start + 4096]
            children = (some ^ _offsets(units[some]))[:, None] ^ bytes_
            inside = children < len(units)
            labels = units[np.where(inside, children, 0)] & 0x800000FF
            rows, columns = np.nonzero(inside & (labels == bytes_))
            next_places.append(children[rows, columns])
            next_keys += [
                keys[start + row] + bytes([column + 1])
                for row, column in zip(rows.tolist(), columns.tolist(), strict=True)
            ]
        places, keys = np.concatenate(next_places), next_keys
        if not keys:
            return found
        if len(keys) > _MOST_KEYS:
            raise ValueError("its table of characters has a cycle")
        leaves = np.nonzero(units[places] >> 8 & 1)[0]
        at = places[leaves]
        values = units[at ^ _offsets(units[at])] & 0x7FFFFFFF
        for leaf, value in zip(leaves.tolist(), values.tolist(), strict=True):
            found[keys[leaf].decode()] = texts[value : texts.index(b"\0", value)].decode()
    raise ValueError("its table of characters has no end")


def _offsets(units: NDArray[np.int64]) -> NDArray[np.int64]:
    return (units >> 10) << ((units & 512) >> 6)


def _joins(value: str) -> bool:
    """Whether a text may be composed with a character before it."""
    first = value[:1]
    if not first:
        return False
    return unicodedata.category(first)[0] == "M" or "\u1160" <= first <= "\u11ff"


def _alternatives(sequences: Iterable[str]) -> str:
    """A regular expression for the longest of these sequences.

    First characters that go on alike share a class: the 205,000 ways to spell a syllable of Hangul
    are one alternative.
    """
    rest_of: dict[str, set[str]] = {}
    ends = False
    for text in sequences:
        if text:
            rest_of.setdefault(text[0], set()).add(text[1:])
        else:
            ends = True
    firsts_of: dict[frozenset[str], list[str]] = {}
    for first, rest in rest_of.items():
        firsts_of.setdefault(frozenset(rest), []).append(first)
    parts = [
        f"[{_ranges(firsts)}]" + (_alternatives(rest) if rest != {""} else "")
        for rest, firsts in firsts_of.items()
    ]
    return f"(?:{'|'.join(parts)}){'?' if ends else ''}"


def _ranges(characters: Iterable[str]) -> str:
    """Characters as the inside of a class."""
    codes = sorted(map(ord, set(characters)))
    parts: list[list[int]] = []
    for code in codes:
        if parts and parts[-1][1] == code - 1:
            parts[-1][1] = code
        else:
            parts.append([code, code])
    return "".join(f"\\x{{{low:x}}}-\\x{{{high:x}}}" for low, high in parts)
