"""Precision, recall and F1 by label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class LabelFigures:
    """How well one label, or one type of entity, is found."""

    precision: float
    """Fraction of those found that are right."""
    recall: float
    """Fraction of the true ones that were found."""
    f1: float
    """Harmonic mean of the two."""
    count: int
    """Number of true ones."""

    @classmethod
    def of_counts(cls, right: int, found: int, there: int) -> LabelFigures:
        precision = right / found if found else 0.0
        recall = right / there if there else 0.0
        f1 = 2 * right / (found + there) if found + there else 0.0
        return cls(precision, recall, f1, there)


def label_figures(
    expected: Sequence[Sequence[str]], found: Sequence[Sequence[str]]
) -> dict[str, LabelFigures]:
    """Compare rows of labels position by position; return the figures of each label."""
    pairs = Counter(
        pair for e, f in zip(expected, found, strict=True) for pair in zip(e, f, strict=True)
    )
    there, given, right = Counter[str](), Counter[str](), Counter[str]()
    for (true, guessed), count in pairs.items():
        there[true] += count
        given[guessed] += count
        right[true] += count * (true == guessed)
    return {
        label: LabelFigures.of_counts(right[label], given[label], there[label])
        for label in sorted(there | given)
    }
