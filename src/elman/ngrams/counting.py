"""Count the n-grams of token ids into a sorted trie.

Sort the text positions by their token (counting sort). Each level then refines the groups of the
previous one: the positions of one k-gram are sorted by the token that follows. Groups stay
contiguous, so a piece of work is a range of whole groups. The elements of its larger groups are
packed into 64-bit keys (group, next token, place within the piece) that NumPy sorts with vector
instructions; small groups are sorted one by one. Pieces are independent and run in threads.

With suffix links, the token after a k-gram need not be looked up in the text: the k-gram at the
next position ends with it. So the next level reads only the number of the k-gram at each position.
This number is also the link. The k-grams that may follow one are numbered in the order of their
last tokens, so sorting by number sorts by token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.base.memory import Consumed, give_back, release_compiler
from elman.base.threads import default_threads, in_threads
from elman.ngrams.compiled import Scalar, compiled, inlined
from elman.ngrams.trie import Array, CountTrie, Level

Ids = NDArray[Any]

# Elements in one piece of work: its keys fit in the L2 cache.
_PIECE_SIZE = 1 << 17
# Elements that take longer to sort than to begin a piece of work.
_LEAST_SIZE = 1 << 12
# Largest group that is sorted by insertion.
_SMALL = 24
_EMPTY = np.empty(0, np.int32)


def count(
    ids: Ids,
    order: int,
    *,
    vocab_size: int,
    boundary_id: int,
    num_threads: int | None = None,
    release: Callable[[], object] | None = None,
) -> CountTrie:
    """Count all n-grams of `ids` up to length `order`, with suffix links.

    A boundary token is assumed before the text. Each boundary token in `ids` ends a line and begins
    the next. Without `release` the ids are kept; with it they may be overwritten, and it is called
    before.
    """
    text = _with_boundary(ids, boundary_id)
    is_free = release is not None or not np.may_share_memory(text, ids)
    trie = count_starts(
        text, len(text), order,
        vocab_size=vocab_size, boundary_id=boundary_id, num_threads=num_threads, release=release,
        ngram_at=text if is_free else np.empty(len(text), np.int32),
    )  # fmt: skip
    trie.levels[0].counts[boundary_id] -= 1  # the one in front ends no line
    return trie


def _with_boundary(ids: Ids, boundary_id: int) -> Array:
    """Return `ids` with a boundary token before: not copied if it is there (`Stretches.ids`)."""
    whole = ids.base
    if (
        isinstance(whole, np.ndarray)
        and whole.dtype == ids.dtype == np.int32
        and whole.shape == (len(ids) + 1,)
        and whole[1:].ctypes.data == ids.ctypes.data
        and whole[0] == boundary_id
    ):
        return whole
    text = np.empty(len(ids) + 1, np.int32)
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
    num_threads: int | None = None,
    ngram_at: Array = _EMPTY,
    release: Callable[[], object] | None = None,
) -> CountTrie:
    """Count the n-grams that begin at the first `num_starts` positions of a text.

    With `ngram_at`, memory for a number at each position, also compute suffix links. This requires
    that every position is counted. It can be the text itself, which is overwritten after `release`.
    """
    starts, places = np.zeros(vocab_size + 1, np.int32), np.empty(num_starts, np.int32)
    sort_by_token(text[:num_starts], starts, places, num_threads)
    level = Level(np.arange(vocab_size, dtype=np.int32), np.diff(starts))
    groups = _Groups(text, places, level.counts.copy(), boundary_id, num_threads, ngram_at, release)
    groups.begin(starts)
    levels = [level]
    while len(levels) < order:
        levels.append(groups.refine(levels, last=len(levels) + 1 == order))
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
    ngram_at: Array
    """The n-gram of the last length that begins at each position; empty without links."""
    release: Callable[[], object] | None
    """Called before `ngram_at` is written to."""

    def __post_init__(self) -> None:
        self.word_bits = len(self.sizes).bit_length()
        # Memory to use again: the system takes as long to hand out more as sorting does.
        self.found = np.empty(len(self.places), np.int32)
        """The last token of the new group at each index of `places`, or its link; ~token where a
        group begins."""
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

    def refine(self, levels: list[Level], *, last: bool) -> Level:
        """Split every group by the next token; return the n-grams of the next length.

        `last` releases what only refining them would need.
        """
        parents, length, linked = levels[-1], len(levels), len(self.ngram_at) > 0
        num_children = np.zeros(len(parents) + 1, np.int32)
        # What follows a position: the next token, or with links the n-gram that ends with it. The
        # n-grams that may follow a group begin at `first_child` of its suffix.
        source, offset, suffix, first_child = self.text, length, _EMPTY, _EMPTY
        if linked and length > 1:
            source, offset = self.ngram_at, 1
            suffix, first_child = parents.suffix, levels[-2].first_child
        reading = source, offset, len(self.text) - length + offset
        pieces = self.pieces
        bases = [base for _, _, base, _ in pieces] + [len(self.places)]
        consumed = Consumed(self.places) if last else None

        def split(number: int) -> tuple[int, int]:
            first, end, base, size = pieces[number]
            buffer = self._buffer(2 * size)
            keys, (before, following) = buffer[:size], buffer[size:].view(np.int32).reshape(2, -1)
            before, following = before[:size], following[:size]
            places = self.places[base : base + size]
            before[:] = places
            if consumed is not None:
                consumed.add(*bases[number : number + 2])
                places = _EMPTY
            groups = (
                self.sizes, parents.words, suffix, first_child, first, end, length,
                self.boundary_id, self.word_bits, size.bit_length(),
            )  # fmt: skip
            keys = keys[: _pack(*reading, before, following, keys, *groups)]
            keys.sort()
            found = self.found[base : base + size]
            small = np.empty(_SMALL, np.int64)
            done = _split(keys, small, before, following, places, num_children, found, *groups)
            if len(buffer) <= 2 * _PIECE_SIZE:  # single tokens have much larger groups than others
                self.free.append(buffer)
            return done

        done = in_threads(split, range(len(pieces)), self.num_threads)
        release_compiler(beside=len(self.places))  # memory is fullest in what follows
        if last:
            self.free.clear()
            consumed = Consumed(self.found)
            if linked and length > 1:
                give_back(self.ngram_at)
        offsets = np.cumsum([0, *(num_groups for num_groups, _ in done)]).tolist()
        parents.first_child, total = num_children, offsets[-1]
        del self.sizes  # before more is allocated
        level = Level(np.empty(total, np.int32), np.empty(total, np.int32))
        self.sizes = level.counts
        if linked:
            level.suffix = level.words if length == 1 else np.empty(total, np.int32)
        links = _EMPTY if length == 1 else level.suffix

        def gather(number: int) -> list[_Piece]:
            first, end, base, _ = pieces[number]
            num_groups, size = done[number]
            num_children[first + 1 : end + 1] += np.int32(offsets[number])
            some = slice(offsets[number], offsets[number] + num_groups)
            found = self.found[base : base + size]
            _gather(found, level.words[some], self.sizes[some], links[some], parents.words)
            if consumed is not None:
                consumed.add(*bases[number : number + 2])
                return []
            return self._cut(found[:num_groups], some.start, base)

        cuts = in_threads(gather, range(len(done)), self.num_threads)
        self.pieces = [piece for some in cuts for piece in some]
        if linked and not last:
            if length == 1 and self.release is not None:
                self.release()
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
    source: Ids, offset: int, stop: int, before: Array, following: Array,
    keys: NDArray[np.int64], sizes: Array, words: Array, suffix: Array, first_child: Array,
    first: int, end: int, length: int, boundary_id: int, word_bits: int, place_bits: int,
) -> int:  # fmt: skip
    """Read what follows the positions `before` of groups `first` to `end` - 1, or -1; pack that of
    groups that are not small."""
    # Random reads first, in a plain loop: the CPU overlaps the cache misses.
    for i in range(len(before)):
        place = before[i] + offset
        following[i] = source[place] if place < stop else -1
    num_keys, past = 0, np.int64(0)
    for group in range(first, end):
        start, past = past, past + sizes[group]
        if sizes[group] <= _SMALL or (length > 1 and words[group] == boundary_id):
            continue
        prefix = (group - first) << word_bits
        least = _least(suffix, first_child, group)
        for i in range(start, past):
            if following[i] >= 0:
                keys[num_keys] = ((prefix | (following[i] - least)) << place_bits) | i
                num_keys += 1
    return num_keys


@compiled
def _split(
    keys: NDArray[np.int64], small: NDArray[np.int64], before: Array, following: Array,
    places: Array, num_children: Array, found: Array, sizes: Array, words: Array, suffix: Array,
    first_child: Array, first: int, end: int, length: int, boundary_id: int, word_bits: int,
    place_bits: int,
) -> tuple[Scalar, Scalar]:  # fmt: skip
    """Find the new groups, and reorder the positions to match unless `places` is empty; `keys` are
    sorted, and `small` has room for the keys of a small group.

    `num_children` gets for each group the number of new groups up to it. Return the number of
    groups, and of positions.
    """
    at, out, num_used, stop = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    word_mask, place_mask = (1 << word_bits) - 1, (1 << place_bits) - 1
    for group in range(first, end):
        start, stop = stop, stop + sizes[group]
        num_children[group + 1] = out
        if length > 1 and words[group] == boundary_id:
            continue
        number, few, least = np.int64(0), sizes[group] <= _SMALL, np.int64(0)
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
            least = _least(suffix, first_child, group)
            beyond = (np.int64(group - first + 1) << word_bits) << place_bits
            while num_used + number < len(keys) and keys[num_used + number] < beyond:
                number += 1
        previous = np.int64(-1)
        for i in range(number):
            key = small[i] if few else keys[num_used + i]
            next = key >> place_bits if few else ((key >> place_bits) & word_mask) + least
            if len(places):
                places[at] = before[key & place_mask]
            found[at] = next
            if next != previous:
                previous = next
                found[at] = ~next
                out += 1
            at += 1
        num_used += 0 if few else number
        num_children[group + 1] = out
    return out, at


@inlined
def _least(suffix: Array, first_child: Array, group: Scalar) -> Scalar:
    """Return the first n-gram that may follow a group by links; 0 without them."""
    return np.int64(first_child[suffix[group]]) if len(suffix) else np.int64(0)


@compiled
def _gather(found: Array, words: Array, sizes: Array, suffix: Array, parent_words: Array) -> None:
    """Move a piece's groups to their final indices. `found` gets the last index of each group."""
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
    for i in range(len(suffix)):
        suffix[i] = words[i]
        words[i] = parent_words[words[i]]


@compiled
def _record(ngram_at: Array, places: Array, sizes: Array, piece: tuple[Scalar, ...]) -> None:
    first, end, place, _ = piece
    for group in range(first, end):
        for _ in range(sizes[group]):
            ngram_at[places[place]] = group
            place += 1
