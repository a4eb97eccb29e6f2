"""Count skip-grams: for every context with gaps, the words that follow it.

A template (r, s, a) selects the words before a target that form a context (Shazeer, Pelemans and
Chelba, 2015): the a words next to it (adjacent), then s skipped words, then the r words before
those (remote). (0, 0, a) is the context of an ordinary (a + 1)-gram, (0, 0, 0) the empty context.

A context is identified by a 64-bit hash of its template and words. The counts are a sparse matrix:
one row per context, sorted by hash within its template, and one entry per following word, sorted by
word.

T tokens, K templates, F rows, E entries, C tokens of context.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.base.errors import ElmanError
from elman.base.threads import in_threads
from elman.tasks.snm.sparse_loops import Ids, Keys, hash_text

Template = tuple[int, int, int]

NOTHING = -1
"""Padding before the first token."""


def templates(order: int, num_remote: int, max_skip: int, num_adjacent: int) -> list[Template]:
    """List the templates of n-grams up to `order` and of all skip-grams within the limits."""
    return [(0, 0, length) for length in range(order)] + [
        (remote, skip, adjacent)
        for skip in range(1, max_skip + 1)
        for remote in range(1, num_remote + 1)
        for adjacent in range(num_adjacent + 1)
    ]


def reach(wanted: list[Template]) -> int:
    """Return the number of tokens that the longest context spans."""
    return max(sum(template) for template in wanted)


@dataclass
class Counts:
    """The sparse matrix of counts."""

    templates: list[Template]
    row_starts: list[int]
    """(K + 1,) index of each template's first row."""
    keys: Keys
    """(F,) hash of each row's context."""
    first: NDArray[np.int64]
    """(F + 1,) index of each row's first entry."""
    words: NDArray[np.int32]
    """(E,) the word of each entry."""
    counts: NDArray[np.int32]
    """(E,) c(f, w)."""
    totals: NDArray[np.int32]
    """(F,) c(f), the sum of the row."""


def with_context(ids_T: NDArray[Any], num_before: int, boundary_id: int) -> Ids:
    """(C + T,) prepend C tokens to a text: padding, then the boundary token."""
    text = np.full(num_before + len(ids_T), NOTHING, np.int64)
    if num_before:
        text[num_before - 1] = boundary_id
    text[num_before:] = ids_T
    return text


def count_skipgrams(
    ids_T: NDArray[Any],
    wanted: list[Template],
    *,
    boundary_id: int,
    across_lines: bool,
    num_threads: int | None = None,
) -> Counts:
    """Count every template's contexts in a text that begins after a boundary."""
    num_before = reach(wanted)
    text = with_context(ids_T, num_before, boundary_id)
    wall = NOTHING if across_lines else boundary_id
    word_bits = int(text.max(initial=0)).bit_length()

    def count(kind: int) -> tuple[Any, ...]:
        keys_T = np.empty(len(ids_T), np.uint64)
        present_T = np.empty(len(ids_T), np.bool_)
        hash_text(text, num_before, wall, kind, *wanted[kind], keys_T, present_T)
        keys, rows = np.unique(keys_T[present_T], return_inverse=True)
        if len(keys).bit_length() + word_bits > 63:
            raise ElmanError("the text has too many distinct contexts", "use a lower order")
        pairs = (rows.astype(np.int64) << word_bits) | text[num_before:][present_T]
        pairs, counts = np.unique(pairs, return_counts=True)
        totals = np.bincount(rows, minlength=len(keys))
        sizes = np.bincount(pairs >> word_bits, minlength=len(keys))
        words = pairs & ((1 << word_bits) - 1)
        return keys, sizes, totals.astype(np.int32), words.astype(np.int32), counts.astype(np.int32)

    found = in_threads(count, range(len(wanted)), num_threads)
    keys, sizes, totals, words, counts = (np.concatenate(part) for part in zip(*found, strict=True))
    return Counts(
        templates=wanted,
        row_starts=[0, *np.cumsum([len(part[0]) for part in found]).tolist()],
        keys=keys,
        first=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        words=words,
        counts=counts,
        totals=totals,
    )
