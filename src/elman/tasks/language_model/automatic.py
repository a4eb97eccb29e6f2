"""Automatic settings: they follow from the text, the machine and the minutes together.

`tokens_read` is how many tokens a run can read, by the machine's measured speed and the width of
the model. The width is the largest one that still reads `TOKENS_PER_WEIGHT` tokens for each weight.
How often the text is read then says how much dropout it needs, and the number of tokens how large
a batch may be. On a GPU that reads a text many times the model is AWD-LSTM; on a CPU, words that
are read often are regularised as it is.

`settings` makes the recipe; `sentences` explains it. `elman bench automatic` compares the choices
with alternatives (docs/log/2026-11-16-automatic.md).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elman.base.config import merge
from elman.base.counting import counted
from elman.base.errors import UsageError
from elman.runs.machine import Machine
from elman.tasks.language_model.settings import LanguageModelRun
from elman.tasks.task import follows_corpus
from elman.tokens.choose import TokenizerChoice

BYTES_PER_TOKEN = {"char": 1.0, "byte": 1.0, "word": 5.5, "pretokenized": 5.5, "bpe": 3.8}
BYTES_PER_TOKEN["sentencepiece"] = BYTES_PER_TOKEN["bpe"]
"""Approximate bytes per token in European languages."""
MOST_HELD_OUT = 1_000_000
"""Limit on tokens held out for validation."""
CLIP_NORM = {"adam": 1.0, "sgd": 0.25}
"""Limit on the gradient's norm; the large learning rate of sgd needs a small one."""
CHUNKS_PER_LANE = 4
"""Minimum length of a lane in chunks: a small text gets fewer lanes."""
USUAL_MINUTES = 10.0
"""The time for which a run without --minutes is made."""
MOST_EPOCHS = 40
"""Limit on the epochs of a run without --minutes."""
WIDTHS = (64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536)
TOKENS_PER_WEIGHT = 4.0
"""Tokens to read for each weight of the layers: with fewer a narrower model learns more in the same
time, with more a wider one.
"""
DROPOUT_PER_DOUBLING = {"symbols": 0.1, "words": 0.16}
"""More dropout for each doubling of the epochs: 0.3 for 15 epochs of tinyshakespeare's characters,
0.35 for 9 of PTB's words, which were ahead of or within 2 % of the alternatives measured."""
NUM_SAMPLES = 1024
"""Noise words of a sampled output layer; a full one over thousands of words takes most of the time
on a CPU.
"""
MANY_WORDS = 20_000
"""Tokens of a text that probably has more than a few thousand different words."""
MANY_EPOCHS = 3.0
"""Passes over the text from which on a GPU regularises as AWD-LSTM does."""
OFTEN = {"symbols": 30.0, "words": 40.0}
"""Passes over a text from which on a CPU, too, regularises as AWD-LSTM does: all of it for words,
dropout of weights for characters."""
EPOCHS_TO_AVERAGE = 30.0
"""Passes over a text of words from which on AWD-LSTM keeps its constant rate and its average."""
AWD_TOKENS = {"symbols": 1.2e6, "words": 5e5}
"""Tokens per second of AWD-LSTM on a GPU at a speed of 1."""


@dataclass(frozen=True)
class Speed:
    """How fast a kind of machine trains, at a speed of 1."""

    weights: float
    """Weights per second that a token is multiplied by, forward and backward."""
    seconds: float
    """Seconds per token besides."""
    start: float
    """Seconds before the first update and after the last."""


SPEEDS = {
    # Fitted to LSTMs of 128 to 768 units on one and two cores of an AMD EPYC (Zen 5, speed 3.9 and
    # 6.3); docs/log/2026-11-16-automatic.md.
    ("symbols", "cpu"): Speed(1.7e10, 6e-6, 8),
    ("words", "cpu"): Speed(1.5e10, 40e-6, 8),
    ("symbols", "gpu"): Speed(1.5e13, 0.5e-6, 20),
    ("words", "gpu"): Speed(1.5e13, 0.5e-6, 20),
}
"""By unit of text and kind of machine."""


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
    # As published. A rate that fell over the last 40 % of 285 epochs cost 1 of perplexity on the
    # Penn Treebank: the average does what a falling rate is for (docs/log/2026-11-18-records.md).
    "schedule.kind": "constant",
    "schedule.hold": 0.0,
    "schedule.final": 0.0,
}
"""Those that texts of words share, whatever their size."""
REGULARISED: dict[str, Any] = {
    "objective": {
        name: AWD[f"objective.{name}"] for name in ("activation_penalty", "change_penalty")
    },
    "model": {"dropout_embedding": AWD["model.dropout_embedding"], "weight_drop": 0.5},
    "training": {"shuffle_lanes": True},
}
DROPPED_WEIGHTS: dict[str, Any] = {"model": {"weight_drop": 0.4}}
"""What AWD-LSTM has against overfitting besides dropout."""
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


@dataclass(frozen=True)
class Plan:
    """What a run is expected to do, from which settings follow."""

    text: Text
    machine: Machine
    train_tokens: int
    seconds: float
    """Seconds of training."""
    epochs_asked: float | None
    """The number of epochs, if the user gave it."""

    @classmethod
    def of(cls, text: Text, machine: Machine, has_valid: bool, length: Mapping[str, Any]) -> Plan:
        """`length` has the user's minutes, epochs or steps."""
        train_tokens = max(1, round(text.num_tokens * (1 if has_valid else 1 - held_out(text))))
        speed = SPEEDS[text.unit, _kind(machine)]
        minutes, epochs = (_number(length.get(name)) for name in ("minutes", "epochs"))
        seconds = 60 * (minutes or USUAL_MINUTES)
        seconds = max(seconds / 4, seconds - speed.start)
        return cls(text, machine, train_tokens, seconds, epochs)

    def weights(self, width: int) -> int:
        """Weights of the layers and the output layer that each token is multiplied by."""
        if self.machine.is_gpu:  # two layers of LSTM
            return 16 * width * width
        if self.text.unit == "symbols":
            return 4 * width * (width + EMBEDDING) + 100 * width
        return 8 * width * width + NUM_SAMPLES * width

    def tokens_read(self, width: int) -> float:
        """Tokens that a model of this width reads in the time that there is."""
        speed = SPEEDS[self.text.unit, _kind(self.machine)]
        seconds = self.weights(width) / speed.weights + speed.seconds
        return self.seconds * self.machine.speed / seconds

    @property
    def width(self) -> int:
        """The largest width that learns enough from the tokens that it reads, and from the text."""
        fitting = [
            width
            for width in WIDTHS
            if self.tokens_read(width) >= TOKENS_PER_WEIGHT * self.weights(width)
            and self.weights(width) <= WEIGHTS_PER_TOKEN[self.text.unit] * self.train_tokens
        ]
        return fitting[-1] if fitting else WIDTHS[0]

    @property
    def is_awd(self) -> bool:
        """Whether a GPU reads the text so often that the model is AWD-LSTM."""
        epochs = self.epochs_asked or self.awd_tokens / self.train_tokens
        return self.machine.is_gpu and epochs >= MANY_EPOCHS

    @property
    def awd_tokens(self) -> float:
        """Tokens that AWD-LSTM reads on a GPU."""
        return self.seconds * self.machine.speed * AWD_TOKENS[self.text.unit]

    @property
    def tokens(self) -> float:
        """Tokens that the run reads."""
        return self.awd_tokens if self.is_awd else self.tokens_read(self.width)

    @property
    def epochs(self) -> float:
        """Passes over the text."""
        return self.epochs_asked or self.tokens / self.train_tokens

    @property
    def reads_often(self) -> bool:
        """Whether a CPU reads the text so often that it needs the regularisation of AWD-LSTM.

        Python's manual, 84,000 words, in equal time of a core: 10.77 after 50 epochs of 384 units
        with it, 11.40 after 166 of 192 without. Its characters, in 29 and 33 epochs: 2.93 and 3.04
        (docs/log/2026-11-16-automatic.md).
        """
        return self.epochs >= OFTEN[self.text.unit]

    @property
    def dropout(self) -> float:
        """None for a text that is hardly read twice, more with every doubling of the epochs."""
        most = DROPOUT_PER_DOUBLING[self.text.unit] * math.log2(max(1.0, self.epochs / 2))
        return min(0.5, round(20 * most) / 20)


EMBEDDING = 64
"""Width of the embeddings of characters and bytes."""
WEIGHTS_PER_TOKEN = {"symbols": 3.0, "words": 40.0}
"""Limit on weights for each token of the text: a wider model learns the text by heart. Words are
read `OFTEN`, and regularised, before there are 10 for each."""


def held_out(text: Text) -> float:
    """The share of a text that is held out for validation."""
    return min(0.1, MOST_HELD_OUT / max(1, text.num_tokens))


def settings(
    text: Text,
    machine: Machine,
    has_valid: bool,
    length: Mapping[str, Any],
    read_recipe: Callable[[str], dict[str, Any]],
) -> dict[str, Any]:
    """Choose everything; `length` has the user's minutes, epochs or steps."""
    plan = Plan.of(text, machine, has_valid, length)
    shared = {
        "data": {"valid_fraction": 0.1 if has_valid else held_out(text)},
        "tokenizer": {"kind": text.kind, "vocab_size": text.vocab_size},
        "training": {"epochs": min(MOST_EPOCHS, max(1, round(plan.epochs)))},
    }
    if not machine.is_gpu:
        return merge(_on_cpu(plan), shared)
    if plan.is_awd:
        return merge(_awd_on_gpu(plan, read_recipe("awd-lstm")), shared)
    return merge(_large_on_gpu(plan), shared)


def _on_cpu(plan: Plan) -> dict[str, Any]:
    """One layer of LSTM."""
    width, tokens = plan.width, plan.tokens
    is_word = plan.text.unit == "words"
    # Adam learns more from few updates, SGD ends lower. PTB: 148 against 200 after 0.8 million
    # tokens (256 units); 109 against 127 after 3.0 and 2.1 million, two minutes of one core each;
    # 94.0 (400 units) against 92.1 (384) after 6.4 and 8.6 million, five minutes each.
    optimiser = "sgd" if is_word and tokens > 5.5e6 else "adam"
    # 256 units, 1,900 updates on tinyshakespeare: LSTM 4.53 at 0.01, GRU 4.68 at 0.005.
    rate = 20.0 if optimiser == "sgd" else _rate(0.005 if is_word else 0.01, width)
    # A small batch makes many updates; a large one is faster on its way to the same loss.
    batch_size, chunk_length = (20, 35) if is_word else (16 if tokens < 8e6 else 32, 64)
    sampled = {"kind": "sampled", "num_samples": NUM_SAMPLES}
    has_many = is_word and plan.text.num_tokens >= MANY_WORDS
    head: dict[str, Any] = sampled if has_many else {"kind": "full"}
    found = {
        "model": {
            "kind": "recurrent",
            "cell": "lstm",
            "num_layers": 1,
            "hidden_size": width,
            "embedding_size": width if is_word else EMBEDDING,
            "tied": is_word,
            "head": head,
            "dropout_input": plan.dropout if is_word else 0.0,
            "dropout_hidden": plan.dropout,
            "dropout_output": plan.dropout,
        },
        "optimiser": {"kind": optimiser, "learning_rate": rate},
        "schedule": {"kind": "cosine", "warmup_steps": 100},
        "training": {
            "batch_size": fitting_lanes(batch_size, chunk_length, plan.train_tokens),
            "chunk_length": chunk_length,
            "clip_norm": CLIP_NORM[optimiser],
            "precision": "auto",
        },
    }
    if not plan.reads_often:
        return found
    return merge(found, REGULARISED if is_word else DROPPED_WEIGHTS)


def _rate(learning_rate: float, width: int) -> float:
    """Scale the learning rate of Adam at a width of 256 to another."""
    return float(f"{learning_rate * math.sqrt(256 / width):.1g}")


def _large_on_gpu(plan: Plan) -> dict[str, Any]:
    """Two layers of LSTM, for a text that is read once or twice."""
    is_word = plan.text.unit == "words"
    width, tokens = plan.width, plan.tokens
    batch_size = 64 if tokens < 2e8 else 128
    return {
        "model": {
            "kind": "recurrent",
            "cell": "lstm",
            "num_layers": 2,
            "hidden_size": width,
            "embedding_size": width if is_word else 128,
            "tied": is_word,
            "head": {"kind": "full"},
            **dict.fromkeys(("dropout_input", "dropout_hidden", "dropout_output"), plan.dropout),
        },
        "optimiser": {"kind": "adam", "learning_rate": _rate(0.002, width)},
        "schedule": {"kind": "cosine", "warmup_steps": 200},
        "training": {
            "batch_size": fitting_lanes(batch_size, 128, plan.train_tokens),
            "chunk_length": 128,
            "clip_norm": CLIP_NORM["adam"],
            "precision": "auto",
        },
    }


def _awd_on_gpu(plan: Plan, recipe: dict[str, Any]) -> dict[str, Any]:
    """AWD-LSTM: as published for a text of words that is read often enough, else annealed over the
    time that there is, with dropout for as many epochs.

    A learning rate that falls to zero needs fewer epochs than averages do, and overfits with more:
    on the Penn Treebank, 104 epochs of it were at 69.8 at best and 71.1 in the end, where the
    average of a constant rate was at 69.2 after 43 and at 63.1 after 100
    (docs/log/2026-11-16-automatic.md). The published dropouts are for hundreds of epochs. Every
    chunk length costs the capture of a CUDA graph; lanes that begin elsewhere in every epoch vary
    the chunks as well.
    """
    recipe, _ = derived(recipe, plan.text)
    model, training = recipe["model"], recipe["training"]
    parts = ("objective", "model", "optimiser", "schedule", "training")
    if plan.text.unit == "words" and plan.epochs >= EPOCHS_TO_AVERAGE:
        return {name: recipe[name] for name in parts}
    if plan.text.unit == "symbols":
        # The published model is for 5 MB of text and days; small batches make more updates.
        training |= {"batch_size": 32 if plan.tokens < 1e8 else 64, "chunk_length": 128}
        if plan.train_tokens < SMALL_SYMBOLS:
            model |= {"num_layers": 2, "hidden_size": 768}
            model |= {"dropout_hidden": 0.4, "dropout_output": 0.3}
    training["batch_size"] = fitting_lanes(
        training["batch_size"], training["chunk_length"], plan.train_tokens
    )
    share = min(1.0, math.log(max(1.0, plan.epochs / 2)) / math.log(100))
    for name in (*DROPOUTS, "dropout_embedding", "weight_drop"):
        model[name] = round(share * model[name], 2)
    average = ("average", "average_every")
    return {
        "objective": recipe["objective"],
        "model": model,
        "optimiser": {k: v for k, v in recipe["optimiser"].items() if k not in average},
        "schedule": {"kind": "cosine", "warmup_steps": 200},
        "training": {**training, "vary_chunks": False},
    }


SMALL_SYMBOLS = 2e6
"""Characters of a text for which AWD-LSTM is too large."""
DROPOUTS = ("dropout_input", "dropout_hidden", "dropout_output")


def _kind(machine: Machine) -> str:
    return "gpu" if machine.is_gpu else "cpu"


def _number(value: Any) -> float | None:
    """A positive number; what else the user wrote is refused later."""
    return float(value) if isinstance(value, (int, float)) and value > 0 else None


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
    return recipe, [f"for about {_rounded(text.num_tokens):,} tokens: {found}"]


def fitting_lanes(batch_size: int, chunk_length: int, num_tokens: int) -> int:
    """Reduce the number of lanes for a small text."""
    return max(1, min(batch_size, num_tokens // (CHUNKS_PER_LANE * chunk_length)))


def sentences(config: LanguageModelRun, plan: Plan) -> list[str]:
    """Explain the settings in `config`, which include the user's."""
    model, training, text, machine = config.model, config.training, plan.text, plan.machine
    notes = [text.choice.reason]
    if text.file is not None:
        notes = [f"tokenizer {text.kind}: read from {text.file}"]
    elif config.tokenizer.kind != text.choice.kind:
        notes = [f"tokenizer {config.tokenizer.kind}: as you asked"]
    length = (
        counted(training.minutes, "minute")
        if training.minutes
        else counted(training.steps, "update")
        if training.steps
        else counted(training.epochs or 0, "epoch")
    )
    if model.kind == "recurrent":
        layers = counted(model.num_layers, "layer")
        notes.append(
            f"{layers} of {model.hidden_size} {model.cell.upper()} units, "
            f"for about {_rounded(text.num_tokens):,} tokens in {length} on {machine.description}"
        )
        if training.minutes:
            epochs = counted(float(f"{plan.epochs:.1g}"), "time")
            notes.append(
                f"the text is expected to be read about {epochs}: "
                + (f"dropout {model.dropout_output:g}" if model.dropout_output else "no dropout")
                + (f", weight drop {model.weight_drop:g}" if model.weight_drop else "")
                + (", penalties on activations" if config.objective.activation_penalty else "")
            )
    notes.append(
        f"{config.optimiser.kind} at {config.optimiser.learning_rate:g}, {config.schedule.kind} "
        f"schedule over {length}, {training.batch_size} x {training.chunk_length} tokens a step"
    )
    notes += training.precision_notes(machine.is_gpu)
    if config.data.unit == "line":
        notes.append("each line is read by itself, from a fresh state")
    if not config.data.valid:
        notes.append(f"{config.data.held_out} is held out for validation")
    return notes


def _rounded(number: int) -> int:
    """Two significant digits: the number is an estimate."""
    return round(number, 2 - len(str(number)))
