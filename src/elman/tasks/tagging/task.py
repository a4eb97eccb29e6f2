"""Taggers as a task: tagged sentences in buckets, judged by accuracy or by F1 over entities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from elman.base.config import merge
from elman.base.counting import counted
from elman.base.errors import ElmanError, UsageError
from elman.batches.buckets import SentenceBatches
from elman.models.embedder import Embedder
from elman.nn.character_cnn import spelling_table
from elman.runs.machine import Machine
from elman.runs.run_config import RunConfig
from elman.runs.run_folder import about, check_vocabulary, require
from elman.tasks import Choice, Opened, Request
from elman.tasks.embeddings import open_kept, set_up_embedder
from elman.tasks.tagging.batches import TaggedBatch, TaggedData, encode_tagged, tagged_batch
from elman.tasks.tagging.entities import may_follow, scheme_of
from elman.tasks.tagging.evaluation import Row, evaluate_tagger
from elman.tasks.tagging.model import Tagger
from elman.tasks.tagging.objective import tagging
from elman.tasks.tagging.reading import read_tagged
from elman.tasks.tagging.vocabulary import TagVocabulary, make_vocabulary
from elman.text.sources import expand, file_lines
from elman.train import checkpoint
from elman.train.loop import MODEL_FILE, Task, Validation

VOCABULARY_FILE = "vocabulary.json"
PROBE_TOKENS = 2000
"""Words in the validation batches that go before training."""


def choose(request: Request, machine: Machine) -> Choice:
    """A bidirectional LSTM over words and characters; a CRF where the tags are entities."""
    rows = read_rows(request.data.train, request.data.column)
    num_words = sum(len(words) for words, _ in rows)
    scheme = scheme_of([tag for tag in tags if tag is not None] for _, tags in rows)
    automatic: dict[str, Any] = {
        "tokenizer": {"kind": "word", "lowercase": True},
        "model": {"kind": "tagger", "output": "softmax" if scheme is None else "crf"},
        "optimiser": {"kind": "adam", "learning_rate": 0.002},
        "schedule": {"kind": "cosine", "warmup_steps": 100},
        "training": {"batch_size": 32, "clip_norm": 1.0, "epochs": epochs_for(num_words)},
    }
    base = merge(automatic, request.base)

    def notes(config: RunConfig) -> list[str]:
        model = config.model
        what = "tags" if scheme is None else f"entities in {scheme.upper()}"
        said = [
            f"{what}, {model.num_layers} levels of {model.hidden_size} {model.cell.upper()} units "
            f"in each direction over words and characters, {model.output} output"
        ]
        if not config.data.valid:
            said.append(
                f"the last {config.data.valid_fraction:.0%} of the sentences are held out for "
                "validation"
            )
        return said

    return Choice(base, request.asked, notes)


def epochs_for(num_words: int) -> int:
    """Passes over the data where no length is given: small data is read more often."""
    return max(5, min(40, round(2.5e6 / max(1, num_words))))


def read_rows(paths: Sequence[str], column: str) -> list[Row]:
    """The words and tags of the sentences of files."""
    rows: list[Row] = []
    for path in expand(paths):
        for sentence in read_tagged(file_lines(path), str(path), column=column):
            if sentence.words:
                rows.append((sentence.words, sentence.tags))
    if not any(tag is not None for _, tags in rows for tag in tags):
        raise ElmanError(
            f"no word of {', '.join(map(str, paths))} has a tag"
            + (f" in the column {column}" if column else ""),
            "name another column with --column",
        )
    return rows


def set_up(config: RunConfig, out: Path, resume: bool) -> Tagging:
    """Read the sentences; words and labels are those of the training data."""
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
            f"there is too little to learn from: {counted(len(rows), 'tagged sentence')}",
            "give it some hundred sentences at the least, with an empty line after each",
        )
    tokenizer = config.tokenizer
    made, counts = make_vocabulary(
        train,
        min_count=tokenizer.min_count,
        vocab_size=tokenizer.vocab_size,
        lowercase=tokenizer.lowercase,
    )
    if resume:
        kept = TagVocabulary.load(out / VOCABULARY_FILE)
        check_vocabulary(out, kept, checkpoint.read_header(out / MODEL_FILE), VOCABULARY_FILE)
        if made != kept:
            raise ElmanError(
                "the run cannot go on: its data has other words or labels than when it began",
                "resume with the same data, or start a new run",
            )
    else:
        made.save(out / VOCABULARY_FILE)
    test = read_rows(data.test, data.column) if data.test else []
    return Tagging(config, made, counts, train, valid, test, embedder)


def open_model(path: Path, config: RunConfig, header: Mapping[str, Any]) -> Opened:
    """The network of a run folder, weights to be loaded, and its words and labels."""
    require(path, VOCABULARY_FILE)
    vocabulary = TagVocabulary.load(path / VOCABULARY_FILE)
    check_vocabulary(path, vocabulary, header, VOCABULARY_FILE)
    embedder = open_kept(config.model.embeddings, path)
    return _model(config, vocabulary, embedder), vocabulary


@dataclass(frozen=True)
class Tagging:
    """The sentences of a run."""

    config: RunConfig
    vocabulary: TagVocabulary
    counts: list[int]
    """How often each word id occurs in the training data."""
    train: list[Row]
    valid: list[Row]
    test_rows: list[Row]
    embedder: Embedder | None = None
    """Pre-trained vectors, where the model reads some."""

    @property
    def valid_tokens(self) -> int:
        """Words to validate on."""
        return sum(len(words) for words, _ in self.valid)

    @property
    def test_tokens(self) -> int:
        """Words to test on."""
        return sum(len(words) for words, _ in self.test_rows)

    def scale(self) -> str:
        """Sentences, words and labels."""
        return (
            f"{len(self.train):,} sentences ({sum(self.encoded.lengths):,} words) to learn from, "
            f"{len(self.valid):,} to validate on, {len(self.vocabulary.words):,} word types, "
            f"{len(self.vocabulary.labels)} labels"
        )

    def build(self) -> Tagger:
        """A model as it is at the start."""
        return _model(self.config, self.vocabulary, self.embedder, torch.tensor(self.counts))

    @cached_property
    def encoded(self) -> TaggedData:
        """The training data as numbers."""
        vocabulary = self.vocabulary
        return encode_tagged(
            ((words, vocabulary.labelled(tags)) for words, tags in self.train), vocabulary
        )

    def task(self, model: Any) -> Task:
        """Buckets of sentences, the likelihood of their labels, accuracy or F1."""
        training, data = self.config.training, self.encoded
        spellings_SC = spelling_table(
            data.spellings, self.config.model.character_cnn.max_characters
        )

        spellings = data.spellings if model.embeddings.wanted else None
        model.embeddings.remember(words for words, _ in (*self.train, *self.valid))

        def make(indices: list[int]) -> TaggedBatch:
            return tagged_batch([data.sentences[i] for i in indices], spellings_SC, spellings)

        def validate(limit: int | None) -> Validation:
            found = self._figures(model, self.valid, limit)
            return Validation(None, None, cast(int, found.pop("tokens")), found)

        return Task(
            model=model,
            objective=partial(tagging, model),
            thawing=model.embeddings.thawing(),
            batches=SentenceBatches.of_equal_length(
                data.lengths, make, batch_size=training.batch_size, seed=training.seed
            ),
            validate=validate,
            valid_tokens=self.valid_tokens,
            probe=lambda: cast(int, self._figures(model, self.valid, PROBE_TOKENS)["tokens"]),
            test_tokens=self.test_tokens,
            exact=False,
            about=about(self.vocabulary),
        )

    def test(self, model: Any, limit: int | None) -> dict[str, float]:
        """The same figures on the test data."""
        return self._figures(model, self.test_rows, limit)

    def describe(self) -> str:
        """What it tells apart."""
        labels = self.vocabulary.labels
        return f"A tagger of {len(labels)} labels ({', '.join(labels[:8])}, ...)"

    def uses(self) -> tuple[str, ...]:
        """Tag a text, measure on tagged ones."""
        return ("elman tag FOLDER FILE", "elman evaluate FOLDER TAGGED")

    def _figures(self, model: Tagger, rows: list[Row], limit: int | None) -> dict[str, float]:
        """What decides first: F1 where the tags are entities, else accuracy."""
        found = evaluate_tagger(model, self.vocabulary, beginning(rows, limit))
        names = ["accuracy"] if found.f1 is None else ["f1", "precision", "recall", "accuracy"]
        return {name: getattr(found, name) for name in [*names, "tokens"]}


def beginning(rows: list[Row], num_tokens: int | None) -> list[Row]:
    """The first sentences with about so many words; all where it is None."""
    if num_tokens is None:
        return rows
    count = 0
    for index, (words, _) in enumerate(rows):
        count += len(words)
        if count >= num_tokens:
            return rows[: index + 1]
    return rows


def _model(
    config: RunConfig,
    vocabulary: TagVocabulary,
    embedder: Embedder | None,
    counts_V: Tensor | None = None,
) -> Tagger:
    allowed = None
    if vocabulary.scheme is not None and config.model.constrained:
        edges = [*vocabulary.labels, None, None]
        allowed = torch.tensor([[may_follow(a, b) for b in edges] for a in edges])
    model: Tagger = config.model.build(
        vocabulary.vocab_size,
        len(vocabulary.labels),
        counts_V=counts_V,
        allowed=allowed,
        embedder=embedder,
    )
    return model
