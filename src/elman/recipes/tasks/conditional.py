"""Text given a label: files whose names are the labels, one text a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from elman.base.config import merge
from elman.base.errors import UsageError, nearest
from elman.batches.buckets import SentenceBatches
from elman.batches.conditional import ConditionalBatch, conditional_batch
from elman.batches.lines import Lines, encode_lines, line_end_id
from elman.decode.conditional import decode
from elman.decode.config import DecodeConfig
from elman.decode.prefix import reading
from elman.evaluate.conditional import Prediction, evaluation_batches, predict
from elman.objectives.regimes import Regime
from elman.recipes.card import KINDS
from elman.recipes.config import RunConfig
from elman.recipes.machine import Machine
from elman.recipes.run_folder import about, check_vocabulary, require
from elman.recipes.tasks import Choice, Opened, Request
from elman.text.sources import Paths, expand
from elman.tokens.tokenizer import TOKENIZER_FILE, Tokenizer
from elman.tokens.train import train_tokenizer
from elman.train import checkpoint
from elman.train.loop import MODEL_FILE, Task, Validation

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
            f"there is too little to learn from: {len(train)} texts",
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


def open_model(path: Path, config: RunConfig, header: Mapping[str, Any]) -> Opened:
    """The network of a run folder, weights to be loaded, and its tokenizer."""
    require(path, TOKENIZER_FILE)
    tokenizer = Tokenizer.load(path / TOKENIZER_FILE)
    check_vocabulary(path, tokenizer, header)
    return config.model.build(tokenizer.vocab_size), tokenizer


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
        return sum(self.valid.lengths)

    @property
    def test_tokens(self) -> int:
        """Tokens to test on."""
        return 0 if self.test_texts is None else sum(self.test_texts.lengths)

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
        counts_V[self.tokenizer.boundary_id] = len(self.train)
        model: nn.Module = self.config.model.build(
            self.tokenizer.vocab_size, counts_V=torch.as_tensor(counts_V)
        )
        return model

    def task(self, model: Any) -> Task:
        """Texts of like length side by side, their likelihood, a sample of some label."""
        training, boundary_id = self.config.training, self.tokenizer.boundary_id
        regime = Regime.of(self.config.objective, model, end_id=boundary_id)

        def validate(texts: LabelledTexts) -> Validation:
            found = measure(model, self.tokenizer, texts)
            return Validation(found.nats_per_token, None, found.tokens)

        def draw(seed: int) -> str:
            labels = self.config.model.labels
            number = seed % len(labels)
            with reading(model):
                state = model.condition(torch.tensor([number], device=model.labels.weight.device))
            config = DecodeConfig(max_tokens=training.sample_length, seed=seed)
            ((text,),) = decode(model, state, config, boundary_id=boundary_id)
            return f"{labels[number]}: {self.tokenizer.decode(text.tokens[:-1])}"

        return Task(
            model=model,
            objective=regime,
            regime=regime,
            batches=SentenceBatches(
                self.train.lengths,
                partial(self.train.batch, boundary_id),
                batch_size=training.batch_size,
                seed=training.seed,
            ),
            validate=lambda limit: validate(_beginning(self.valid, limit)),
            valid_tokens=self.valid_tokens,
            probe=lambda: validate(self.valid.part(slice(0, PROBED))).num_tokens,
            test_tokens=self.test_tokens,
            sample=draw,
            exact=model.head.exact and regime.reads_the_truth,
            about=about(self.tokenizer),
        )

    def test(self, model: Any, limit: int | None) -> dict[str, Any]:
        """The likelihood of texts, each given its label."""
        assert self.test_texts is not None
        found = measure(model, self.tokenizer, _beginning(self.test_texts, limit))
        names = ("perplexity", "nats_per_token", "accuracy", "tokens")
        return {name: getattr(found, name) for name in names}

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


def measure(model: Any, tokenizer: Tokenizer, texts: LabelledTexts) -> Prediction:
    """How well texts are predicted, each given its label."""
    make = partial(texts.batch, tokenizer.boundary_id)
    return predict(model, evaluation_batches(make, texts.lengths))


def _beginning(texts: LabelledTexts, num_tokens: int | None) -> LabelledTexts:
    if num_tokens is None:
        return texts
    number = int(np.searchsorted(np.cumsum(texts.lengths), num_tokens))
    return texts.part(slice(0, max(1, number)))
