"""How well a classifier does: accuracy, and figures in which rare labels count as much as others.

Balanced accuracy is the mean recall of the labels, macro F1 the mean of their F1. With two labels,
`f1` is the F1 of the rarer one: spam, not ham.

B batch, N labels.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from elman.base.errors import ElmanError
from elman.batches.buckets import batches_by_length
from elman.evaluate.labels import LabelFigures, label_figures
from elman.models.interface import reading
from elman.tasks.classification.batches import batch_of_rows
from elman.tasks.classification.model import Classifier
from elman.tasks.classification.reading import Texts
from elman.tasks.classification.vocabulary import LabelVocabulary

TOKENS_PER_BATCH = 8192
"""Tokens, padding included, that are read at a time."""


@dataclass(frozen=True)
class ClassificationEvaluation:
    """Results of a classifier on texts whose labels are known."""

    accuracy: float
    """The share of texts (or pairs of texts) with the correct label."""
    balanced_accuracy: float
    """The mean recall of the labels."""
    macro_f1: float
    """The mean F1 of the labels."""
    f1: float | None
    """With two labels, the F1 of the rarer one; None with more."""
    unknown_labels: int
    """Texts whose label the model does not have, so that it cannot be predicted."""
    texts: int
    """Number of texts, or of pairs."""
    tokens: int
    """Number of tokens."""
    seconds: float
    """How long it took."""
    labels: dict[str, LabelFigures] = field(default_factory=dict)
    """By label."""
    confusion: dict[str, dict[str, int]] = field(default_factory=dict)
    """How often each label was predicted for each: by true label, then by predicted label."""


def evaluate_classifier(
    model: Classifier, vocabulary: LabelVocabulary, rows: Sequence[tuple[Texts, str]]
) -> ClassificationEvaluation:
    """Classify the texts of `rows` and compare with their labels."""
    if not rows:
        raise ElmanError("nothing to evaluate: no text has a label", "check the file")
    started = time.perf_counter()
    probabilities, num_tokens = classify(model, vocabulary, [texts for texts, _ in rows])
    found = [vocabulary.labels[int(row.argmax())] for row in probabilities]
    return judge(
        [label for _, label in rows],
        found,
        known=vocabulary.labels,
        tokens=num_tokens,
        seconds=time.perf_counter() - started,
    )


def judge(
    expected: Sequence[str],
    found: Sequence[str],
    *,
    known: Sequence[str] = (),
    tokens: int = 0,
    seconds: float = 0.0,
) -> ClassificationEvaluation:
    """Compare labels; those that are in neither `expected` nor `found` do not count."""
    by_label = label_figures(expected, found)
    there = [figures for figures in by_label.values() if figures.count]
    pairs = Counter(zip(expected, found, strict=True))
    names = sorted({*expected, *found})
    rarer = min(there, key=lambda figures: figures.count)
    two = len(set(known) | set(names)) == 2
    return ClassificationEvaluation(
        accuracy=sum(pairs[name, name] for name in names) / len(expected),
        balanced_accuracy=sum(figures.recall for figures in there) / len(there),
        macro_f1=sum(figures.f1 for figures in by_label.values()) / len(by_label),
        f1=rarer.f1 if two else None,
        unknown_labels=sum(label not in known for label in expected) if known else 0,
        texts=len(expected),
        tokens=tokens,
        seconds=seconds,
        labels=by_label,
        confusion={a: {b: pairs[a, b] for b in names if pairs[a, b]} for a in names},
    )


def classify(
    model: Classifier, vocabulary: LabelVocabulary, rows: Sequence[Texts]
) -> tuple[list[NDArray[np.float32]], int]:
    """The probabilities (N,) of the labels of each row, in order, and the number of tokens."""
    ids = [vocabulary.encode_row(row) for row in rows]
    lengths = [sum(map(len, row)) for row in ids]
    device = str(model.output.weight.device)
    found: list[NDArray[np.float32]] = [np.zeros(0, np.float32)] * len(rows)
    for indices in batches_by_length(lengths, TOKENS_PER_BATCH, alike=1):
        spelled = None
        if model.embeddings.wanted:
            spelled = [vocabulary.spell_row(rows[i]) for i in indices]
        batch = batch_of_rows([ids[i] for i in indices], [0] * len(indices), spelled).to(device)
        with reading(model):
            logits_BN = model(batch.tokens_BT, batch.lengths_B, batch.wording, batch.second)
            probabilities_BN = logits_BN.softmax(1).cpu().numpy()
        for row, index in enumerate(indices):
            found[index] = probabilities_BN[row]
    return found, sum(lengths)
