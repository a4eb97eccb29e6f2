"""Train language models that take a label: files named for labels, with one text per line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from elman.base.config import merge
from elman.base.counting import counted
from elman.base.errors import UsageError, nearest
from elman.batches.conditional import ConditionalBatch, conditional_batch
from elman.batches.lines import Lines, encode_lines, line_end_id
from elman.decode.conditional import decode
from elman.decode.options import DecodeOptions
from elman.models.interface import reading
from elman.runs.card import KINDS
from elman.runs.machine import Machine
from elman.tasks import Draft, Proposal, conditioned
from elman.tasks.conditional.model import ConditionalLM
from elman.tasks.conditional.settings import ConditionalRun
from elman.text.sources import Paths, expand
from elman.tokens.tokenizer import Tokenizer
from elman.tokens.train import train_tokenizer

FEWEST = 10
"""Less data than this is an error."""


def choose(draft: Draft, machine: Machine) -> Proposal:
    """Choose a small model of characters; the labels are the names of the files."""
    labels = sorted({label_of(file) for file in expand(draft.data.train)})
    if len(labels) < 2:
        raise UsageError(
            f"all texts have the label '{labels[0]}', the name of their file",
            "give a file for each label",
        )
    asked = merge(draft.asked, {"model": {"labels": labels}})
    if draft.recipe is not None:
        return Proposal(draft.base, asked, lambda config: [])
    units = 256 if machine.is_gpu else 128
    chosen = {
        "tokenizer": {"kind": "char"},
        "model": {
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
        "training": {"batch_size": 64, "epochs": 10, "precision": "auto"},
    }
    return Proposal(chosen, asked, partial(_notes, machine))


def _notes(machine: Machine, config: ConditionalRun) -> list[str]:
    decoder = config.model.decoder
    return [
        f"{len(config.model.labels)} labels, the names of the files",
        f"{config.tokenizer.kind}: {decoder.num_layers} x {decoder.hidden_size} "
        f"{decoder.cell.upper()} units on {machine.description}",
        *config.training.precision_notes(machine.is_gpu),
    ]


def label_of(file: Path) -> str:
    """The label of a file: its name without endings."""
    return file.name.split(".")[0]


def set_up(config: ConditionalRun, out: Path, resume: bool) -> ConditionalModelling:
    data = config.data
    files = expand(data.train)
    tokenizer = conditioned.run_tokenizer(
        out, resume, lambda: train_tokenizer(files, config.tokenizer)[0]
    )
    labels = config.model.labels
    train = read_texts(files, tokenizer, labels)
    if len(train) < FEWEST:
        raise UsageError(
            f"too little data: {counted(len(train), 'text')}", "give at least a few hundred lines"
        )
    if data.valid:
        valid = read_texts(data.valid, tokenizer, labels)
    else:
        # Sampled from all files: the end of the data would have only the last label.
        order = np.random.default_rng(0).permutation(len(train))
        cut = min(len(train) - 1, round(len(train) * (1 - data.valid_fraction)))
        train, valid = train.part(np.sort(order[:cut])), train.part(np.sort(order[cut:]))
    test = read_texts(data.test, tokenizer, labels) if data.test else None
    return ConditionalModelling(config, tokenizer, train, valid, test)


open_model = conditioned.open_model


@dataclass(frozen=True)
class LabelledTexts:
    """Lines of several files, each with the id of its file's label."""

    files: tuple[Lines, ...]
    places: NDArray[np.int64]
    """(texts, 3): file, line and label of each text."""

    def __len__(self) -> int:
        return len(self.places)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each text, the boundary at its end included."""
        return [len(self.ids(index)) + 1 for index in range(len(self))]

    def ids(self, index: int) -> NDArray[np.int64]:
        file, line, _ = self.places[index].tolist()
        ids: NDArray[np.int64] = self.files[file][line]
        return ids

    def part(self, indices: NDArray[np.int64] | slice) -> LabelledTexts:
        return LabelledTexts(self.files, self.places[indices])

    def first(self, number: int) -> LabelledTexts:
        return self.part(slice(number))

    def batch(self, boundary_id: int, indices: Sequence[int]) -> ConditionalBatch:
        labels_B = torch.from_numpy(self.places[list(indices), 2])
        return conditional_batch((labels_B,), [self.ids(i) for i in indices], boundary_id)


def read_texts(paths: Paths, tokenizer: Tokenizer, labels: Sequence[str]) -> LabelledTexts:
    """Read the non-empty lines of files; raise an error for a file with an unknown label."""
    files, places = [], []
    for number, file in enumerate(expand(paths)):
        label = label_of(file)
        if label not in labels:
            raise UsageError(
                f"{file}: the model has no label '{label}'", nearest(label, list(labels))
            )
        lines = encode_lines(file, tokenizer)
        filled = np.flatnonzero(lines.lengths > 0)
        columns = (np.full_like(filled, number), filled, np.full_like(filled, labels.index(label)))
        places.append(np.stack(columns, axis=1))
        files.append(lines)
    return LabelledTexts(tuple(files), np.concatenate(places))


class ConditionalModelling(conditioned.ConditionedData[LabelledTexts]):
    """The texts of a run."""

    config: ConditionalRun
    num_probed = 64

    def scale(self) -> str:
        return (
            f"{len(self.train):,} texts with {len(self.config.model.labels)} labels for training, "
            f"{len(self.valid):,} for validation, {self.tokenizer.vocab_size:,} types"
        )

    def build(self) -> ConditionalLM:
        size = self.tokenizer.vocab_size
        counts_V = np.zeros(size, np.int64)
        for lines in self.train.files:
            counts_V += lines.text.counts(size)
        counts_V[line_end_id(self.tokenizer)] = 0
        counts = conditioned.target_counts(self.tokenizer, counts_V, len(self.train))
        return self.config.model.build(size, counts_V=counts)

    def draw(self, model: Any, seed: int) -> str:
        labels = self.config.model.labels
        number = seed % len(labels)
        with reading(model):
            state = model.condition(torch.tensor([number], device=model.labels.weight.device))
        config = DecodeOptions(max_tokens=self.config.training.sample_length, seed=seed)
        config = config.without_unknown(self.tokenizer.unknown_id)
        ((text,),) = decode(model, state, config, boundary_id=self.tokenizer.boundary_id)
        return f"{labels[number]}: {self.tokenizer.decode(text.tokens[:-1])}"

    def describe(self) -> str:
        return (
            f"A language model over {KINDS[self.tokenizer.kind]} "
            f"({self.tokenizer.vocab_size:,} of them), given one of "
            f"{len(self.config.model.labels)} labels"
        )
