"""How well a tagger tags: accuracy over words, and for entities precision, recall and F1.

Entities are counted by the rules of conlleval, the script of the CoNLL shared tasks (see
`elman.tasks.tagging.entities`): one is right where its first word, its last word and its type are.

B batch, T time steps, N labels.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elman.base.errors import ElmanError
from elman.batches.buckets import batches_by_length
from elman.evaluate.labels import LabelFigures, label_figures
from elman.nn.character_cnn import spelling_table
from elman.tasks.tagging.batches import NO_LABEL, TaggedData, encode_tagged, tagged_batch
from elman.tasks.tagging.entities import spans
from elman.tasks.tagging.model import Tagger
from elman.tasks.tagging.vocabulary import UNKNOWN_ID, TagVocabulary

Row = tuple[Sequence[str], Sequence[str | None]]
"""The words of a sentence, and their tags where they are known."""

TOKENS_PER_BATCH = 4096
"""Words, with padding, that are tagged at a time."""


@dataclass(frozen=True)
class TaggingEvaluation:
    """How well a tagger does on sentences whose tags are known."""

    accuracy: float
    """How many words have the right tag."""
    f1: float | None
    """Entities found: the harmonic mean of precision and recall; None where tags are no entities.
    """
    precision: float | None
    """How many of the entities that were found are right."""
    recall: float | None
    """How many of the entities that there are were found."""
    unknown_words: int
    """Words that are not in the vocabulary."""
    unknown_accuracy: float | None
    """Accuracy on these; None where there are none."""
    unknown_tags: int
    """Words whose tag the model has never seen, and so cannot get right."""
    sentences: int
    """How many sentences."""
    tokens: int
    """How many words were judged."""
    seconds: float
    """How long it took."""
    labels: dict[str, LabelFigures] = field(default_factory=dict)
    """By label, or by type of entity."""


def entity_figures(
    expected: Sequence[Sequence[str]], found: Sequence[Sequence[str]]
) -> tuple[LabelFigures, dict[str, LabelFigures]]:
    """Over all entities, and by type, for rows of tags in any scheme."""
    there, given, right = Counter[str](), Counter[str](), Counter[str]()
    for expected_tags, found_tags in zip(expected, found, strict=True):
        true, guessed = set(spans(expected_tags)), set(spans(found_tags))
        there.update(kind for *_, kind in true)
        given.update(kind for *_, kind in guessed)
        right.update(kind for *_, kind in true & guessed)
    by_type = {
        kind: LabelFigures.of_counts(right[kind], given[kind], there[kind])
        for kind in sorted(there | given)
    }
    return LabelFigures.of_counts(right.total(), given.total(), there.total()), by_type


def evaluate_tagger(
    model: Tagger, vocabulary: TagVocabulary, rows: Sequence[Row]
) -> TaggingEvaluation:
    """Tag the sentences of `rows` (words and their tags) and compare.

    Words whose tag is None are not counted. Tags of entities are compared in the scheme of the
    training file, whatever scheme these come in.
    """
    started = time.perf_counter()
    labels = [vocabulary.labelled(tags) for _, tags in rows]
    data = encode_tagged(
        ((words, row) for (words, _), row in zip(rows, labels, strict=True)), vocabulary
    )
    expected: list[list[str]] = []
    found: list[list[str]] = []
    unknown: list[bool] = []
    num_unknown_tags = 0
    for predicted, true, sentence in zip(predict(model, data), labels, data.sentences, strict=True):
        guessed = vocabulary.told([vocabulary.labels[label] for label in predicted])
        if vocabulary.scheme is not None and None not in true:
            tags: list[str | None] = list(vocabulary.told([label or "" for label in true]))
        else:
            tags = true
        counted = [i for i, tag in enumerate(tags) if tag is not None]
        expected.append([tags[i] or "" for i in counted])
        found.append([guessed[i] for i in counted])
        unknown += [bool(sentence.words[i] == UNKNOWN_ID) for i in counted]
        num_unknown_tags += sum(bool(sentence.labels[i] == NO_LABEL) for i in counted)
    right = [
        e == f for es, fs in zip(expected, found, strict=True) for e, f in zip(es, fs, strict=True)
    ]
    if not right:
        raise ElmanError("there is nothing to evaluate: no word has a tag", "check the column")
    right_unknown = [ok for ok, is_unknown in zip(right, unknown, strict=True) if is_unknown]
    overall = None
    if vocabulary.scheme is None:
        by_label = label_figures(expected, found)
    else:
        overall, by_label = entity_figures(expected, found)
    return TaggingEvaluation(
        accuracy=sum(right) / len(right),
        f1=None if overall is None else overall.f1,
        precision=None if overall is None else overall.precision,
        recall=None if overall is None else overall.recall,
        unknown_words=len(right_unknown),
        unknown_accuracy=sum(right_unknown) / len(right_unknown) if right_unknown else None,
        unknown_tags=num_unknown_tags,
        sentences=len(rows),
        tokens=len(right),
        seconds=time.perf_counter() - started,
        labels=by_label,
    )


def predict(model: Tagger, data: TaggedData) -> list[NDArray[Any]]:
    """The best labels (T,) of each sentence, in order; a sentence without words has none."""
    return _read(model, data, model.best)


def marginals(model: Tagger, data: TaggedData) -> list[NDArray[Any]]:
    """The probabilities (T, N) of every label of every word, sentence by sentence."""
    return _read(model, data, model.marginals)


@torch.no_grad()
def _read(
    model: Tagger, data: TaggedData, answer: Callable[[Tensor, Tensor], Tensor]
) -> list[NDArray[Any]]:
    """What `answer` makes of the scores of labels and the mask, for each sentence."""
    was_training = model.training
    model.eval()
    device = str(model.output.weight.device)
    spellings_SC = spelling_table(data.spellings, model.config.character_cnn.max_characters)
    spellings = data.spellings if model.embeddings.wanted else None
    found: list[NDArray[Any]] = [np.zeros(0, np.int64)] * len(data.sentences)
    for indices in batches_by_length(data.lengths, TOKENS_PER_BATCH, alike=1):
        sentences = [data.sentences[i] for i in indices]
        batch = tagged_batch(sentences, spellings_SC, spellings).to(device)
        emissions_BTN = model.emissions(
            batch.words_BT, batch.spellings_BT, batch.characters_UC, batch.lengths_B, batch.wording
        )
        answers = answer(emissions_BTN, batch.mask()).cpu().numpy()
        for row, index in enumerate(indices):
            found[index] = answers[row, : int(batch.lengths_B[row])]
    model.train(was_training)
    return found
