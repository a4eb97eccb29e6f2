"""The handle of a classifier: texts or pairs of texts in, labels out."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from elman.base.counting import counted, some_of
from elman.base.errors import ElmanError, UsageError
from elman.tasks.classification.evaluation import (
    ClassificationEvaluation,
    classify,
    evaluate_classifier,
)
from elman.tasks.classification.model import Classifier as Network
from elman.tasks.classification.reading import Columns, Texts, read_labelled
from elman.tasks.classification.vocabulary import LabelVocabulary
from elman.tasks.handle import Handle
from elman.tasks.opening import OpenedRun
from elman.text.sources import Paths, listed

MOST_WORDS = 400
"""Words of a text whose effects are measured: each takes one more classification."""
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


@dataclass(frozen=True)
class WordEffect:
    """What a word of a text does for the label."""

    start: int
    """Its place in the text, in characters."""
    end: int
    effect: float
    """The log odds of the label in bits, minus those without the word: positive words speak for the
    label."""


class Classifier(Handle):
    """A classifier: a label for a text, or for a pair of texts."""

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

    @property
    def takes_pairs(self) -> bool:
        """Whether it labels pairs of texts."""
        return self.model.joint is not None

    def classify(self, text: str, second: str | None = None) -> Classified:
        """Classify one text, or a pair of texts, which may also be one separated by a tab."""
        return next(self.classify_all([text if second is None else (text, second)]))

    def classify_all(self, texts: Iterable[str | Sequence[str]]) -> Iterator[Classified]:
        """Classify many texts, or pairs of texts, in order: faster than one by one."""
        waiting = map(self._row, texts)
        while some := list(islice(waiting, TEXTS_AT_A_TIME)):
            found, _ = classify(self.model, self.vocabulary, some)
            for row in found:
                shares = dict(zip(self.vocabulary.labels, map(float, row), strict=True))
                best = max(shares, key=shares.__getitem__)
                yield Classified(best, shares[best], shares)

    def word_effects(self, text: str) -> list[WordEffect]:
        """For each word of a text, or each character where it has only one word: how the log odds
        of the label change when it is left out."""
        pieces = [match.span() for match in re.finditer(r"\S+", text)]
        if len(pieces) < 2:
            pieces = [(at, at + 1) for at, character in enumerate(text) if not character.isspace()]
        if len(pieces) < 2 or len(pieces) > MOST_WORDS:
            return []
        label = self.classify(text).label
        without = [text[:start] + text[end:] for start, end in pieces]
        whole, *others = (
            _log_odds(found.probabilities[label]) for found in self.classify_all([text, *without])
        )
        return [
            WordEffect(*place, whole - other) for place, other in zip(pieces, others, strict=True)
        ]

    def _row(self, given: str | Sequence[str]) -> Texts:
        """The texts of a row; a pair may come as two texts separated by a tab."""
        if isinstance(given, str):
            given = given.split("\t") if self.takes_pairs else [given]
        if len(given) != (2 if self.takes_pairs else 1):
            raise UsageError(
                f"{self.name} labels {'pairs of texts' if self.takes_pairs else 'single texts'}, "
                f"and got {counted(len(given), 'text')}",
                "give two texts, separated by one tab" if self.takes_pairs else "give one text",
            )
        return tuple(given)

    def evaluate(self, data: Paths) -> ClassificationEvaluation:
        """Accuracy, balanced accuracy and F1 on labelled files, by label too."""
        config = self.run.config.data
        columns = Columns(config.column, config.text_column, config.second_column)
        rows = read_labelled(listed(data), columns)
        if not any(label in self.vocabulary.label_ids for _, label in rows):
            raise ElmanError(
                f"{', '.join(listed(data))}: {self.name} knows none of the labels there",
                f"name files labelled as those it was trained on: {some_of(self.labels)}",
            )
        return evaluate_classifier(self.model, self.vocabulary, rows)

    def info(self) -> dict[str, Any]:
        vocabulary = self.vocabulary
        kind, size = vocabulary.tokenizer.kind, vocabulary.vocab_size
        of = " of pairs of texts" if self.takes_pairs else ""
        what = (
            f"a classifier{of} with {len(vocabulary.labels)} labels over {size:,} tokens ({kind})"
        )
        return self.described(what, labels=self.labels)


def ask_words(handle: Classifier, text: str) -> dict[str, Any]:
    """Answer the HTTP route: the classification, and the effect of each word."""
    return asdict(handle.classify(text)) | {
        "words": [asdict(effect) for effect in handle.word_effects(text)]
    }


def _log_odds(probability: float) -> float:
    """In bits, within +-50: a probability may be rounded to 0 or 1."""
    least = 2.0**-50
    p = min(max(probability, least), 1.0 - least)
    return math.log2(p / (1.0 - p))
