"""Automatic settings by the size of the text and the kind of machine.

`SIZES` has the choices: a row for each amount of text, unit of text and kind of machine. `settings`
turns the row that fits into a recipe; `sentences` explains the choice.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elman.base.counting import counted
from elman.base.errors import UsageError
from elman.runs.machine import Machine
from elman.tasks.language_model.settings import LanguageModelRun
from elman.tasks.task import follows_corpus
from elman.tokens.choose import TokenizerChoice

BYTES_PER_TOKEN = {"char": 1.0, "byte": 1.0, "word": 5.5, "pretokenized": 5.5, "bpe": 3.8}
"""Approximate bytes per token in European languages."""
MOST_HELD_OUT = 1_000_000
"""Limit on tokens held out for validation."""
CLIP_NORM = {"adam": 1.0, "sgd": 0.25}
"""Limit on the gradient's norm; the large learning rate of sgd needs a small one."""
CHUNKS_PER_LANE = 4
"""Minimum length of a lane in chunks: a small text gets fewer lanes."""


@dataclass(frozen=True)
class Size:
    """A row: settings for a text of up to `tokens` tokens."""

    tokens: float
    num_layers: int
    hidden_size: int
    embedding_size: int
    tied: bool
    num_samples: int
    """Noise words of a sampled output layer; 0 for a full one, which dominates the time on a CPU if
    there are thousands of words.
    """
    dropout: float
    optimiser: str
    learning_rate: float
    batch_size: int
    chunk_length: int
    tokens_read: float
    """Tokens to read in total, which determine the default number of epochs."""


# fmt: off
SIZES: dict[tuple[str, str], list[Size]] = {
    #    tokens    layers  hidden  embed  tied  samples dropout optimiser rate  batch  chunk  read
    ("symbols", "cpu"): [
        Size(6e5,       1,    256,    64, False,    0,  0.2, "adam", 0.005,    16,    64, 6e6),
        Size(2e7,       1,    512,    64, False,    0,  0.1, "adam", 0.006,    32,   128, 15e6),
        Size(math.inf,  2,    512,    64, False,    0,  0.0, "adam", 0.003,    64,   128, 15e6),
    ],
    ("words", "cpu"): [
        Size(3e5,       1,    200,   200, True,     0,  0.5, "sgd",   20.0,    16,    35, 3e6),
        Size(3e6,       1,    256,   256, True,  1024,  0.2, "sgd",   20.0,    20,    35, 8e6),
        Size(math.inf,  1,    512,   512, True,  1024,  0.1, "sgd",   20.0,    32,    64, 20e6),
    ],
    ("symbols", "gpu"): [
        Size(3e5,       1,    512,   128, False,    0,  0.4, "adam", 0.003,    16,    64, 10e6),
        Size(2e7,       2,    768,   128, False,    0,  0.4, "adam", 0.002,    64,   128, 60e6),
        Size(math.inf,  2,   1536,   128, False,    0,  0.1, "adam", 0.001,   128,   256, 1e9),
    ],
    ("words", "gpu"): [
        Size(3e5,       1,    400,   400, True,     0,  0.6, "sgd",   20.0,    16,    35, 6e6),
        Size(3e6,       2,    650,   650, True,     0,  0.5, "sgd",   20.0,    20,    35, 30e6),
        Size(math.inf,  2,   1024,  1024, True,     0,  0.1, "adam", 0.001,   128,   128, 5e8),
    ],
}
# fmt: on
"""By unit of text and kind of machine; within each, by the size of the text."""


WORDS: tuple[str, ...] = (
    *("training.batch_size", "training.chunk_length", "training.epochs"),
    *("model.dropout_input", "model.dropout_hidden", "model.dropout_output", "model.weight_drop"),
)
# fmt: off
AWD_WORDS: list[tuple[float, tuple[Any, ...]]] = [
    # tokens    batch  chunk  epochs  input  hidden  output  weights
    (1.4e6,    (32,    70,    700,    0.4,   0.25,   0.4,    0.5)),   # Penn Treebank
    (2e7,      (64,    70,    400,    0.65,  0.2,    0.4,    0.5)),   # WikiText-2
    (math.inf, (64,    140,   14,     0.1,   0.1,    0.1,    0.1)),   # WikiText-103
]
# fmt: on
"""The settings `WORDS` of AWD-LSTM, by the size of the text (Merity and others, 2018). The authors
have batches of 40 (20 in their repository), 80 and 60; multiples of 32 fill the tiles of the kernel
for GPUs. They train for 750 epochs at a constant rate, and as many of fine-tuning."""
AWD: dict[str, Any] = {
    "model.embedding_size": 400,
    "model.hidden_size": 1150,
    "model.dropout_embedding": 0.1,
    "objective.activation_penalty": 2.0,
    "objective.change_penalty": 1.0,
    "optimiser.kind": "sgd",
    "optimiser.learning_rate": 30.0,
    "schedule.kind": "linear",
    "schedule.hold": 0.6,
    "schedule.final": 0.1,
}
"""Those that texts of words share, whatever their size."""
AWD_SYMBOLS: dict[str, Any] = {
    **dict(zip(WORDS, (128, 150, 500, 0.1, 0.25, 0.1, 0.5), strict=True)),
    "model.embedding_size": 200,
    "model.hidden_size": 1000,
    "model.dropout_embedding": 0.0,
    "objective.activation_penalty": 0.0,
    "objective.change_penalty": 0.0,
    "optimiser.kind": "adam",
    "optimiser.learning_rate": 0.002,
    "schedule.kind": "cosine",
    "schedule.hold": 0.0,
    "schedule.final": 0.0,
}
"""The same for characters (Merity and others, "An analysis of neural language modeling at multiple
scales", 2018)."""


@dataclass(frozen=True)
class Text:
    """What automatic choices know about the text."""

    choice: TokenizerChoice
    kind: str
    """The tokenizer's kind: chosen, the user's, or that of the file."""
    file: Path | None = None
    """A tokenizer.json to use."""

    @property
    def num_tokens(self) -> int:
        """An estimate."""
        usual = BYTES_PER_TOKEN["bpe"]  # of a kind from outside
        return int(self.choice.num_bytes / BYTES_PER_TOKEN.get(self.kind, usual))

    @property
    def vocab_size(self) -> int:
        """The size to train the tokenizer to; 0: by the text."""
        made = self.kind == self.choice.kind and self.file is None
        return self.choice.vocab_size if made else 0

    @property
    def unit(self) -> str:
        return "symbols" if self.kind in ("char", "byte") else "words"


def settings(text: Text, machine: Machine, has_valid: bool) -> dict[str, Any]:
    rows = SIZES[text.unit, "gpu" if machine.is_gpu else "cpu"]
    size = next(row for row in rows if text.num_tokens <= row.tokens)
    fraction = 0.1 if has_valid else min(0.1, MOST_HELD_OUT / max(1, text.num_tokens))
    train_tokens = max(1, int(text.num_tokens * (1 if has_valid else 1 - fraction)))
    batch_size = fitting_lanes(size.batch_size, size.chunk_length, train_tokens)
    return {
        "data": {"valid_fraction": fraction},
        "tokenizer": {"kind": text.kind, "vocab_size": text.vocab_size},
        "model": {
            "kind": "recurrent",
            "cell": "lstm",
            "num_layers": size.num_layers,
            "hidden_size": size.hidden_size,
            "embedding_size": size.embedding_size,
            "tied": size.tied,
            "head": {"kind": "sampled", "num_samples": size.num_samples}
            if size.num_samples
            else {"kind": "full"},
            "dropout_input": size.dropout if text.unit == "words" else 0.0,
            "dropout_hidden": size.dropout,
            "dropout_output": size.dropout,
        },
        "optimiser": {"kind": size.optimiser, "learning_rate": size.learning_rate},
        "schedule": {"kind": "cosine", "warmup_steps": 200},
        "training": {
            "batch_size": batch_size,
            "chunk_length": size.chunk_length,
            "clip_norm": CLIP_NORM[size.optimiser],
            "epochs": min(40, max(1, round(size.tokens_read / train_tokens))),
        },
    }


def derived(
    recipe: dict[str, Any], text: Text, asked: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Set what follows from the corpus in a recipe (settings that are "corpus"), as AWD-LSTM does;
    also return a note about those that the user has not `asked` for otherwise.
    """
    values = AWD_SYMBOLS
    if text.unit == "words":
        row = next(row for tokens, row in AWD_WORDS if text.num_tokens <= tokens)
        values = {**AWD, **dict(zip(WORDS, row, strict=True))}
    batch_size = fitting_lanes(
        values["training.batch_size"], values["training.chunk_length"], text.num_tokens
    )
    values = {**values, "training.batch_size": batch_size}
    wanted = follows_corpus(recipe)
    if unknown := [name for name in wanted if name not in values]:
        raise UsageError(
            f"'{unknown[0]}' does not follow from the corpus",
            f"these do: {', '.join(values)}",
        )
    if not wanted:
        return recipe, []
    recipe = copy.deepcopy(recipe)  # not `merge`, for which another kind means other settings
    for group, name in (path.split(".") for path in wanted):
        recipe[group][name] = values[f"{group}.{name}"]
    own = {f"{g}.{n}" for g, part in (asked or {}).items() if isinstance(part, dict) for n in part}
    found = ", ".join(f"{name} {values[name]}" for name in wanted if name not in own)
    return recipe, [f"for about {_rounded(text.num_tokens):,} tokens of {text.kind}: {found}"]


def fitting_lanes(batch_size: int, chunk_length: int, num_tokens: int) -> int:
    """Reduce the number of lanes for a small text."""
    return max(1, min(batch_size, num_tokens // (CHUNKS_PER_LANE * chunk_length)))


def sentences(config: LanguageModelRun, text: Text, machine: Machine) -> list[str]:
    """Explain the settings in `config`, which include the user's."""
    model, training = config.model, config.training
    notes = [f"{config.tokenizer.kind}: {text.choice.reason}"]
    if text.file is not None:
        notes = [f"{text.kind}: read from {text.file}"]
    elif config.tokenizer.kind != text.choice.kind:
        notes = [f"{config.tokenizer.kind}: as you asked"]
    if model.kind == "recurrent":
        layers = counted(model.num_layers, "layer")
        notes.append(
            f"{layers} of {model.hidden_size} {model.cell.upper()} units, "
            f"for about {_rounded(text.num_tokens):,} tokens on {machine.description}"
        )
    length = (
        counted(training.minutes, "minute")
        if training.minutes
        else counted(training.steps, "update")
        if training.steps
        else counted(training.epochs or 0, "epoch")
    )
    notes.append(
        f"{config.optimiser.kind} at {config.optimiser.learning_rate:g}, {config.schedule.kind} "
        f"schedule over {length}, {training.batch_size} x {training.chunk_length} tokens a step"
    )
    if config.data.unit == "line":
        notes.append("each line is read by itself, from a fresh state")
    if not config.data.valid:
        notes.append(f"{config.data.held_out} is held out for validation")
    return notes


def _rounded(number: int) -> int:
    """Two significant digits: the number is an estimate."""
    return round(number, 2 - len(str(number)))
