"""Train taggers: sentences in batches of equal length, measured by accuracy or F1 of entities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from elman.base.config import merge
from elman.base.counting import counted, some_of
from elman.base.errors import ElmanError, UsageError
from elman.batches.buckets import SentenceBatches, beginning
from elman.models.embedder import Embedder
from elman.nn.character_cnn import spelling_table
from elman.runs.machine import Machine
from elman.runs.run_folder import MODEL_FILE, about, check_vocabulary, require
from elman.tasks import Draft, OpenedModel, Proposal
from elman.tasks.embeddings import open_kept, set_up_embedder
from elman.tasks.tagging.batches import EncodedSentences, TaggedBatch, encode_tagged, tagged_batch
from elman.tasks.tagging.entities import may_follow, scheme_of
from elman.tasks.tagging.evaluation import Row, evaluate_tagger
from elman.tasks.tagging.model import Tagger
from elman.tasks.tagging.objective import tagging
from elman.tasks.tagging.reading import read_tagged
from elman.tasks.tagging.settings import TaggedData, TaggerRun
from elman.tasks.tagging.vocabulary import TagVocabulary, make_vocabulary
from elman.text.records import TABLES
from elman.text.repeated import repeated_rows
from elman.text.sources import expand, file_lines
from elman.text.tables import suffix_of
from elman.train import checkpoint
from elman.train.trainable import Trainable, Validation

VOCABULARY_FILE = "vocabulary.json"
PROBE_TOKENS = 2000
"""Words in the validation batches before the first update."""


def choose(draft: Draft, machine: Machine) -> Proposal:
    """Choose a softmax for plain tags, a CRF for entities; the length by the size of the data."""
    data = cast(TaggedData, draft.data)
    rows = read_rows(data.train, data.column)
    known = sorted({tag for _, tags in rows for tag in tags if tag is not None})
    if len(known) < 2:
        raise UsageError(
            f"all words of {', '.join(data.train)} have the tag '{known[0]}'",
            "name another column of tags with --column",
        )
    total = sum(map(num_words, rows))
    scheme = scheme_of([tag for tag in tags if tag is not None] for _, tags in rows)
    epochs = max(5, min(40, round(2.5e6 / max(1, total))))  # more for small data
    automatic: dict[str, Any] = {
        "model": {"output": "softmax" if scheme is None else "crf"},
        "optimiser": {"kind": "adam", "learning_rate": 0.002},
        "schedule": {"kind": "cosine", "warmup_steps": 100},
        "training": {
            "batch_size": 32,
            "clip_norm": 1.0,
            "epochs": epochs,
            "precision": "auto",
        },
    }

    def notes(config: TaggerRun) -> list[str]:
        model = config.model
        what = "tags" if scheme is None else f"entities in {scheme.upper()}"
        found = [
            f"{counted(len(known), 'tag')}: {some_of(known, most=8)}",
            f"{what}, {model.num_layers} layers of {model.hidden_size} {model.cell.upper()} units "
            f"{'in each direction' if model.bidirectional else 'from left to right'}, "
            f"over words and characters, {model.output} output",
            *config.training.precision_notes(machine.is_gpu),
        ]
        if not config.data.valid:
            found.append(f"validation on {config.data.held_out}")
        return found

    return Proposal(merge(automatic, draft.base), draft.asked, notes)


def read_rows(paths: Sequence[str], column: str) -> list[Row]:
    """Read the words and tags of all sentences."""
    rows: list[Row] = []
    for path in expand(paths):
        if suffix_of(path) in TABLES:
            raise UsageError(
                f"a tagger does not read {suffix_of(path)} files, such as {path}",
                "give CoNLL-U, or one word per line, its tag after it, and an empty line after a "
                "sentence",
            )
        sentences = read_tagged(file_lines(path), str(path), column=column)
        found = [(sentence.words, sentence.tags) for sentence in sentences if sentence.words]
        if len(found) > 1 and all(_are_numbers(words) for words, _ in found):
            raise UsageError(
                f"the first column of {path} counts the words", "remove it: cut -f2- OLD > NEW"
            )
        rows += found
    if not any(tag is not None for _, tags in rows for tag in tags):
        raise ElmanError(
            f"no word of {', '.join(map(str, paths))} has a tag"
            + (f" in the column {column}" if column else ""),
            "name another column with --column",
        )
    return rows


def _are_numbers(words: Sequence[str]) -> bool:
    return all(word == str(number) for number, word in enumerate(words, start=1))


def set_up(config: TaggerRun, out: Path, resume: bool) -> Tagging:
    embedder = set_up_embedder(config.model.embeddings, out, resume)
    data = config.data
    rows = [row for row in read_rows(data.train, data.column) if None not in row[1]]
    if data.valid:
        train, valid = rows, read_rows(data.valid, data.column)
    else:
        cut = round(len(rows) * (1 - data.valid_fraction))
        train, valid = rows[:cut], rows[cut:]
    if not train or not valid:
        raise UsageError(
            f"too little data: {counted(len(rows), 'tagged sentence')} of "
            f"{counted(sum(map(num_words, rows)), 'word')}",
            "give at least a few hundred sentences, with an empty line after each",
        )
    words = config.tokenizer
    made, counts = make_vocabulary(
        train, min_count=words.min_count, vocab_size=words.vocab_size, lowercase=words.lowercase
    )
    if resume:
        kept = TagVocabulary.load(out / VOCABULARY_FILE)
        check_vocabulary(out, kept, checkpoint.read_header(out / MODEL_FILE), VOCABULARY_FILE)
        if made != kept:
            raise ElmanError(
                "cannot resume: the words or labels of the data have changed",
                "resume with the same data, or start a new run",
            )
    else:
        made.save(out / VOCABULARY_FILE)
    test = read_rows(data.test, data.column) if data.test else []
    tagging = Tagging(config, made, counts, train, valid, test, embedder)
    for kind, held_out in tagging.held_out.items():
        theirs = {tag for _, tags in held_out for tag in tags if tag is not None}
        if theirs and not any(tagging.knows(tags) for _, tags in held_out):
            raise UsageError(
                f"no {kind} word has a tag of the training text",
                f"theirs are {some_of(made.tags)}, those of the {kind} words "
                f"{some_of(sorted(theirs))}",
            )
    return tagging


def open_model(path: Path, config: TaggerRun, header: Mapping[str, Any]) -> OpenedModel:
    require(path, VOCABULARY_FILE)
    vocabulary = TagVocabulary.load(path / VOCABULARY_FILE)
    check_vocabulary(path, vocabulary, header, VOCABULARY_FILE)
    embedder = open_kept(config.model.embeddings, path)
    return partial(_model, config, vocabulary, embedder), vocabulary


@dataclass(frozen=True)
class Tagging:
    """The sentences of a run."""

    config: TaggerRun
    vocabulary: TagVocabulary
    counts: list[int]
    """How often each word id occurs in the training data."""
    train: list[Row]
    valid: list[Row]
    test_rows: list[Row]
    embedder: Embedder | None = None

    def scale(self) -> str:
        return (
            f"{len(self.train):,} sentences ({sum(self.encoded.lengths):,} words) for training, "
            f"{len(self.valid):,} for validation, {len(self.vocabulary.words):,} word types, "
            f"{len(self.vocabulary.labels)} labels"
        )

    @property
    def held_out(self) -> dict[str, list[Row]]:
        return {"validation": self.valid, "test": self.test_rows}

    def knows(self, tags: Sequence[str | None]) -> bool:
        """Whether the model has a label of a sentence."""
        return not set(self.vocabulary.labels).isdisjoint(self.vocabulary.to_labels(tags))

    @property
    def caveats(self) -> list[str]:
        """What the user should know of the data."""
        notes = []
        for kind, rows in self.held_out.items():
            labels = Counter(
                label
                for _, tags in rows
                if None not in tags
                for label in self.vocabulary.to_labels(tags)
            )
            new = sorted(map(str, labels.keys() - self.vocabulary.label_ids))
            if new:
                number = sum(labels[label] for label in new)
                total = f"{number:,} of {labels.total():,} {kind} words"
                notes.append(f"{total} have tags that the training text lacks: {some_of(new)}")
        texts = {kind: [tuple(words) for words, _ in rows] for kind, rows in self.held_out.items()}
        return notes + repeated_rows((tuple(words) for words, _ in self.train), texts, "sentences")

    def build(self) -> Tagger:
        return _model(self.config, self.vocabulary, self.embedder, torch.tensor(self.counts))

    @cached_property
    def encoded(self) -> EncodedSentences:
        """The training data."""
        vocabulary = self.vocabulary
        return encode_tagged(
            ((words, vocabulary.to_labels(tags)) for words, tags in self.train), vocabulary
        )

    def trainable(self, model: Any) -> Trainable:
        training, data = self.config.training, self.encoded
        max_characters = self.config.model.character_cnn.max_characters
        spellings_SC = spelling_table(data.spellings, max_characters)
        spellings = data.spellings if model.embeddings.wanted else None
        model.embeddings.remember(words for words, _ in (*self.train, *self.valid))

        graphed = training.replays(model)

        def make(indices: list[int]) -> TaggedBatch:
            sentences = [data.sentences[i] for i in indices]
            batch = tagged_batch(sentences, spellings_SC, spellings)
            return batch.bucketed() if graphed else batch

        def validate(limit: int | None) -> Validation:
            found = self._figures(model, self.valid, limit)
            return Validation(None, None, cast(int, found.pop("tokens")), found)

        return Trainable(
            model=model,
            objective=partial(tagging, model),
            unfreezing=model.embeddings.unfreezing(),
            batches=SentenceBatches(
                data.lengths, make, batch_size=training.batch_size, equal=True, seed=training.seed
            ),
            validate=validate,
            valid_tokens=sum(map(num_words, self.valid)),
            probe=lambda: validate(PROBE_TOKENS).num_tokens,
            test_tokens=sum(map(num_words, self.test_rows)),
            graphed=graphed,
            exact=False,
            about=about(self.vocabulary),
        )

    def test(self, model: Any, limit: int | None) -> dict[str, float]:
        return self._figures(model, self.test_rows, limit)

    def describe(self) -> str:
        labels = self.vocabulary.labels
        return f"A tagger of {len(labels)} labels ({some_of(labels, most=8)})"

    def _figures(self, model: Tagger, rows: list[Row], limit: int | None) -> dict[str, float]:
        """Measure; the first figure decides which model is best: F1 of entities, else accuracy."""
        some = list(beginning(rows, num_words, limit))
        found = evaluate_tagger(model, self.vocabulary, some)
        names = ["accuracy"] if found.f1 is None else ["f1", "precision", "recall", "accuracy"]
        return {name: getattr(found, name) for name in [*names, "tokens"]}


def num_words(row: Row) -> int:
    return len(row[0])


def _model(
    config: TaggerRun,
    vocabulary: TagVocabulary,
    embedder: Embedder | None,
    counts_V: Tensor | None = None,
) -> Tagger:
    return config.model.build(
        vocabulary.vocab_size,
        len(vocabulary.labels),
        counts_V=counts_V,
        allowed=allowed_labels(config, vocabulary),
        embedder=embedder,
    )


def allowed_labels(config: TaggerRun, vocabulary: TagVocabulary) -> Tensor | None:
    """Which label may follow which, for the CRF; None: all."""
    if vocabulary.scheme is None or not config.model.constrained:
        return None
    edges = [*vocabulary.labels, None, None]
    return torch.tensor([[may_follow(a, b) for b in edges] for a in edges])
