"""How much of what a model writes stands verbatim in its training text, by length.

For each length n, the share of n-grams of the generated text that occur in the indexed text: one
minus n-gram novelty (Merrill, Smith and Elazar 2024). The same curve of a text that people wrote
and that was not trained on says how much of it is ordinary language: n-grams that any two texts
have in common.

A text is given as sequences of ids, each read by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.base.errors import UsageError
from elman.evaluate.pictures import new_figure, save
from elman.evaluate.provenance import IndexedText
from elman.ngrams.suffix_array import DEPTH

LENGTHS = (*range(1, 11), 12, 14, 16, 20, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 2048, DEPTH)
_LONGEST_QUOTE = 200
"""Tokens shown of the longest stretch."""


@dataclass(frozen=True)
class Copied:
    """What a text shares with an indexed one."""

    tokens: int
    """Number of tokens, as the index counts them."""
    shares: list[float | None]
    """For each length, the share of n-grams that stand in the indexed text; None: no n-grams."""
    mean_length: float
    """The mean over tokens of the longest stretch that ends there."""
    longest: int
    """Tokens of the longest stretch."""
    longest_text: str
    """That stretch, its beginning if it is long."""
    file: str | None
    """A file that has it."""
    line: int | None
    """The line in which it ends there."""


@dataclass(frozen=True)
class Novelty:
    """What a model writes, and what people wrote, as found in the training text."""

    lengths: list[int]
    """Lengths of n-grams, in tokens."""
    generated: Copied
    """Of the text that the model generated."""
    data: Copied | None
    """Of as much held-out text; None without one."""


def copied(indexed: IndexedText, sequences: Sequence[NDArray[Any]]) -> Copied:
    """Measure a text on all `LENGTHS`."""
    found, longest, quoted = [], 0, np.empty(0, np.int64)
    for ids in sequences:
        lengths_T = indexed.index.stretches(ids)[:, 0]
        found.append(lengths_T)
        if len(ids) and (most := int(lengths_T.max())) > longest:
            end = int(lengths_T.argmax()) + 1
            longest, quoted = most, ids[end - most : end]
    lengths = np.concatenate([np.empty(0, np.int64), *found])
    if not len(lengths):
        raise UsageError("there is no text to measure", "generate more tokens")
    rooms = np.concatenate([np.arange(1, len(ids) + 1) for ids in sequences])
    shares = []
    for n in LENGTHS:
        whole = rooms >= n
        shares.append(float((lengths[whole] >= n).mean()) if whole.any() else None)
    place = indexed.stretches(quoted)[-1][2] if longest else None
    return Copied(
        tokens=len(lengths),
        shares=shares,
        mean_length=float(lengths.mean()),
        longest=longest,
        longest_text=indexed.tokenizer.decode(quoted[:_LONGEST_QUOTE]),
        file=None if place is None else place.file,
        line=None if place is None else place.line,
    )


def novelty(
    indexed: IndexedText,
    generated: Sequence[NDArray[Any]],
    data: Sequence[NDArray[Any]] = (),
) -> Novelty:
    """Compare generated text, and held-out text, with the text of an index."""
    ours, theirs = copied(indexed, generated), copied(indexed, data) if data else None
    curves = [one.shares for one in (ours, theirs) if one is not None]
    last = max(i for shares in curves for i, share in enumerate(shares) if share or i == 0)
    kept = min(last + 2, len(LENGTHS))  # to the first length of which nothing is found

    def cut(one: Copied) -> Copied:
        return Copied(**{**vars(one), "shares": one.shares[:kept]})

    return Novelty(list(LENGTHS[:kept]), cut(ours), None if theirs is None else cut(theirs))


def draw_novelty(found: Novelty, name: str, path: Path) -> None:
    """Draw the share that is found in the training text by length."""
    figure = new_figure(6.5, 4.2)
    axes = figure.add_subplot()
    for label, one in ((name, found.generated), ("held-out text", found.data)):
        if one is not None:
            points = [
                (n, s) for n, s in zip(found.lengths, one.shares, strict=True) if s is not None
            ]
            axes.plot(*zip(*points, strict=True), marker=".", label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(found.lengths, map(str, found.lengths), fontsize="x-small", rotation=90)
    axes.set_xlabel("length in tokens")
    axes.set_ylabel("share that stands in the training text")
    axes.set_ylim(0, 1)
    axes.legend(frameon=False)
    save(figure, path)
