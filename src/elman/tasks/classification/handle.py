"""The handle of a classifier: texts in, labels out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from elman.tasks.classification.evaluation import (
    ClassificationEvaluation,
    classify,
    evaluate_classifier,
)
from elman.tasks.classification.model import Classifier as Network
from elman.tasks.classification.reading import Columns, read_labelled
from elman.tasks.classification.vocabulary import LabelVocabulary
from elman.tasks.handle import Handle
from elman.tasks.opening import OpenedRun
from elman.text.sources import Paths, listed

TEXTS_AT_A_TIME = 512
"""Texts that are sorted by length and classified together."""


@dataclass(frozen=True)
class Classified:
    """The result of classifying a text."""

    label: str
    """The most likely label."""
    probability: float
    """Its probability."""
    probabilities: dict[str, float]
    """The probability of every label."""


class Classifier(Handle):
    """A classifier: a label for a text."""

    what = "a classifier"
    model: Network

    def __init__(self, name: str, run: OpenedRun) -> None:
        super().__init__(name, run)
        self.vocabulary: LabelVocabulary = run.tokenizer

    def __repr__(self) -> str:
        return f"Classifier({self.name!r}, {len(self.vocabulary.labels)} labels)"

    @property
    def labels(self) -> list[str]:
        return list(self.vocabulary.labels)

    def classify(self, text: str) -> Classified:
        """Classify one text."""
        return next(self.classify_all([text]))

    def classify_all(self, texts: Iterable[str]) -> Iterator[Classified]:
        """Classify many texts, in order: faster than one by one."""
        waiting = iter(texts)
        while some := list(islice(waiting, TEXTS_AT_A_TIME)):
            found, _ = classify(self.model, self.vocabulary, some)
            for row in found:
                shares = dict(zip(self.vocabulary.labels, map(float, row), strict=True))
                best = max(shares, key=shares.__getitem__)
                yield Classified(best, shares[best], shares)

    def evaluate(self, data: Paths) -> ClassificationEvaluation:
        """Accuracy, balanced accuracy and F1 on labelled files, by label too."""
        config = self.run.config.data
        rows = read_labelled(listed(data), Columns(config.column, config.text_column))
        return evaluate_classifier(self.model, self.vocabulary, rows)

    def info(self) -> dict[str, Any]:
        vocabulary = self.vocabulary
        kind, size = vocabulary.tokenizer.kind, vocabulary.vocab_size
        what = f"a classifier with {len(vocabulary.labels)} labels over {size:,} tokens ({kind})"
        return self.described(what, labels=self.labels)
