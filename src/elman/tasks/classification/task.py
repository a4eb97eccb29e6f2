"""Train classifiers: texts in batches of equal length, measured by accuracy or F1."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from elman.base.config import merge
from elman.base.counting import counted, some_of
from elman.base.errors import ElmanError, UsageError
from elman.batches.buckets import SentenceBatches, beginning
from elman.batches.wording import Spelled
from elman.models.embedder import Embedder
from elman.runs.machine import Machine
from elman.runs.run_folder import MODEL_FILE, TOKENIZER_FILE, about, check_vocabulary, require
from elman.tasks import Draft, OpenedModel, Proposal
from elman.tasks.classification.batches import LabelledBatch, batch_of_rows
from elman.tasks.classification.evaluation import ClassificationEvaluation, evaluate_classifier
from elman.tasks.classification.model import Classifier
from elman.tasks.classification.objective import classification
from elman.tasks.classification.reading import Columns, Texts, find_columns, read_labelled
from elman.tasks.classification.settings import ClassifierRun, LabelledData
from elman.tasks.classification.vocabulary import LABELS_FILE, LabelVocabulary
from elman.tasks.embeddings import open_kept, set_up_embedder
from elman.text.repeated import repeated_rows
from elman.text.sources import expand
from elman.tokens.train import train_on_texts
from elman.train import checkpoint
from elman.train.trainable import Trainable, Validation

Row = tuple[Texts, str]
"""A text, or two, and the label."""
PROBE_TEXTS = 100
"""Texts in the validation batches before the first update."""
SKEW = 3.0
"""Labels are unbalanced if their frequencies differ by more than this factor."""
FEW_TEXTS, MOST_LABELS = 20, 0.5
"""From so many texts on, more labels than this share of them are refused: they are texts."""
WORDS_OF_A_TEXT = 3.0
"""Texts with fewer words than this on average are names, modelled by characters."""
UPDATES = {"texts": 1750, "names": 6000}
"""Default length of a run in updates."""


def choose(draft: Draft, machine: Machine) -> Proposal:
    """Choose words for texts and characters for names; weigh rare labels if they are unbalanced."""
    data = cast(LabelledData, draft.data)
    columns = Columns(data.column, data.text_column, data.second_column)
    first = Path(data.train[0]).expanduser()
    if first.is_dir():
        if columns != Columns():
            raise UsageError(
                f"{data.train[0]} is a folder with a file for each label, without columns",
                "drop --column, --text-column and --second-column",
            )
    else:
        columns = find_columns(expand(data.train)[0], columns)
    found = {"column": columns.label, "text_column": columns.text}
    asked = merge(draft.asked, {"data": found})
    rows = read_labelled(data.train, columns)
    counts = Counter(label for _, label in rows)
    if len(counts) < 2:
        raise UsageError(
            f"all of {', '.join(data.train)} has the label '{next(iter(counts))}'",
            "name the column of labels with --column",
        )
    if len(rows) >= FEW_TEXTS and len(counts) > MOST_LABELS * len(rows):
        raise UsageError(
            f"hardly any label occurs twice: {len(counts):,} labels of {len(rows):,} texts",
            "put all texts of a label into one file, named for it, with one text per line"
            if first.is_dir()
            else "name the column of labels with --column, and that of texts with --text-column",
        )
    unbalanced = max(counts.values()) > SKEW * min(counts.values())
    many = len(counts) > 2
    words = sum(len(text.split()) for texts, _ in rows for text in texts)
    names = words < WORDS_OF_A_TEXT * len(rows) * len(rows[0][0])
    batch_size, updates = 32, UPDATES["names" if names else "texts"]
    automatic: dict[str, Any] = {
        "tokenizer": {"kind": "char"}
        if names
        else {"kind": "word", "lowercase": True, "min_count": 1},
        "model": NAMES if names else PAIRS if columns.second else TEXTS,
        "objective": {"class_weights": "balanced" if unbalanced and many else "none"},
        "optimiser": {"kind": "adam", "learning_rate": 0.003 if names else 0.001},
        "schedule": {"kind": "cosine", "warmup_steps": 50},
        "training": {
            "batch_size": batch_size,
            "clip_norm": 1.0,
            "epochs": max(4, min(30, round(updates * batch_size / len(rows)))),
            "precision": "auto",
        },
    }

    def notes(config: ClassifierRun) -> list[str]:
        data, model = config.data, config.model
        found = []
        where = "the names of the files"
        if not first.is_dir():
            texts = " and ".join(filter(None, (data.text_column, data.second_column)))
            where = f"in column {data.column}, texts in column {texts}"
        found.append(f"labels are {where} ({len(counts)} labels: {some_of(sorted(counts))})")
        weights = ", rare labels weigh more" if config.objective.class_weights != "none" else ""
        found.append(
            f"{config.tokenizer.kind}s, {model.hidden_size} {model.cell.upper()} units"
            f"{' in each direction' if model.bidirectional else ''}, pooled by "
            f"{' and '.join(model.pooling)}{weights}"
        )
        found += config.training.precision_notes(machine.is_gpu)
        if not data.valid:
            found.append(f"validation on {data.held_out}")
        return found

    return Proposal(merge(automatic, draft.base), asked, notes)


TEXTS: dict[str, Any] = {
    "hidden_size": 64,
    "embedding_size": 100,
    "pooling": ["max", "mean"],
    "dropout_embedding": 0.2,
    "dropout_input": 0.5,
    "dropout_output": 0.5,
}
# On SICK with the dropout of single texts, balanced accuracy was 68.8 % instead of 76.3 %.
PAIRS: dict[str, Any] = {**TEXTS, "dropout_input": 0.2, "dropout_output": 0.2}
NAMES: dict[str, Any] = {
    "hidden_size": 128,
    "embedding_size": 64,
    "pooling": ["max", "last"],
    "dropout_input": 0.1,
    "dropout_output": 0.5,
}


@dataclass(frozen=True)
class Split:
    train: list[Row]
    valid: list[Row]
    test: list[Row]
    num_empty: int = 0
    """Rows without a text, which are left out."""

    @property
    def held_out(self) -> dict[str, list[Row]]:
        return {"validation": self.valid, "test": self.test}


def split(data: LabelledData) -> Split:
    """Read the data and split it.

    Parts without files of their own are sampled from the training data, stratified by label, with
    the random seed `data.split_seed`. With folds, the test data is one of the equal parts.
    """
    columns = Columns(data.column, data.text_column, data.second_column)
    empty: list[Texts] = []
    rows = read_labelled(data.train, columns, empty)
    valid = read_labelled(data.valid, columns, empty) if data.valid else []
    test = read_labelled(data.test, columns, empty) if data.test else []
    order = _mixed([label for _, label in rows], data.split_seed)
    if data.num_folds:
        held = set(order[data.fold - 1 :: data.num_folds])
        test = [rows[i] for i in order if i in held]
        order = [i for i in order if i not in held]
    elif not test and data.test_fraction:
        held_out, order = _held_out(order, round(len(order) * data.test_fraction))
        test = [rows[i] for i in held_out]
    if not valid:
        held_out, order = _held_out(order, max(1, round(len(order) * data.valid_fraction)))
        valid = [rows[i] for i in held_out]
    return Split([rows[i] for i in sorted(order)], valid, test, len(empty))


def _mixed(labels: Sequence[str], seed: int) -> list[int]:
    """Indices sorted by label, in random order within each: taking every n-th is stratified."""
    mixed = np.random.default_rng(seed).permutation(len(labels)).tolist()
    return sorted(mixed, key=lambda index: labels[index])


def _held_out(order: list[int], count: int) -> tuple[list[int], list[int]]:
    """`count` of the indices, evenly spaced, and the others."""
    places = [(2 * i + 1) * len(order) // (2 * count) for i in range(count)]
    return [order[i] for i in places], np.delete(order, places).tolist()


def set_up(config: ClassifierRun, out: Path, resume: bool) -> Classification:
    embedder = set_up_embedder(config.model.embeddings, out, resume)
    data = split(config.data)
    labels = tuple(sorted({label for _, label in data.train}))
    if len(labels) < 2:
        raise UsageError(
            f"the texts to learn from have only one label, '{labels[0]}'",
            "give more texts: without --valid, some are held out",
        )
    for kind, held_out in data.held_out.items():
        theirs = sorted({label for _, label in held_out})
        if theirs and not set(theirs) & set(labels):
            raise UsageError(
                f"no {kind} text has a label of the training texts",
                f"theirs are {some_of(labels)}, those of the {kind} texts {some_of(theirs)}",
            )
    if resume:
        vocabulary = LabelVocabulary.load(out)
        check_vocabulary(out, vocabulary, checkpoint.read_header(out / MODEL_FILE))
        if vocabulary.labels != labels:
            raise ElmanError(
                "cannot resume: the labels of the data have changed",
                "resume with the same data, or start a new run",
            )
    else:
        lines = (" ".join(text.split()) for texts, _ in data.train for text in texts)
        vocabulary = LabelVocabulary(train_on_texts(lines, config.tokenizer), labels)
        vocabulary.save(out)
    return Classification(config, vocabulary, data, embedder)


def open_model(path: Path, config: ClassifierRun, header: Mapping[str, Any]) -> OpenedModel:
    require(path, TOKENIZER_FILE, LABELS_FILE)
    vocabulary = LabelVocabulary.load(path)
    check_vocabulary(path, vocabulary, header)
    embedder = open_kept(config.model.embeddings, path)
    return partial(_model, config, vocabulary, embedder), vocabulary


@dataclass(frozen=True)
class Classification:
    """The texts of a run."""

    config: ClassifierRun
    vocabulary: LabelVocabulary
    data: Split
    embedder: Embedder | None = None

    def scale(self) -> str:
        return (
            f"{len(self.data.train):,} {self._rows} ({sum(self.lengths):,} tokens) for "
            f"training, {len(self.data.valid):,} for validation, "
            f"{self.vocabulary.vocab_size:,} types, "
            f"{len(self.vocabulary.labels)} labels"
        )

    @property
    def caveats(self) -> list[str]:
        """What the user should know of the data."""
        notes, labels, what = [], self.vocabulary.labels, self._rows
        if number := self.data.num_empty:
            are = "is" if number == 1 else "are"
            notes.append(f"{counted(number, 'row')} without a text {are} left out")
        alike: dict[str, list[str]] = {}
        for label in labels:
            alike.setdefault(label.casefold(), []).append(label)
        if twins := [" and ".join(some) for some in alike.values() if len(some) > 1]:
            notes.append(f"labels that differ only in capitals: {some_of(twins)}")
        for kind, rows in self.data.held_out.items():
            new = Counter(label for _, label in rows if label not in self.vocabulary.label_ids)
            if new:
                total = f"{new.total():,} of {len(rows):,} {kind} {what}"
                lacking = f"have labels that the training texts lack: {some_of(sorted(new))}"
                notes.append(f"{total} {lacking}")
        texts = {kind: [row for row, _ in rows] for kind, rows in self.data.held_out.items()}
        return notes + repeated_rows((row for row, _ in self.data.train), texts, what)

    def build(self) -> Classifier:
        return _model(self.config, self.vocabulary, self.embedder)

    @cached_property
    def encoded(self) -> list[list[list[int]]]:
        """The ids of each row's texts."""
        return [self.vocabulary.encode_row(texts) for texts, _ in self.data.train]

    @property
    def lengths(self) -> list[int]:
        """The tokens of each row."""
        return [sum(map(len, row)) for row in self.encoded]

    @property
    def _rows(self) -> str:
        return "pairs of texts" if self.config.data.second_column else "texts"

    def trainable(self, model: Any) -> Trainable:
        training = self.config.training
        rows = [[np.array(text, np.int64) for text in row] for row in self.encoded]
        labels = [self.vocabulary.label_ids[label] for _, label in self.data.train]
        weights_N = None
        if self.config.objective.class_weights == "balanced":
            counts_N = torch.bincount(torch.tensor(labels), minlength=len(self.vocabulary.labels))
            weights_N = len(labels) / (len(counts_N) * counts_N.float())
            weights_N = weights_N.to(model.output.weight.device)

        spelled: list[list[Spelled]] = []
        if model.embeddings.wanted:
            spelled = [self.vocabulary.spell_row(texts) for texts, _ in self.data.train]
            valid = (self.vocabulary.spell_row(texts) for texts, _ in self.data.valid)
            model.embeddings.remember([text.words for row in chain(spelled, valid) for text in row])

        graphed = training.replays(model)

        def make(indices: list[int]) -> LabelledBatch:
            batch = batch_of_rows(
                [rows[i] for i in indices],
                [labels[i] for i in indices],
                [spelled[i] for i in indices] if spelled else None,
            )
            return batch.bucketed() if graphed else batch

        def validate(limit: int | None) -> Validation:
            found = self._evaluate(model, self.data.valid, limit)
            return Validation(None, None, found.tokens, self._metrics(found))

        return Trainable(
            model=model,
            objective=partial(classification, self.config.objective, model, weights_N),
            unfreezing=model.embeddings.unfreezing(),
            batches=SentenceBatches(
                self.lengths,
                make,
                batch_size=training.batch_size,
                equal=not self.config.data.second_column,
                seed=training.seed,
            ),
            validate=validate,
            valid_tokens=sum(map(self._num_tokens, self.data.valid)),
            probe=lambda: self._evaluate(model, self.data.valid[:PROBE_TEXTS], None).tokens,
            test_tokens=sum(map(self._num_tokens, self.data.test)),
            graphed=graphed,
            exact=False,
            about=about(self.vocabulary),
        )

    def test(self, model: Any, limit: int | None) -> dict[str, Any]:
        found = self._evaluate(model, self.data.test, limit)
        return {**self._metrics(found), "tokens": found.tokens}

    def describe(self) -> str:
        labels = self.vocabulary.labels
        return f"A classifier of {self._rows} with {len(labels)} labels ({some_of(labels, most=8)})"

    def _evaluate(
        self, model: Classifier, rows: list[Row], limit: int | None
    ) -> ClassificationEvaluation:
        some = list(beginning(rows, self._num_tokens, limit))
        return evaluate_classifier(model, self.vocabulary, some)

    def _num_tokens(self, row: Row) -> int:
        return sum(map(len, self.vocabulary.encode_row(row[0])))

    def _metrics(self, found: ClassificationEvaluation) -> dict[str, float]:
        """Figures by name; the first decides which model is best: F1 if labels are unbalanced."""
        counts = Counter(label for _, label in self.data.train)
        names = ["accuracy", "balanced_accuracy", "macro_f1"]
        if found.f1 is not None:
            names.append("f1")
        if self.config.objective.class_weights == "balanced":
            first = "balanced_accuracy"
        elif max(counts.values()) > SKEW * min(counts.values()):
            first = "macro_f1" if found.f1 is None else "f1"
        else:
            first = "accuracy"
        names.sort(key=lambda name: name != first)
        return {name: getattr(found, name) for name in names}


def _model(
    config: ClassifierRun, vocabulary: LabelVocabulary, embedder: Embedder | None
) -> Classifier:
    return config.model.build(
        vocabulary.vocab_size,
        len(vocabulary.labels),
        embedder=embedder,
        pairs=bool(config.data.second_column),
    )
