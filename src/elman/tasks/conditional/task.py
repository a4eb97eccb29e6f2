"""Text given a label: files whose names are the labels, one text a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from elman.base.config import merge
from elman.base.counting import counted
from elman.base.errors import UsageError, nearest
from elman.batches.conditional import ConditionalBatch, conditional_batch
from elman.batches.lines import Lines, encode_lines, line_end_id
from elman.decode.conditional import decode
from elman.decode.options import DecodeOptions
from elman.decode.prefix import reading
from elman.runs.card import KINDS
from elman.runs.machine import Machine
from elman.runs.run_config import RunConfig
from elman.runs.run_folder import check_vocabulary
from elman.tasks import Choice, Request
from elman.tasks import conditioned as given
from elman.text.sources import Paths, expand
from elman.tokens.tokenizer import TOKENIZER_FILE, Tokenizer
from elman.tokens.train import train_tokenizer
from elman.train import checkpoint
from elman.train.loop import MODEL_FILE
from elman.train.trainable import Trainable

PROBED = 64
"""Texts that go through before training."""
FEWEST = 10
"""Fewer texts than this are a mistake."""


def choose(request: Request, machine: Machine) -> Choice:
    """A small model of characters; the labels are the names of the files."""
    labels = [label_of(file) for file in expand(request.data.train)]
    asked = merge(request.asked, {"model": {"labels": sorted(set(labels))}})
    if request.recipe is not None:
        return Choice(request.base, asked, lambda config: [])
    units = 256 if machine.is_gpu else 128
    chosen = {
        "tokenizer": {"kind": "char"},
        "model": {
            "kind": "conditional",
            "decoder": {
                "attention": "none",
                "context": "both",
                "hidden_size": units,
                "embedding_size": units // 4,
                "dropout_output": 0.2,
            },
        },
        "optimiser": {"kind": "adam", "learning_rate": 0.004},
        "schedule": {"kind": "cosine", "warmup_steps": 100},
        "training": {"batch_size": 64, "epochs": 10},
    }
    return Choice(chosen, asked, partial(_sentences, machine))


def _sentences(machine: Machine, config: RunConfig) -> list[str]:
    decoder = config.model.decoder
    return [
        f"{len(config.model.labels)} labels, the names of the files",
        f"{config.tokenizer.kind}: {decoder.num_layers} x {decoder.hidden_size} "
        f"{decoder.cell.upper()} units on {machine.description}",
    ]


def label_of(file: Path) -> str:
    """The label of a file: its name without endings."""
    return file.name.split(".")[0]


def set_up(config: RunConfig, out: Path, resume: bool) -> ConditionalModelling:
    """Encode the texts, with a new tokenizer unless the run has one."""
    data = config.data
    files = expand(data.train)
    if resume:
        tokenizer = Tokenizer.load(out / TOKENIZER_FILE)
        check_vocabulary(out, tokenizer, checkpoint.read_header(out / MODEL_FILE))
    else:
        tokenizer, _ = train_tokenizer(files, config.tokenizer)
        tokenizer.save(out / TOKENIZER_FILE)
    labels = config.model.labels
    train = read_texts(files, tokenizer, labels)
    if len(train) < FEWEST:
        raise UsageError(
            f"there is too little to learn from: {counted(len(train), 'text')}",
            "give it some hundred lines at the least",
        )
    if data.valid:
        valid = read_texts(data.valid, tokenizer, labels)
    else:
        # Drawn from all of the files: the end of the last one would be of one label.
        order = np.random.default_rng(0).permutation(len(train))
        cut = min(len(train) - 1, round(len(train) * (1 - data.valid_fraction)))
        train, valid = train.part(np.sort(order[:cut])), train.part(np.sort(order[cut:]))
    test = read_texts(data.test, tokenizer, labels) if data.test else None
    return ConditionalModelling(config, tokenizer, train, valid, test)


open_model = given.open_model


@dataclass(frozen=True)
class LabelledTexts:
    """Lines of several files, each with the number of its file's label."""

    files: tuple[Lines, ...]
    places: NDArray[np.int64]
    """(texts, 3) of each text: its file, its line there, its label."""

    def __len__(self) -> int:
        return len(self.places)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each text, the mark that ends it included."""
        return [len(self.ids(index)) + 1 for index in range(len(self))]

    def ids(self, index: int) -> NDArray[np.int64]:
        """The ids of one text."""
        file, line, _ = self.places[index].tolist()
        ids: NDArray[np.int64] = self.files[file][line]
        return ids

    def part(self, indices: NDArray[np.int64] | slice) -> LabelledTexts:
        """Some of the texts."""
        return LabelledTexts(self.files, self.places[indices])

    def first(self, number: int) -> LabelledTexts:
        """The first so many."""
        return self.part(slice(0, number))

    def batch(self, boundary_id: int, indices: Sequence[int]) -> ConditionalBatch:
        """Some of the texts and their labels."""
        labels_B = torch.from_numpy(self.places[list(indices), 2])
        return conditional_batch((labels_B,), [self.ids(i) for i in indices], boundary_id)


def read_texts(paths: Paths, tokenizer: Tokenizer, labels: Sequence[str]) -> LabelledTexts:
    """The lines of files, empty ones left out; a file whose label is not known is told."""
    files, places = [], []
    for number, file in enumerate(expand(paths)):
        label = label_of(file)
        if label not in labels:
            raise UsageError(
                f"{file}: the model knows no label '{label}'", nearest(label, list(labels))
            )
        lines = encode_lines(file, tokenizer)
        full = np.flatnonzero(lines.lengths > 0)
        places.append(
            np.stack(
                [np.full_like(full, number), full, np.full_like(full, list(labels).index(label))],
                axis=1,
            )
        )
        files.append(lines)
    return LabelledTexts(tuple(files), np.concatenate(places))


@dataclass(frozen=True)
class ConditionalModelling:
    """The texts of a run, encoded."""

    config: RunConfig
    tokenizer: Tokenizer
    train: LabelledTexts
    valid: LabelledTexts
    test_texts: LabelledTexts | None

    @property
    def valid_tokens(self) -> int:
        """Tokens to validate on."""
        return given.num_tokens(self.valid)

    @property
    def test_tokens(self) -> int:
        """Tokens to test on."""
        return given.num_tokens(self.test_texts)

    def scale(self) -> str:
        """Texts, labels and types."""
        return (
            f"{len(self.train):,} texts of {len(self.config.model.labels)} labels to learn from, "
            f"{len(self.valid):,} to validate on, {self.tokenizer.vocab_size:,} types"
        )

    def build(self) -> nn.Module:
        """A model as it is at the start."""
        counts_V = sum(
            lines.text.counts(self.tokenizer.vocab_size) for lines in self.train.files
        ) + np.zeros(self.tokenizer.vocab_size, np.int64)
        counts_V[line_end_id(self.tokenizer)] = 0
        return given.build(self.config, self.tokenizer, counts_V, len(self.train))

    def task(self, model: Any) -> Trainable:
        """Texts of like length side by side, their likelihood, a sample of some label."""

        def draw(seed: int) -> str:
            labels = self.config.model.labels
            number = seed % len(labels)
            with reading(model):
                state = model.condition(torch.tensor([number], device=model.labels.weight.device))
            config = DecodeOptions(max_tokens=self.config.training.sample_length, seed=seed)
            ((text,),) = decode(model, state, config, boundary_id=self.tokenizer.boundary_id)
            return f"{labels[number]}: {self.tokenizer.decode(text.tokens[:-1])}"

        return given.task(
            self.config,
            self.tokenizer,
            model,
            train=self.train,
            valid=self.valid,
            test=self.test_texts,
            num_probed=PROBED,
            sample=draw,
        )

    def test(self, model: Any, limit: int | None) -> dict[str, Any]:
        """The likelihood of texts, each given its label."""
        assert self.test_texts is not None
        texts = given.beginning(self.test_texts, limit)
        return given.figures(given.likelihood(model, self.tokenizer, texts))

    def describe(self) -> str:
        """What is predicted, and given what."""
        return (
            f"A language model over {KINDS[self.tokenizer.kind]} "
            f"({self.tokenizer.vocab_size:,} of them), given one of "
            f"{len(self.config.model.labels)} labels"
        )

    def uses(self) -> tuple[str, ...]:
        """Write texts of a label, measure."""
        return ("elman generate FOLDER --label LABEL", "elman evaluate FOLDER FILE...")
