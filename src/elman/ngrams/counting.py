"""Count the n-grams of token ids into a sorted trie.

Sort the text positions by their token (counting sort). Each level then refines the groups of the
previous one: the positions of one k-gram are sorted by the token that follows. Groups stay
contiguous, so a piece of work is a range of whole groups. The elements of its larger groups are
packed into 64-bit keys (group, next token, place within the piece) that NumPy sorts with vector
instructions; small groups are sorted one by one. Pieces are independent and run in threads.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.base.memory import Consumed, release_compiler
from elman.base.threads import default_threads, in_threads
from elman.ngrams.compiled import Scalar, compiled
from elman.ngrams.trie import Array, CountTrie, Level

Ids = NDArray[Any]

# Elements in one piece of work: its keys fit in the L2 cache.
_PIECE_SIZE = 1 << 17
# Elements that take longer to sort than to begin a piece of work.
_LEAST_SIZE = 1 << 12
# Positions whose arrays take more than the compiler.
_LARGE = 1 << 22
# Largest group that is sorted by insertion.
_SMALL = 24


def count(
    ids: Ids, order: int, *, vocab_size: int, boundary_id: int, num_threads: int | None = None
) -> CountTrie:
    """Count all n-grams of `ids` up to length `order`, with suffix links.

    A boundary token is assumed before the text. Each boundary token in `ids` ends a line and begins
    the next.
    """
    text = _with_boundary(ids, boundary_id, np.uint16 if vocab_size <= 1 << 16 else np.int32)
    trie = count_starts(
        text, len(text), order,
        vocab_size=vocab_size, boundary_id=boundary_id, linked=True, num_threads=num_threads,
    )  # fmt: skip
    trie.levels[0].counts[boundary_id] -= 1  # the one in front ends no line
    return trie


def _with_boundary(ids: Ids, boundary_id: int, dtype: type[np.generic]) -> Ids:
    """Return `ids` with a boundary token before: not copied if it is there (`Stretches.ids`)."""
    whole = ids.base
    if (
        isinstance(whole, np.ndarray)
        and whole.dtype == ids.dtype == dtype
        and whole.shape == (len(ids) + 1,)
        and whole[1:].ctypes.data == ids.ctypes.data
        and whole[0] == boundary_id
    ):
        return whole
    text = np.empty(len(ids) + 1, dtype)
    text[0] = boundary_id
    text[1:] = ids
    return text


def count_starts(
    text: Ids,
    num_starts: int,
    order: int,
    *,
    vocab_size: int,
    boundary_id: int,
    linked: bool = False,
    num_threads: int | None = None,
) -> CountTrie:
    """Count the n-grams that begin at the first `num_starts` positions of a text.

    `linked` also computes suffix links, and requires that every position is counted.
    """
    starts, places = np.zeros(vocab_size + 1, np.int32), np.empty(num_starts, np.int32)
    sort_by_token(text[:num_starts], starts, places, num_threads)
    level = Level(np.arange(vocab_size, dtype=np.int32), np.diff(starts))
    groups = _Groups(text, places, level.counts.copy(), boundary_id, num_threads)
    groups.begin(starts)
    levels = [level]
    while len(levels) < order:
        levels.append(groups.refine(levels[-1], len(levels), linked, len(levels) + 1 == order))
    return CountTrie(levels, boundary_id)


_Piece = tuple[int, int, int, int]
"""A piece of work: its first group and the one after its last, and their first index and number in
`places`."""


@dataclass
class _Groups:
    """The positions of a text, grouped by the n-gram that begins there.

    The groups of a piece follow each other in `places`. They stay within the range of the piece
    that they were in, so refining works in place; positions without a following token leave a gap
    at its end.
    """

    text: Ids
    places: Array
    sizes: Array
    boundary_id: int
    num_threads: int | None

    def __post_init__(self) -> None:
        self.ngram_at = np.empty(0, np.int32)
        """The n-gram of the last length that begins at each position."""
        self.word_bits = len(self.sizes).bit_length()
        # Memory to use again: the system takes as long to hand out more as sorting does.
        self.found = np.empty(len(self.places), np.int32)
        """The last token of the new group at each index of `places`, ~token where one begins."""
        self.free: deque[NDArray[np.int64]] = deque()
        self.pieces: list[_Piece] = []

    def begin(self, starts: NDArray[Any]) -> None:
        """Cut the groups of single tokens into pieces of about as many positions, or with one
        larger group. `starts` is where each begins, and ends."""
        size = len(self.places)
        cuts = np.arange(0, size + 1, self._share(size), dtype=starts.dtype)
        firsts = np.unique(np.searchsorted(starts[:-1], cuts)).tolist()
        for first, end in pairwise([*firsts, len(self.sizes)]):
            base = int(starts[first])
            self.pieces.append((first, end, base, int(starts[end]) - base))

    def refine(self, parents: Level, length: int, linked: bool, last: bool) -> Level:
        """Split every group by the token at offset `length`; return the children of `parents`.

        `linked` links them; `last` releases what only refining them would need.
        """
        num_children = np.zeros(len(parents) + 1, np.int32)

        def split(piece: _Piece) -> tuple[int, int]:
            first, end, base, size = piece
            buffer = self._buffer(2 * size)
            keys, (before, following) = buffer[:size], buffer[size:].view(np.int32).reshape(2, -1)
            before, following = before[:size], following[:size]
            before[:] = self.places[base : base + size]
            place_bits = size.bit_length()
            groups = (
                self.sizes, parents.words, first, end, length, self.boundary_id, self.word_bits,
                place_bits,
            )  # fmt: skip
            keys = keys[: _pack(self.text, before, following, keys, *groups)]
            keys.sort()
            places = self.places[base : base + size]
            found = self.found[base : base + size]
            done = _split(keys, before, following, places, num_children, found, *groups)
            if len(buffer) <= 2 * _PIECE_SIZE:  # single tokens have much larger groups than others
                self.free.append(buffer)
            return done

        pieces = self.pieces
        done = in_threads(split, pieces, self.num_threads)
        if len(self.places) >= _LARGE:  # memory is fullest in what follows
            release_compiler()
        if last:
            self.free.clear()
        offsets = np.cumsum([0, *(num_groups for num_groups, _ in done)]).tolist()
        parents.first_child, total = num_children, offsets[-1]
        del self.sizes  # before more is allocated
        level = Level(np.empty(total, np.int32), np.empty(total, np.int32))
        self.sizes = level.counts
        if linked:
            level.suffix = level.words if length == 1 else np.empty(total, np.int32)
        links = self.ngram_at, level.suffix if length > 1 else self.ngram_at
        consumed = Consumed((self.found, self.places), len(self.places)) if last else None

        def gather(number: int) -> list[_Piece]:
            first, end, base, _ = pieces[number]
            num_groups, size = done[number]
            num_children[first + 1 : end + 1] += np.int32(offsets[number])
            some = slice(offsets[number], offsets[number] + num_groups)
            places, found = self.places[base : base + size], self.found[base : base + size]
            new = level.words[some], self.sizes[some]
            _gather(found, places, *new, links[0], links[1][some])
            if consumed is not None:
                after = pieces[number + 1][2] if number + 1 < len(pieces) else len(self.places)
                consumed.add(base, after)
                return []
            return self._cut(found[:num_groups], some.start, base)

        cuts = in_threads(gather, range(len(done)), self.num_threads)
        self.pieces = [piece for some in cuts for piece in some]
        if linked and not last:
            if length == 1:
                self.ngram_at = np.empty(len(self.text), np.int32)
            record = partial(_record, self.ngram_at, self.places, self.sizes)
            in_threads(record, self.pieces, self.num_threads)
        return level

    def _cut(self, ends: Array, first: int, base: int) -> list[_Piece]:
        """Cut the groups of a piece; `ends` is the last place of each in it."""
        if not len(ends):
            return []
        size = int(ends[-1]) + 1
        number = max(1, round(size / self._share(len(self.places))))
        goals = np.arange(1, number, dtype=np.int32) * np.int32(size // number)
        inner = np.unique(np.searchsorted(ends, goals)) + 1
        cuts = [0, *inner[inner < len(ends)].tolist(), len(ends)]
        starts = [0, *(ends[np.array(cuts[1:]) - 1] + 1).tolist()]
        return [
            (first + a, first + b, base + start, end - start)
            for (a, b), (start, end) in zip(pairwise(cuts), pairwise(starts), strict=True)
        ]

    def _share(self, size: int) -> int:
        """Return how much of a size is a piece of work: some for each thread."""
        threads = self.num_threads or default_threads()
        return min(_PIECE_SIZE, max(_LEAST_SIZE, size // (8 * threads)))

    def _buffer(self, size: int) -> NDArray[np.int64]:
        with suppress(IndexError):
            if len(found := self.free.pop()) >= size:
                return found
        return np.empty(max(size, 2 * _PIECE_SIZE), np.int64)


def sort_by_token(
    text: Ids, starts: NDArray[Any], places: Array, num_threads: int | None = None
) -> None:
    """Counting sort of the positions; fill `starts` with where those of each token begin.

    Each thread counts the tokens of a part of the text, and then moves its positions.
    """
    vocab_size = len(starts) - 1
    # Not so many parts that their counts take longer than the text.
    number = max(1, min(num_threads or default_threads(), len(text) // (4 * vocab_size + 1)))
    cuts = np.linspace(0, len(text), number + 1).astype(np.int64).tolist()
    counts_PV = np.zeros((number, vocab_size), starts.dtype)

    def count_tokens(part: int) -> None:
        _count_tokens(text[cuts[part] : cuts[part + 1]], counts_PV[part])

    def place(part: int) -> None:
        _place(text[cuts[part] : cuts[part + 1]], cuts[part], counts_PV[part], places)

    in_threads(count_tokens, range(number), num_threads)
    _turn_to_starts(counts_PV, starts)
    in_threads(place, range(number), num_threads)


@compiled
def _count_tokens(text: Ids, counts: Array) -> None:
    for token in text:
        counts[token] += 1


@compiled
def _turn_to_starts(counts_PV: Array, starts: Array) -> None:
    """Replace each part's count of a token by the index of its first position."""
    at = 0
    for token in range(counts_PV.shape[1]):
        starts[token] = at
        for part in range(counts_PV.shape[0]):
            number = counts_PV[part, token]
            counts_PV[part, token] = at
            at += number
    starts[len(starts) - 1] = at


@compiled
def _place(text: Ids, first: int, starts: Array, places: Array) -> None:
    for i in range(len(text)):
        places[starts[text[i]]] = first + i
        starts[text[i]] += 1


@compiled
def _pack(
    text: Ids, before: Array, following: Array, keys: NDArray[np.int64], sizes: Array,
    words: Array, first: int, end: int, length: int, boundary_id: int, word_bits: int,
    place_bits: int,
) -> int:  # fmt: skip
    """Read the tokens that follow the positions `before` of groups `first` to `end` - 1, or -1;
    pack those of groups that are not small."""
    # Random reads first, in a plain loop: the CPU overlaps the cache misses.
    for i in range(len(before)):
        place = before[i] + length
        following[i] = text[place] if place < len(text) else -1
    num_keys, stop = 0, np.int64(0)
    for group in range(first, end):
        start, stop = stop, stop + sizes[group]
        if sizes[group] <= _SMALL or (length > 1 and words[group] == boundary_id):
            continue
        prefix = (group - first) << word_bits
        for i in range(start, stop):
            if following[i] >= 0:
                keys[num_keys] = ((prefix | following[i]) << place_bits) | i
                num_keys += 1
    return num_keys


@compiled
def _split(
    keys: NDArray[np.int64], before: Array, following: Array, places: Array, num_children: Array,
    found: Array, sizes: Array, words: Array, first: int, end: int, length: int, boundary_id: int,
    word_bits: int, place_bits: int,
) -> tuple[Scalar, Scalar]:  # fmt: skip
    """Find the new groups, and reorder the positions to match; `keys` are sorted.

    `num_children` gets for each group the number of new groups up to it. Return the number of
    groups, and of positions.
    """
    at, out, num_used, stop = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    word_mask, place_mask = (1 << word_bits) - 1, (1 << place_bits) - 1
    small = np.empty(_SMALL, np.int64)
    for group in range(first, end):
        start, stop = stop, stop + sizes[group]
        num_children[group + 1] = out
        if length > 1 and words[group] == boundary_id:
            continue
        number, few = np.int64(0), sizes[group] <= _SMALL
        if few:
            for i in range(start, stop):
                if following[i] >= 0:
                    key = (np.int64(following[i]) << place_bits) | i
                    slot = number
                    while slot > 0 and small[slot - 1] > key:
                        small[slot] = small[slot - 1]
                        slot -= 1
                    small[slot] = key
                    number += 1
        else:
            beyond = (np.int64(group - first + 1) << word_bits) << place_bits
            while num_used + number < len(keys) and keys[num_used + number] < beyond:
                number += 1
        previous = np.int64(-1)
        for i in range(number):
            key = small[i] if few else keys[num_used + i]
            word = (key >> place_bits) & word_mask
            places[at] = before[key & place_mask]
            found[at] = word
            if word != previous:
                previous = word
                found[at] = ~word
                out += 1
            at += 1
        num_used += 0 if few else number
        num_children[group + 1] = out
    return out, at


@compiled
def _gather(
    found: Array, places: Array, words: Array, sizes: Array, ngram_at: Array, suffix: Array
) -> None:
    """Move a piece's groups to their final indices, and link each n-gram to the one that begins at
    the next text position. `found` gets the last index of each group."""
    group = -1
    for at in range(len(found)):  # without a branch: which tokens begin a group is unpredictable
        token = found[at]
        group += token < 0
        words[group] = token ^ (token >> 31)
        found[group] = at
    previous = -1
    for i in range(group + 1):
        sizes[i] = found[i] - previous
        previous = found[i]
    if len(suffix):
        # Random reads in a plain loop: the CPU overlaps the cache misses.
        for i in range(group + 1):
            suffix[i] = ngram_at[places[found[i]] + 1]


@compiled
def _record(ngram_at: Array, places: Array, sizes: Array, piece: tuple[Scalar, ...]) -> None:
    first, end, place, _ = piece
    for group in range(first, end):
        for _ in range(sizes[group]):
            ngram_at[places[place]] = group
            place += 1
