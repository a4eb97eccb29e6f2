"""Precision, recall and F1 by label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class LabelFigures:
    """How well one label, or one type of entity, is predicted."""

    precision: float
    """Fraction of the predicted ones that are correct."""
    recall: float
    """Fraction of the true ones that were predicted."""
    f1: float
    """Harmonic mean of the two."""
    count: int
    """Number of true ones."""

    @classmethod
    def of_counts(cls, correct: int, predicted: int, true: int) -> LabelFigures:
        return cls(
            precision=correct / predicted if predicted else 0.0,
            recall=correct / true if true else 0.0,
            f1=2 * correct / (predicted + true) if predicted + true else 0.0,
            count=true,
        )


def label_figures(expected: Sequence[str], found: Sequence[str]) -> dict[str, LabelFigures]:
    """Compare labels one by one; return the figures of each."""
    pairs = Counter(zip(expected, found, strict=True))
    true, predicted = Counter(expected), Counter(found)
    return {
        label: LabelFigures.of_counts(pairs[label, label], predicted[label], true[label])
        for label in sorted(true | predicted)
    }
