"""How well a tagger tags: accuracy of words; for entities precision, recall and F1.

Entities are counted by the rules of conlleval (see `entities.py`): one is correct if its first
word, its last word and its type are.

B batch, T time steps, N labels.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from elman.base.errors import ElmanError
from elman.batches.buckets import batches_by_length
from elman.evaluate.labels import LabelFigures, label_figures
from elman.models.interface import reading
from elman.nn.character_cnn import spelling_table
from elman.tasks.tagging.batches import NO_LABEL, EncodedSentences, encode_tagged, tagged_batch
from elman.tasks.tagging.entities import spans
from elman.tasks.tagging.model import Tagger
from elman.tasks.tagging.vocabulary import UNKNOWN_ID, TagVocabulary

Row = tuple[Sequence[str], Sequence[str | None]]
"""The words of a sentence, and their tags where known."""

TOKENS_PER_BATCH = 4096
"""Words, padding included, that are tagged at a time."""


@dataclass(frozen=True)
class TaggingEvaluation:
    """Results of a tagger on sentences whose tags are known."""

    accuracy: float
    """The share of words with the correct tag."""
    f1: float | None
    """F1 of entities; None if the tags are not entities."""
    precision: float | None
    """The share of predicted entities that are correct."""
    recall: float | None
    """The share of true entities that were predicted."""
    unknown_words: int
    """Words that are not in the vocabulary."""
    unknown_accuracy: float | None
    """Accuracy on unknown words; None if there are none."""
    unknown_tags: int
    """Words whose tag is not among the model's labels, so that it cannot be predicted."""
    sentences: int
    """Number of sentences."""
    tokens: int
    """Number of words that have a tag."""
    seconds: float
    """How long it took."""
    labels: dict[str, LabelFigures] = field(default_factory=dict)
    """By label, or by type of entity."""


def entity_figures(
    expected: Sequence[Sequence[str]], found: Sequence[Sequence[str]]
) -> tuple[LabelFigures, dict[str, LabelFigures]]:
    """Figures of all entities, and by type, for tag sequences in any scheme."""
    true, predicted, correct = Counter[str](), Counter[str](), Counter[str]()
    for expected_tags, found_tags in zip(expected, found, strict=True):
        here, guessed = set(spans(expected_tags)), set(spans(found_tags))
        true.update(kind for *_, kind in here)
        predicted.update(kind for *_, kind in guessed)
        correct.update(kind for *_, kind in here & guessed)
    by_type = {
        kind: LabelFigures.of_counts(correct[kind], predicted[kind], true[kind])
        for kind in sorted(true | predicted)
    }
    return LabelFigures.of_counts(correct.total(), predicted.total(), true.total()), by_type


def evaluate_tagger(
    model: Tagger, vocabulary: TagVocabulary, rows: Sequence[Row]
) -> TaggingEvaluation:
    """Tag the sentences of `rows` and compare.

    Words whose tag is None are not counted. Entity tags are compared in the scheme of the training
    file, whatever scheme `rows` use.
    """
    started = time.perf_counter()
    labels = [vocabulary.to_labels(tags) for _, tags in rows]
    data = encode_tagged(
        ((words, row) for (words, _), row in zip(rows, labels, strict=True)), vocabulary
    )
    expected: list[list[str]] = []
    found: list[list[str]] = []
    unknown: list[bool] = []
    num_unknown_tags = 0
    for predicted, true, sentence in zip(predict(model, data), labels, data.sentences, strict=True):
        guessed = vocabulary.to_tags([vocabulary.labels[label] for label in predicted])
        tags: Sequence[str | None] = true
        if vocabulary.scheme is not None and None not in true:
            tags = vocabulary.to_tags([label or "" for label in true])
        counted = [i for i, tag in enumerate(tags) if tag is not None]
        expected.append([tags[i] or "" for i in counted])
        found.append([guessed[i] for i in counted])
        unknown += [bool(sentence.words[i] == UNKNOWN_ID) for i in counted]
        num_unknown_tags += sum(bool(sentence.labels[i] == NO_LABEL) for i in counted)
    all_expected, all_found = list(chain(*expected)), list(chain(*found))
    correct = [e == f for e, f in zip(all_expected, all_found, strict=True)]
    if not correct:
        raise ElmanError("nothing to evaluate: no word has a tag", "check the column")
    correct_unknown = [ok for ok, is_unknown in zip(correct, unknown, strict=True) if is_unknown]
    overall = None
    if vocabulary.scheme is None:
        by_label = label_figures(all_expected, all_found)
    else:
        overall, by_label = entity_figures(expected, found)
    return TaggingEvaluation(
        accuracy=sum(correct) / len(correct),
        f1=None if overall is None else overall.f1,
        precision=None if overall is None else overall.precision,
        recall=None if overall is None else overall.recall,
        unknown_words=len(correct_unknown),
        unknown_accuracy=sum(correct_unknown) / len(correct_unknown) if correct_unknown else None,
        unknown_tags=num_unknown_tags,
        sentences=len(rows),
        tokens=len(correct),
        seconds=time.perf_counter() - started,
        labels=by_label,
    )


def predict(model: Tagger, data: EncodedSentences) -> list[NDArray[Any]]:
    """The best label ids (T,) of each sentence, in order."""
    return _read(model, data, model.best)


def marginals(model: Tagger, data: EncodedSentences) -> list[NDArray[Any]]:
    """The probabilities (T, N) of every label of every word, for each sentence."""
    return _read(model, data, model.marginals)


def _read(
    model: Tagger, data: EncodedSentences, answer: Callable[[Tensor, Tensor], Tensor]
) -> list[NDArray[Any]]:
    """Apply `answer` to the emissions and the mask; return its rows by sentence."""
    device = str(model.output.weight.device)
    spellings_SC = spelling_table(data.spellings, model.config.character_cnn.max_characters)
    spellings = data.spellings if model.embeddings.wanted else None
    found: list[NDArray[Any]] = [np.zeros(0, np.int64)] * len(data.sentences)
    with reading(model):
        for indices in batches_by_length(data.lengths, TOKENS_PER_BATCH, alike=1):
            sentences = [data.sentences[i] for i in indices]
            batch = tagged_batch(sentences, spellings_SC, spellings).to(device)
            words = (batch.words_BT, batch.spellings_BT, batch.characters_UC)
            emissions_BTN = model.emissions(*words, batch.lengths_B, batch.wording)
            answers = answer(emissions_BTN, batch.mask()).cpu().numpy()
            for row, index in enumerate(indices):
                found[index] = answers[row, : int(batch.lengths_B[row])]
    return found
