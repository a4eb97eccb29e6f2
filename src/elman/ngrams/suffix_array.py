"""Sort the suffixes of a text of token ids: the order in which an index lists text positions.

Suffixes are sorted by their first `DEPTH` tokens, and equal ones by position, so that the order is
defined for any text and takes a bounded time to compute: a text may contain another twice. A suffix
that ends comes before its continuations.

    sort_suffixes    in memory, by prefix doubling (Manber and Myers 1990; groups as in Larsson and
                     Sadakane 2007): suffixes sorted by h tokens get ranks, and the rank of the
                     suffix h tokens later sorts them by 2h
    suffix_array     of any text: in pieces that fit into memory, each with the `DEPTH` tokens after
                     it, merged by comparing the text; the same array as in one piece
    join_arrays      of texts that are sorted already, one after the other

Each round sorts the groups of suffixes that are still equal. A piece of work is a range of whole
groups, packed into 64-bit keys (group, rank, place) that NumPy sorts with vector instructions, as
in `counting`; pieces run in threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.base.threads import in_order, in_threads
from elman.ngrams.compiled import Scalar, compiled, inlined
from elman.ngrams.counting import sort_by_token
from elman.ngrams.scratch import Scratch

Ids = NDArray[Any]
Places = NDArray[np.int64]
Array = NDArray[np.int32]

DEPTH = 1 << 12
"""Tokens of a suffix that its place in the order depends on: the longest match."""
BYTES_PER_TOKEN = 20
"""Memory that sorting takes per token."""
_PIECE_SIZE = 1 << 16
_MERGED_AT_ONCE = 1 << 20
_BITS = 63


def suffix_array(
    text: Ids,
    vocab_size: int,
    *,
    scratch: Scratch | None = None,
    memory: int | None = None,
    num_threads: int | None = None,
) -> Iterator[NDArray[np.integer]]:
    """Yield the positions of a text in the order of their suffixes, in consecutive parts.

    With `memory`, in bytes, a longer text than fits is sorted in pieces on disk.
    """
    size = len(text)
    piece_size = min(max(size, 1), (1 << 31) - DEPTH - 1)
    if scratch is not None and memory is not None:
        piece_size = min(piece_size, max(_PIECE_SIZE, memory // BYTES_PER_TOKEN))
    starts = range(0, size, piece_size)
    if len(starts) <= 1:
        yield sort_suffixes(text, size, vocab_size, num_threads)
        return
    with nullcontext(scratch) if scratch is not None else Scratch() as folder:
        path, ends = folder.path(), [0]
        with path.open("wb") as file:
            for start in starts:
                num_starts = min(piece_size, size - start)
                part = np.asarray(text[start : start + num_starts + DEPTH])
                file.write(sort_suffixes(part, num_starts, vocab_size, num_threads).data)
                ends.append(ends[-1] + num_starts)
        runs = _Runs(text, folder.open(path), np.array(ends), np.array(starts))
        yield from in_order(runs.merged, runs.ranges(), num_threads)


def join_arrays(
    text: Ids,
    vocab_size: int,
    sorted_parts: Sequence[tuple[int, Iterable[Places]]],
    *,
    scratch: Scratch | None = None,
    num_threads: int | None = None,
) -> Iterator[Places]:
    """Yield the same as `suffix_array` of a text whose parts are sorted already, each on its own.

    A part is the position where it begins and its sorted positions in the text, piece by piece.
    """
    begins = [begin for begin, _ in sorted_parts]
    dtype = np.int32 if len(text) < 1 << 31 else np.int64
    with nullcontext(scratch) if scratch is not None else Scratch() as folder:
        path, ends, offsets = folder.path(), [0], list[int]()
        with path.open("wb") as file:
            for (begin, parts), end in zip(sorted_parts, [*begins[1:], len(text)], strict=True):
                # The order of the last ones depends on what comes after the part.
                last = end if end == len(text) else max(begin, end - DEPTH)
                kept = (positions[positions < last] - begin for positions in parts)
                ends.append(ends[-1] + sum(file.write(k.astype(dtype).data) for k in kept))
                after = np.asarray(text[last : end + DEPTH])
                tail = sort_suffixes(after, end - last, vocab_size, num_threads)
                ends.append(ends[-1] + file.write(tail.astype(dtype).data))
                offsets += [begin, last]
        sizes = np.array(ends) // np.dtype(dtype).itemsize
        runs = _Runs(text, folder.open(path, dtype), sizes, np.array(offsets))
        yield from in_order(runs.merged, runs.ranges(), num_threads)


def sort_suffixes(
    text: Ids, num_starts: int, vocab_size: int, num_threads: int | None = None
) -> Array:
    """Sort the suffixes at the first `num_starts` positions of a text of fewer than 2^31 tokens.

    The tokens after these positions take part in the order only.
    """
    size = len(text)
    places, ranks = np.empty(size, np.int32), np.empty(size, np.int32)
    first = np.zeros(vocab_size + 1, np.int64)
    sort_by_token(np.ascontiguousarray(text), first, places, num_threads)
    # The rank of a suffix is the index of the first one of its group. `clip` needs no buffer.
    np.take(first.astype(np.int32), text, out=ranks, mode="clip")
    starts = first[:-1][np.diff(first) > 1].astype(np.int32)
    ends = first[1:][np.diff(first) > 1].astype(np.int32)
    depth = 1
    while len(starts) and depth < DEPTH:
        starts, ends = _refine(places, ranks, starts, ends, depth, num_threads)
        depth *= 2
    if len(starts):  # equal in their first DEPTH tokens
        in_threads(
            lambda some: _sort_groups(places, starts[some[0] : some[1]], ends[some[0] : some[1]]),
            pairwise([*range(0, len(starts), _PIECE_SIZE), len(starts)]),
            num_threads,
        )
    return places if num_starts == size else places[places < num_starts]


def _refine(
    places: Array,
    ranks: Array,
    starts: Array,
    ends: Array,
    depth: int,
    num_threads: int | None,
) -> tuple[Array, Array]:
    """Sort groups of suffixes with equal first `depth` tokens by twice as many; return the groups
    that are left."""
    rank_bits = (len(places) + 1).bit_length()
    cuts = np.empty(len(starts) + 1, np.int64)
    cuts = cuts[: _cut(starts, ends, _PIECE_SIZE, cuts) + 1]

    def work(piece: tuple[int, int]) -> tuple[Array, Array]:
        first, end = piece
        some_starts, some_ends = starts[first:end], ends[first:end]
        num_keys = int((some_ends - some_starts).sum(dtype=np.int64))
        keys, before = np.empty(num_keys, np.int64), np.empty(num_keys, np.int32)
        place_bits = num_keys.bit_length()
        assert (end - first - 1).bit_length() + rank_bits + place_bits <= _BITS
        _pack(places, ranks, some_starts, some_ends, depth, rank_bits, place_bits, before, keys)
        keys.sort()
        left_starts, left_ends = np.empty(num_keys, np.int32), np.empty(num_keys, np.int32)
        num_left = _split(
            places, some_starts, some_ends, rank_bits, place_bits, before, keys,
            left_starts, left_ends,
        )  # fmt: skip
        return left_starts[:num_left].copy(), left_ends[:num_left].copy()

    pieces = list(pairwise(cuts.tolist()))
    left = in_threads(work, pieces, num_threads)

    # Ranks change after all groups have read them. A group that was split into single suffixes has
    # no entry in `left`, so all of its members are numbered from the marks that _split leaves.
    def renumber(piece: tuple[int, int]) -> None:
        first, end = piece
        _renumber(places, ranks, starts[first:end], ends[first:end])

    in_threads(renumber, pieces, num_threads)
    return np.concatenate([s for s, _ in left]), np.concatenate([e for _, e in left])


@compiled
def _cut(starts: Array, ends: Array, limit: int, cuts: Places) -> int:
    """Cut the groups into pieces of at most `limit` suffixes, or of one larger group."""
    num_cuts, filled = 0, 0
    cuts[0] = 0
    for group in range(len(starts)):
        size = np.int64(ends[group]) - starts[group]
        if filled + size > limit and cuts[num_cuts] < group:
            num_cuts += 1
            cuts[num_cuts] = group
            filled = 0
        filled += size
    num_cuts += 1
    cuts[num_cuts] = len(starts)
    return num_cuts


@compiled
def _pack(
    places: Array, ranks: Array, starts: Array, ends: Array, depth: int, rank_bits: int,
    place_bits: int, before: Array, keys: Places,
) -> None:  # fmt: skip
    """Fill the keys (group, rank of the suffix `depth` tokens later, place within the piece)."""
    out = 0
    for group in range(len(starts)):
        for i in range(starts[group], ends[group]):
            before[out] = places[i]
            out += 1
    # Random reads in a plain loop: the CPU overlaps the cache misses.
    for i in range(out):
        later = np.int64(before[i]) + depth
        keys[i] = ranks[later] + 1 if later < len(ranks) else 0
    out = 0
    for group in range(len(starts)):
        prefix = np.int64(group) << rank_bits
        for _ in range(ends[group] - starts[group]):
            keys[out] = ((prefix | keys[out]) << place_bits) | out
            out += 1


@compiled
def _split(
    places: Array, starts: Array, ends: Array, rank_bits: int, place_bits: int, before: Array,
    keys: Places, left_starts: Array, left_ends: Array,
) -> int:  # fmt: skip
    """Write the sorted positions back, and the groups that are still equal.

    The position of the first suffix of each new group is stored as its complement, a negative
    number, for `_renumber`.
    """
    mask = (np.int64(1) << place_bits) - 1
    num_left, at = 0, 0
    for group in range(len(starts)):
        begin, previous = starts[group], np.int64(-1)
        for i in range(starts[group], ends[group]):
            key = keys[at] >> place_bits
            place = before[keys[at] & mask]
            if key != previous:
                if i - begin > 1:
                    left_starts[num_left], left_ends[num_left] = begin, i
                    num_left += 1
                begin, previous = i, key
                place = ~place
            places[i] = place
            at += 1
        if ends[group] - begin > 1:
            left_starts[num_left], left_ends[num_left] = begin, ends[group]
            num_left += 1
    return num_left


@compiled
def _renumber(places: Array, ranks: Array, starts: Array, ends: Array) -> None:
    for group in range(len(starts)):
        rank = starts[group]
        for i in range(starts[group], ends[group]):
            if places[i] < 0:
                places[i] = ~places[i]
                rank = i
            ranks[places[i]] = rank


@compiled
def _sort_groups(places: Array, starts: Array, ends: Array) -> None:
    for group in range(len(starts)):
        places[starts[group] : ends[group]].sort()


@dataclass(frozen=True)
class _Runs:
    """The sorted positions of the pieces of a text."""

    text: Ids
    places: Array
    """Those of all pieces, one after the other; each counts from the beginning of its piece."""
    ends: Places
    """Where the places of each piece end, after a 0."""
    offsets: Places
    """The position in the text at which each piece begins."""

    def ranges(self) -> Iterator[tuple[Places, Places]]:
        """Cut all runs at the same suffixes; yield where each run's part begins and ends.

        The suffixes are taken from the runs at even distances, so that the parts together are
        about as long as `_MERGED_AT_ONCE`.
        """
        num_runs = len(self.offsets)
        step = max(1, _MERGED_AT_ONCE // (2 * num_runs))
        samples = [self.places[a:b:step] for a, b in pairwise(self.ends.tolist())]
        ends = np.cumsum([0, *map(len, samples)])
        ordered = np.empty(int(ends[-1]), np.int64)
        _merge(
            self.text, np.concatenate(samples), ends[:-1].copy(), ends[1:], self.offsets, ordered
        )
        begin = self.ends[:-1].copy()
        for splitter in ordered[num_runs::num_runs].tolist():
            end = np.empty(num_runs, np.int64)
            _search(self.text, self.places, self.ends, self.offsets, splitter, end)
            yield begin, end
            begin = end
        yield begin, self.ends[1:]

    def merged(self, part: tuple[Places, Places]) -> Places:
        begin, end = part
        found = np.empty(int((end - begin).sum()), np.int64)
        _merge(self.text, self.places, begin.copy(), end, self.offsets, found)
        return found


@inlined
def _precedes(text: Ids, left: Scalar, right: Scalar) -> Scalar:
    """Whether the suffix at `left`, an earlier run's position, comes before that at `right`."""
    size = np.int64(len(text))
    first = min(left, right)
    last = max(left, right)
    most = min(np.int64(DEPTH), size - last)
    same = np.int64(0)
    while same < most and text[left + same] == text[right + same]:
        same += 1
    if same == DEPTH:
        return left == first
    if same == most:  # the later one ends
        return left == last
    return text[left + same] < text[right + same]


@compiled
def _search(
    text: Ids, places: Array, ends: Places, offsets: Places, splitter: int, found: Places
) -> None:
    """Find where in each run the suffixes before `splitter` end."""
    for run in range(len(offsets)):
        low, high = ends[run], ends[run + 1]
        while low < high:
            middle = (low + high) // 2
            position = places[middle] + offsets[run]
            if position != splitter and _precedes(text, position, np.int64(splitter)):
                low = middle + 1
            else:
                high = middle
        found[run] = low


@compiled
def _merge(
    text: Ids, places: Array, heads: Places, ends: Places, offsets: Places, found: Places
) -> None:
    """Merge the runs `places[heads[r]:ends[r]]`, sorted positions relative to `offsets[r]`."""
    num_runs = 0
    queue = np.empty(len(heads), np.int64)  # runs by their first suffix
    position = np.empty(len(heads), np.int64)
    for run in range(len(heads)):
        if heads[run] < ends[run]:
            position[run] = places[heads[run]] + offsets[run]
            at = num_runs
            while at > 0 and not _precedes(text, position[queue[at - 1]], position[run]):
                queue[at] = queue[at - 1]
                at -= 1
            queue[at] = run
            num_runs += 1
    for out in range(len(found)):
        run = queue[0]
        found[out] = position[run]
        heads[run] += 1
        at = 0
        if heads[run] < ends[run]:
            position[run] = places[heads[run]] + offsets[run]
            while at + 1 < num_runs and not _precedes(text, position[run], position[queue[at + 1]]):
                queue[at] = queue[at + 1]
                at += 1
            queue[at] = run
        else:
            num_runs -= 1
            for i in range(num_runs):
                queue[i] = queue[i + 1]
