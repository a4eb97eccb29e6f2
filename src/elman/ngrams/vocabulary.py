"""Make the tokenizer of a counted text's words without a Python string for each.

    numbered letters  ->  sorted by spelling  ->  by falling count: ids  ->  words as bytes
    words as bytes    ->  tokenizer.json, hashes, form, when they are asked for

Each result is the one that `pretokenized.build` of the same words leads to. The loops release the
GIL, so that the files are made while other threads count.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.base.threads import in_threads
from elman.ngrams.compiled import Scalar, compiled
from elman.tokens import pretokenized
from elman.tokens.form import Tally, form_of
from elman.tokens.kind import BOUNDARY, UNKNOWN
from elman.tokens.tokenizer import Tokenizer, hash_of, old_hash_of, spec_of
from elman.tokens.word_table import HEADER, LARGE, TableBackend, WordTable

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]

_PREFIX = 8
"""Bytes of a word that are sorted as one number."""
_TIES = 1 << 13
"""Words in one thread's piece of work."""
_ESCAPED = 6
"""Most bytes of JSON for a byte of a word: \\u001f."""
_SHORT = np.zeros(128, np.uint8)
_SHORT[np.frombuffer(b'"\\\b\f\n\r\t', np.uint8)] = np.frombuffer(b'"\\bfnrt', np.uint8)
"""The letter after the backslash for characters that have a short escape."""
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)


@dataclass(frozen=True)
class Spellings:
    """Words by number, as bytes."""

    letters: Bytes
    starts: Numbers
    """(words + 1,) where each begins in `letters`."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, number: int) -> bytes:
        return self.letters[self.starts[number] : self.starts[number + 1]].tobytes()

    def find(self, word: str) -> NDArray[np.int64]:
        """The numbers that have this spelling."""
        wanted = np.frombuffer(word.encode(), np.uint8)
        found = np.flatnonzero(np.diff(self.starts) == len(wanted))
        letters = self.letters[self.starts[found][:, None] + np.arange(len(wanted))]
        numbers: NDArray[np.int64] = found[(letters == wanted).all(axis=1)]
        return numbers

    def lines(self, numbers: Numbers) -> Bytes:
        """Join words, each with a line end."""
        sizes = self.starts[numbers + 1] - self.starts[numbers] if len(numbers) else numbers
        joined = np.empty(int(sizes.sum()) + len(numbers), np.uint8)
        _join(self.letters, self.starts, numbers, joined)
        return joined

    def by_spelling(self) -> Numbers:
        """Return the numbers in the order of their words' bytes, which must differ."""
        bits = len(self).bit_length()
        keys = np.empty(len(self), np.uint64)
        _first_letters(self.letters, self.starts, bits, keys)
        keys.sort()
        order = (keys & np.uint64((1 << bits) - 1)).astype(np.int64)
        cuts = np.flatnonzero(np.diff(keys >> np.uint64(bits)) != 0) + 1
        ends = np.concatenate([cuts, [len(order)]]) if len(order) else cuts
        # Pieces of whole runs of equal beginnings.
        pieces = np.unique(ends[np.searchsorted(ends, np.arange(_TIES, len(order), _TIES))])
        pieces = np.unique([0, *pieces.tolist(), len(order)])

        def sort(piece: tuple[int, int]) -> None:
            first, last = piece
            room = np.empty(last - first, np.int64)
            _sort_ties(self.letters, self.starts, bits, keys[first:last], order[first:last], room)

        in_threads(sort, pairwise(pieces.tolist()))
        return order


@dataclass(frozen=True)
class Words:
    """The words of a vocabulary, by falling count, then by spelling; special ones come first."""

    lines: Bytes
    """The words by id, each with a line end."""
    order: NDArray[np.int32]
    """The ids in the order of the words."""
    ids: NDArray[np.int32]
    """The id of each number of the text."""


def most_frequent(
    spellings: Spellings, counts: Numbers, min_count: int, limit: int | None
) -> Words:
    """Choose the words of a text whose number 0 is the line end."""
    special = [spellings.find(name).tolist() for name in (BOUNDARY, UNKNOWN)]
    is_word = counts >= min_count
    is_word[[0, *special[0], *special[1]]] = False
    by_spelling = spellings.by_spelling()
    by_spelling = by_spelling[is_word[by_spelling]]
    # One number holds the count and the place in the order: sorting is stable, and fast.
    bits = len(by_spelling).bit_length()
    top = int(counts.max(initial=0))
    keys = ((top - counts[by_spelling]) << bits) | np.arange(len(by_spelling))
    keys.sort()
    chosen = by_spelling[keys & ((1 << bits) - 1)][:limit]
    ids = np.full(len(spellings), 1, np.int32)
    ids[[0, *special[0]]] = 0
    ids[chosen] = np.arange(2, 2 + len(chosen), dtype=np.int32)
    front = np.frombuffer(f"{BOUNDARY}\n{UNKNOWN}\n".encode(), np.uint8)
    kept = by_spelling[ids[by_spelling] > 1]
    places = [bisect_left(kept, name.encode(), key=spellings.__getitem__)
              for name in (BOUNDARY, UNKNOWN)]  # fmt: skip
    order = np.insert(ids[kept], places, [0, 1]).astype(np.int32)
    return Words(np.concatenate([front, spellings.lines(chosen)]), order, ids)


def tokenizer_of(words: Words, *, lowercase: bool = False) -> Tokenizer:
    """Make the tokenizer of pre-tokenised text with these words."""
    header = _Header(words, lowercase)
    table = WordTable(header, words.lines.data, words.order)
    return Tokenizer(TableBackend(table, header.content))


def spellings_of(backend: Any) -> Spellings | None:
    """Return the words of a table by id; None if there is no table."""
    if not isinstance(backend, TableBackend):
        return None
    lines = np.frombuffer(backend.table.words, np.uint8)
    is_end = lines == 10
    ends = np.flatnonzero(is_end)
    starts = np.concatenate([[0], ends - np.arange(len(ends))])
    return Spellings(lines[~is_end], starts)


class _Header(Mapping[str, Any]):
    """What `WordTable` asks for, computed then."""

    def __init__(self, words: Words, lowercase: bool) -> None:
        self._words, self._lowercase = words, lowercase
        self._empty = pretokenized.build([], lowercase=lowercase)
        self._spec = spec_of(self._empty)

    def __len__(self) -> int:
        return len(HEADER)

    def __iter__(self) -> Iterator[str]:
        return iter(HEADER)

    def __getitem__(self, name: str) -> Any:
        if name not in HEADER:
            raise KeyError(name)
        return getattr(self, f"_{name}")

    @cached_property
    def _ends(self) -> Numbers:
        return np.flatnonzero(self._words.lines == 10)

    @cached_property
    def _old_hash(self) -> str:
        entries = self._json(self._words.order, b'["', b'", ', b"], ", ascii=True)
        joined = b"".join([b"[", entries[:-2], b"]"])
        return old_hash_of(pretokenized.Pretokenized.name, self._spec, joined)

    @cached_property
    def _hash(self) -> str:
        return hash_of(self._old_hash, self._spec)

    @cached_property
    def _form(self) -> dict[str, Any]:
        table = WordTable(self, self._words.lines.data, self._words.order)
        special = (BOUNDARY, UNKNOWN)
        name = pretokenized.Pretokenized.name
        return asdict(
            form_of(name, table, special, lowercases=self._lowercase, tallied=self._tallied)
        )

    def content(self) -> bytes:
        """The tokenizer.json: the words, inside what the library writes around them."""
        pretty = len(self._words.order) < LARGE
        around: str = self._empty.to_str(pretty=pretty)
        first = around.index(f'"{BOUNDARY}"')
        last = around.index("1", around.index(f'"{UNKNOWN}"', first))
        between = around[around.index("0", first) + 1 : around.index(f'"{UNKNOWN}"', first)]
        ids = np.arange(len(self._words.order), dtype=np.int32)
        entries = self._json(ids, b'"', b'": ' if pretty else b'":', between.encode(), ascii=False)[
            : -len(between)
        ]
        return b"".join([around[:first].encode(), entries, around[last + 1 :].encode(), b"\n"])

    def _json(self, ids: NDArray[np.int32], *marks: bytes, ascii: bool) -> memoryview:
        """Write words with their ids; the marks are before, between and after them."""
        size = _ESCAPED * len(self._words.lines) + len(ids) * (sum(map(len, marks)) + 10)
        text = np.empty(size, np.uint8)  # what is not written takes no memory
        parts = [np.frombuffer(mark, np.uint8) for mark in marks]
        used = _write_entries(self._words.lines, self._ends, ids, *parts, ascii, _SHORT, _HEX, text)
        return text[:used].data

    def _tallied(self, numbers: bool) -> tuple[Tally, Iterable[str]]:
        left = np.empty(len(self._ends), np.int64)
        cased, longer, attached, upper, num_left = _tally(
            self._words.lines, self._ends, numbers, left
        )
        words = Spellings(self._words.lines, np.concatenate([[0], self._ends + 1]))
        rest = words.lines(left[:num_left]).tobytes().decode().split("\n\n")
        return Tally(cased, longer, attached, upper == 0), rest[:-1]


@compiled
def _join(letters: Bytes, starts: Numbers, numbers: Numbers, joined: Bytes) -> None:
    at = 0
    for number in numbers:
        for i in range(starts[number], starts[number + 1]):
            joined[at] = letters[i]
            at += 1
        joined[at] = 10
        at += 1


@compiled
def _first_letters(letters: Bytes, starts: Numbers, bits: int, keys: NDArray[np.uint64]) -> None:
    """Pack the first bits of each word with its number."""
    for number in range(len(keys)):
        first, size = starts[number], starts[number + 1] - starts[number]
        key = np.uint64(0)
        for i in range(_PREFIX):
            key <<= np.uint64(8)
            if i < size:
                key |= np.uint64(letters[first + i])
        keys[number] = ((key >> np.uint64(bits)) << np.uint64(bits)) | np.uint64(number)


@compiled
def _is_before(letters: Bytes, starts: Numbers, one: Scalar, other: Scalar) -> bool:
    a, b = starts[one], starts[other]
    size, other_size = starts[one + 1] - a, starts[other + 1] - b
    for i in range(min(size, other_size)):
        if letters[a + i] != letters[b + i]:
            return bool(letters[a + i] < letters[b + i])
    return bool(size < other_size)


@compiled
def _sort_ties(
    letters: Bytes, starts: Numbers, bits: int, keys: NDArray[np.uint64], order: Numbers,
    room: Numbers,
) -> None:  # fmt: skip
    """Sort each run of words whose keys are equal but for the number, by merging."""
    shift = np.uint64(bits)
    first = 0
    while first < len(order):
        end = first + 1
        while end < len(order) and keys[end] >> shift == keys[first] >> shift:
            end += 1
        width = 1
        while width < end - first:
            for start in range(first, end, 2 * width):
                middle, stop = min(start + width, end), min(start + 2 * width, end)
                a, b = start, middle
                for out in range(start, stop):
                    if b == stop or (
                        a < middle and not _is_before(letters, starts, order[b], order[a])
                    ):
                        room[out] = order[a]
                        a += 1
                    else:
                        room[out] = order[b]
                        b += 1
            for i in range(first, end):
                order[i] = room[i]
            width *= 2
        first = end


@compiled
def _put_escape(code: Scalar, digits: Bytes, text: Bytes, at: Scalar) -> Scalar:
    text[at], text[at + 1] = 92, 117
    for i in range(4):
        text[at + 2 + i] = digits[(code >> (12 - 4 * i)) & 15]
    return at + 6


@compiled
def _write_entries(
    lines: Bytes, ends: Numbers, ids: NDArray[np.int32], before: Bytes, between: Bytes,
    after: Bytes, ascii: bool, short: Bytes, digits: Bytes, text: Bytes,
) -> int:  # fmt: skip
    """Write words with their ids as JSON, `ascii` as Python does by default; return the size."""
    at = 0
    for id in ids:
        for byte in before:
            text[at] = byte
            at += 1
        i = 0 if id == 0 else ends[id - 1] + 1
        while i < ends[id]:
            byte = np.int64(lines[i])
            if byte < 128:
                if short[byte] > 0:
                    text[at], text[at + 1] = 92, short[byte]
                    at += 2
                elif byte < 32 or (ascii and byte == 127):
                    at = _put_escape(byte, digits, text, at)
                else:
                    text[at] = byte
                    at += 1
                i += 1
            elif not ascii:
                text[at] = byte
                at += 1
                i += 1
            else:
                more = 1 if byte < 0xE0 else 2 if byte < 0xF0 else 3
                code = byte & (0x3F >> more)
                for j in range(more):
                    code = (code << 6) | (np.int64(lines[i + 1 + j]) & 0x3F)
                i += more + 1
                if code >= 0x10000:
                    at = _put_escape(0xD800 + ((code - 0x10000) >> 10), digits, text, at)
                    code = 0xDC00 + ((code - 0x10000) & 0x3FF)
                at = _put_escape(code, digits, text, at)
        for byte in between:
            text[at] = byte
            at += 1
        size, power = 1, np.int64(10)
        while power <= id:
            size += 1
            power *= 10
        left = np.int64(id)
        for place in range(size):
            text[at + size - 1 - place] = 48 + left % 10
            left //= 10
        at += size
        for byte in after:
            text[at] = byte
            at += 1
    return at


@compiled
def _tally(
    lines: Bytes, ends: Numbers, numbers: bool, left: Numbers
) -> tuple[Scalar, Scalar, Scalar, Scalar, Scalar]:
    """Go through words of ASCII as `form_of` does; list the others, and any that it has rules for.

    Return how many have letters, and of them are longer than one, end with a mark after a letter or
    digit, and have an upper-case letter; and how many are left.
    """
    num_cased, num_longer, num_upper, num_left = 0, 0, 0, 0
    start: Scalar = 0
    num_attached: Scalar = 0
    for id in range(len(ends)):
        end = ends[id]
        is_plain, is_cased, is_upper = True, False, False
        if end > start and (lines[start] == 60 or lines[start] == 45):  # < and -
            is_plain = False
        previous, last = np.uint8(0), np.uint8(0)
        for i in range(start, end):
            byte = lines[i]
            if byte >= 128 or (numbers and byte == 78):  # N
                is_plain = False
            is_upper |= 65 <= byte <= 90
            is_cased |= 97 <= byte <= 122
            previous, last = last, byte
        if not is_plain:
            left[num_left] = id
            num_left += 1
        elif is_cased or is_upper:
            num_cased += 1
            num_longer += end - start > 1
            num_upper += is_upper
            if last == 44 or last == 59 or last == 33 or last == 63:  # , ; ! ?
                num_attached += (
                    97 <= previous <= 122 or 65 <= previous <= 90 or 48 <= previous <= 57
                    or previous == 95
                )  # fmt: skip
        start = end + 1
    return num_cased, num_longer, num_attached, num_upper, num_left
