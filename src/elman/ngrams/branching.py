"""The stretches of a text that most different tokens follow, with the most frequent of these.

To count what follows a stretch takes as long as there are different tokens after it: more than a
second for the most frequent words of a billion tokens. So an index keeps the answers for the
stretches that would take longest. They are found while the sorted suffixes are written: suffixes
that begin with a stretch are neighbours, in the order of the token after it.

D depths, K continuations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elman.ngrams.compiled import compiled

Numbers = NDArray[np.int64]

LONGEST = 4
"""Tokens of a stretch that is kept: few longer ones have many continuations."""
KEPT = 20
"""Continuations of each that are kept."""
FEWEST = 512
"""Different continuations from which on a stretch is kept: fewer are counted in a millisecond."""
TOKENS_PER_BRANCH = 1 << 15
"""Tokens of the text for each stretch that can be kept: they take 0.01 bytes a token."""
_AT_ONCE = 1 << 20
_DEPTHS = LONGEST + 1
_PREVIOUS, _ROW = range(2)


class Branches(NamedTuple):
    """Arrays with a row for each stretch, in the order of their keys."""

    branches: NDArray[Any]
    """The first row of the stretch's suffixes and its number of tokens, as one number (`key`); 0
    before the first stretch."""
    branch_counts: NDArray[Any]
    """The number of different continuations; then how often each of the most frequent follows."""
    branch_tokens: NDArray[Any]
    """The most frequent continuations."""


def key(row: int, length: int) -> int:
    return row * _DEPTHS + length


def num_branches(num_tokens: int) -> int:
    """The number of stretches that the index of a text has room for."""
    return max(1, num_tokens // TOKENS_PER_BRANCH)


class Watch:
    """Looks at the sorted positions of a text that pass by."""

    def __init__(self, text: NDArray[Any]) -> None:
        self._text = text
        self._room = num_branches(len(text))
        self._found = [_room(0)]
        self._state = np.array([-1, 0], np.int64)
        self._starts = np.zeros((_DEPTHS, 2), np.int64)
        self._open = _room(_DEPTHS)

    def passing(self, places: Iterable[NDArray[np.integer]]) -> Iterator[NDArray[np.integer]]:
        """Yield the places as they are."""
        with ThreadPoolExecutor(1) as aside:
            for part in places:
                looking = aside.submit(self._look, part)
                yield part
                looking.result()
        self._look(np.full(1, -1))

    def table(self) -> Branches:
        """The stretches with most continuations, once all positions have passed."""
        assert self._state[_ROW] > len(self._text)
        best = self._best()
        order = np.argsort(best.branches)
        table = _room(self._room)
        for name in Branches._fields:
            getattr(table, name)[self._room - len(order) :] = getattr(best, name)[order]
        return table

    def _look(self, places: NDArray[np.integer]) -> None:
        for start in range(0, len(places), _AT_ONCE):
            some = places[start : start + _AT_ONCE]
            found = _room(LONGEST * (len(some) // FEWEST + 1))
            before = (self._state, self._starts, *self._open)
            number = _look(self._text, some, FEWEST, *before, *found)
            self._found.append(Branches(*(array[:number].copy() for array in found)))
            if sum(len(one.branches) for one in self._found) > 4 * self._room:
                self._found = [self._best()]

    def _best(self) -> Branches:
        """The stretches found so far that have most continuations."""
        every = Branches(*map(np.concatenate, zip(*self._found, strict=True)))
        order = np.lexsort((every.branches, -every.branch_counts[:, 0]))[: self._room]
        return Branches(*(array[order] for array in every))


def _room(number: int) -> Branches:
    return Branches(
        np.zeros(number, np.int64),
        np.zeros((number, 1 + KEPT), np.int64),
        np.zeros((number, KEPT), np.int32),
    )


@compiled
def _look(
    text: NDArray[Any],
    places: NDArray[np.integer],
    fewest: int,
    state: Numbers,
    starts_D2: Numbers,
    _: Numbers,
    counts_DK: Numbers,
    tokens_DK: NDArray[np.int32],
    found_keys: Numbers,
    found_counts: Numbers,
    found_tokens: NDArray[np.int32],
) -> int:
    """Go on with more sorted positions; return the number of stretches that have ended.

    At each depth, a stretch of as many tokens is open: `starts_D2` has its first row and that of
    its last continuation. Position -1 ends all.
    """
    size, number = np.int64(len(text)), 0
    for i in range(len(places)):
        place, before, row = np.int64(places[i]), state[_PREVIOUS], state[_ROW]
        shared = 0
        if before >= 0 and place >= 0:
            most = min(np.int64(LONGEST + 1), size - max(place, before))
            while shared < most and text[before + shared] == text[place + shared]:
                shared += 1
        for depth in range(LONGEST, max(shared, 1) - 1, -1):
            counts, tokens = counts_DK[depth], tokens_DK[depth]
            if before >= 0 and before + depth < size:
                # Insert the continuation that ends; one of equal count has the smaller id.
                count, at = row - starts_D2[depth, 1], KEPT
                while at > 0 and counts[at] < count:
                    if at < KEPT:
                        counts[at + 1], tokens[at] = counts[at], tokens[at - 1]
                    at -= 1
                if at < KEPT:
                    counts[at + 1], tokens[at] = count, text[before + depth]
            if shared < depth:
                if counts[0] >= fewest:
                    found_keys[number] = starts_D2[depth, 0] * _DEPTHS + depth
                    found_counts[number] = counts
                    found_tokens[number] = tokens
                    number += 1
                for at in range(min(counts[0], KEPT)):
                    counts[at + 1], tokens[at] = 0, 0
                counts[0] = 0
                starts_D2[depth, 0] = row
            starts_D2[depth, 1] = row
            if place >= 0 and place + depth < size:
                counts[0] += 1
        state[_PREVIOUS], state[_ROW] = place, row + 1
    return number
