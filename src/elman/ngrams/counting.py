"""Count the n-grams of token ids into a sorted trie.

Sort the text positions by their token (counting sort). Each level then refines the groups of the
previous one: the positions of one k-gram are sorted by the token that follows. Groups stay
contiguous, so a piece of work is a range of whole groups; its elements are packed into 64-bit keys
(group, next token, place within the piece) that NumPy sorts with vector instructions. Pieces are
independent and run in threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.base.threads import default_threads, in_threads
from elman.ngrams.compiled import compiled
from elman.ngrams.trie import Array, CountTrie, Level

Ids = NDArray[Any]

# Elements in one piece of work: its keys fit in the L2 cache.
_PIECE_SIZE = 1 << 17


def count(
    ids: Ids, order: int, *, vocab_size: int, boundary_id: int, num_threads: int | None = None
) -> CountTrie:
    """Count all n-grams of `ids` up to length `order`, with suffix links.

    A boundary token is assumed before the text. Each boundary token in `ids` ends a line and begins
    the next.
    """
    text = np.empty(len(ids) + 1, np.uint16 if vocab_size <= 1 << 16 else np.int32)
    text[0] = boundary_id
    text[1:] = ids
    trie = count_starts(
        text, len(text), order,
        vocab_size=vocab_size, boundary_id=boundary_id, linked=True, num_threads=num_threads,
    )  # fmt: skip
    trie.levels[0].counts[boundary_id] -= 1  # the one in front ends no line
    return trie


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
    groups = _Groups(text, places, starts[:-1], level.counts.copy(), boundary_id, num_threads)
    levels = [level]
    while len(levels) < order:
        level = groups.refine(levels[-1], len(levels))
        levels.append(level)
        if linked:
            groups.link(level, last=len(levels) == order)
    return CountTrie(levels, boundary_id)


@dataclass
class _Groups:
    """The positions of a text, grouped by the n-gram that begins there.

    A group stays within its parent's range of `places`, so refining works in place; positions
    without a following token leave gaps.
    """

    text: Ids
    places: Array
    starts: Array
    """Index in `places` where each group begins."""
    sizes: Array
    boundary_id: int
    num_threads: int | None

    def __post_init__(self) -> None:
        self.ngram_at = np.empty(0, np.int32)
        self.word_bits = len(self.starts).bit_length()

    def refine(self, parents: Level, length: int) -> Level:
        """Split every group by the token at offset `length`; return the children of `parents`."""
        num_children = np.zeros(len(parents) + 1, np.int32)
        words, starts = np.empty(len(self.places), np.int32), np.empty(len(self.places), np.int32)

        def split(piece: tuple[int, int]) -> tuple[int, int, int]:
            first, end = piece
            base = int(self.starts[first])
            before = self.places[base : int(self.starts[end - 1] + self.sizes[end - 1])].copy()
            place_bits = len(before).bit_length()
            keys = np.empty(len(before), np.int64)
            num_keys = _pack(
                self.text, before, self.starts, self.sizes, parents.words, keys,
                first, end, length, self.boundary_id, self.word_bits, place_bits,
            )  # fmt: skip
            keys = keys[:num_keys]
            keys.sort()
            num_groups = _split(
                keys, before, self.places, num_children, words, starts,
                first, base, self.word_bits, place_bits,
            )  # fmt: skip
            return base, num_groups, base + num_keys

        cuts = np.empty(len(self.starts) + 1, np.int32)
        cuts = cuts[: _cut(self.sizes, _PIECE_SIZE, cuts) + 1]
        done = in_threads(split, pairwise(cuts.tolist()), self.num_threads)
        parents.first_child = np.cumsum(num_children, dtype=np.int32)
        total = int(parents.first_child[-1])
        level = Level(np.empty(total, np.int32), np.empty(total, np.int32))
        self.starts, self.sizes = np.empty(total, np.int32), level.counts
        offsets = np.cumsum([0, *(num_groups for _, num_groups, _ in done)]).tolist()

        def gather(piece: int) -> None:
            _gather(
                words, starts, *done[piece], level.words, self.sizes, self.starts, offsets[piece]
            )

        in_threads(gather, range(len(done)), self.num_threads)
        return level

    def link(self, level: Level, *, last: bool) -> None:
        """Link each n-gram to the one that begins at the next text position."""
        pieces = list(pairwise([*range(0, len(level), _PIECE_SIZE), len(level)]))
        if not len(self.ngram_at):
            level.suffix = level.words
            self.ngram_at = np.empty(len(self.text), np.int32)
        else:
            level.suffix = np.empty(len(level), np.int32)
            look_up = partial(_set_suffix, self.ngram_at, self.places, self.starts, level.suffix)
            in_threads(look_up, pieces, self.num_threads)
        if not last:
            record = partial(_record, self.ngram_at, self.places, self.starts, self.sizes)
            in_threads(record, pieces, self.num_threads)


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
def _cut(sizes: Array, limit: int, cuts: Array) -> int:
    """Cut the groups into pieces of at most `limit` elements, or of one larger group."""
    num_cuts, filled = 0, 0
    cuts[0] = 0
    for group in range(len(sizes)):
        if filled + sizes[group] > limit and cuts[num_cuts] < group:
            num_cuts += 1
            cuts[num_cuts] = group
            filled = 0
        filled += sizes[group]
    num_cuts += 1
    cuts[num_cuts] = len(sizes)
    return num_cuts


@compiled
def _pack(
    text: Ids, places: Array, starts: Array, sizes: Array, words: Array, keys: NDArray[np.int64],
    first: int, end: int, length: int, boundary_id: int, word_bits: int, place_bits: int,
) -> int:  # fmt: skip
    """Fill `keys` for the positions in groups `first` to `end` - 1; `places` holds only those."""
    # Random reads first, in a plain loop: the CPU overlaps the cache misses.
    for i in range(len(places)):
        following = places[i] + length
        keys[i] = text[following] if following < len(text) else -1
    base = starts[first]
    num_keys = 0
    for group in range(first, end):
        if length > 1 and words[group] == boundary_id:
            continue
        prefix = (group - first) << word_bits
        for i in range(starts[group] - base, starts[group] - base + sizes[group]):
            if keys[i] >= 0:
                keys[num_keys] = ((prefix | keys[i]) << place_bits) | i
                num_keys += 1
    return num_keys


@compiled
def _split(
    keys: NDArray[np.int64], before: Array, places: Array, num_children: Array, words: Array,
    starts: Array, first: int, base: int, word_bits: int, place_bits: int,
) -> int:  # fmt: skip
    """Number the new groups of sorted keys, and reorder the positions to match."""
    previous = np.int64(-1)
    out = base
    word_mask, place_mask = (1 << word_bits) - 1, (1 << place_bits) - 1
    for i in range(len(keys)):
        group_word = keys[i] >> place_bits
        places[base + i] = before[keys[i] & place_mask]
        if group_word != previous:
            previous = group_word
            num_children[first + (group_word >> word_bits) + 1] += 1
            words[out] = group_word & word_mask
            starts[out] = base + i
            out += 1
    return out - base


@compiled
def _gather(
    words: Array, starts: Array, base: int, num_groups: int, stop: int, new_words: Array,
    new_sizes: Array, new_starts: Array, offset: int,
) -> None:  # fmt: skip
    """Move a piece's groups to their final indices."""
    for i in range(num_groups):
        new_words[offset + i] = words[base + i]
        new_starts[offset + i] = starts[base + i]
        following = starts[base + i + 1] if i + 1 < num_groups else stop
        new_sizes[offset + i] = following - starts[base + i]


@compiled
def _set_suffix(
    ngram_at: Array, places: Array, starts: Array, suffix: Array, piece: tuple[int, int]
) -> None:
    for i in range(piece[0], piece[1]):
        suffix[i] = ngram_at[places[starts[i]] + 1]


@compiled
def _record(
    ngram_at: Array, places: Array, starts: Array, sizes: Array, piece: tuple[int, int]
) -> None:
    for i in range(piece[0], piece[1]):
        for place in range(starts[i], starts[i] + sizes[i]):
            ngram_at[places[place]] = i
