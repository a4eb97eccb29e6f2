"""The settings that `elman search` varies, around those of a configuration.

A dimension is a name, and the values that it may have. Sizes and rates are searched by their
logarithm. The configuration itself is a point of the space. The learning rate and the limit on the
gradient's norm are those of the configuration's optimiser; with the other one they are converted.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import optuna

CELLS = ("lstm", "gru")
AVERAGES = ("none", "exponential")
OPTIMISERS = {"adam": (0.005, 1.0), "sgd": (20.0, 0.25)}
"""The optimisers, with a usual learning rate and limit on the gradient's norm."""
MOST_LAYERS = 3
DROPOUTS = {
    # setting             most
    "dropout_embedding": 0.3,
    "dropout_input": 0.7,
    "dropout_hidden": 0.7,
    "dropout_output": 0.7,
    "weight_drop": 0.6,
}
FACTORS = (
    # setting                   factor  multiples of
    ("model.hidden_size", 2.0, 8),
    ("model.head.num_samples", 4.0, 16),
    ("training.batch_size", 2.0, 4),
    ("training.chunk_length", 2.0, 5),
    ("optimiser.learning_rate", 4.0, 0),
    ("training.clip_norm", 4.0, 0),
)
"""Settings that are divided and multiplied by up to a factor."""
CHANGED = 3
"""Settings that `near` changes, on average."""
SPREAD = 0.25
"""Standard deviation of a change, where the whole range of a setting is 1."""

FEWEST = 6
"""Trials from which the importance of settings is estimated."""


@dataclass(frozen=True)
class Tried:
    """A trial that finished, or was pruned."""

    values: Mapping[str, Any]
    """By the name of the dimension."""
    result: float
    """What training minimises; estimated, of a pruned trial."""
    finished: bool


@dataclass(frozen=True)
class Dimension:
    name: str
    """The last part of the setting's name."""
    settings: tuple[str, ...]
    """The settings that get the value."""
    start: Any
    """The value in the configuration."""
    choices: tuple[str, ...] = ()
    """Names, if it is a choice."""
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    multiple: int = 0
    """Values are rounded to multiples of this; 0: not rounded."""

    def suggest(self, trial: optuna.Trial) -> Any:
        if self.choices:
            return trial.suggest_categorical(self.name, self.choices)
        if self.multiple == 1:
            return trial.suggest_int(self.name, int(self.low), int(self.high))
        return trial.suggest_float(self.name, self.low, self.high, log=self.log)

    def rounded(self, value: Any) -> Any:
        """The value that a suggested one stands for."""
        if self.choices or value == self.start:
            return self.start if value == self.start else value
        if not self.multiple:
            return float(f"{value:.3g}")
        return max(1, round(value / self.multiple)) * self.multiple

    def place(self, value: Any) -> float:
        """Where a value lies in the dimension, from 0 to 1."""
        if self.choices:
            return (self.choices.index(value) + 0.5) / len(self.choices)
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return min(1.0, max(0.0, float(value - low) / (high - low)))

    def at(self, place: float) -> Any:
        """The value at a place from 0 to 1; not rounded, but for whole numbers."""
        if self.choices:
            return self.choices[min(int(place * len(self.choices)), len(self.choices) - 1)]
        if self.log:
            value = self.low * (self.high / self.low) ** place
            return min(self.high, max(self.low, value))
        value = self.low + place * (self.high - self.low)
        return round(value) if self.multiple == 1 else value

    def near(self, value: Any, chance: random.Random) -> Any:
        """Another value, most often not far from this one."""
        if self.choices:
            return chance.choice([one for one in self.choices if one != value])
        if self.multiple == 1:
            steps = [one for one in (value - 1, value + 1) if self.low <= one <= self.high]
            return chance.choice(steps)
        place = self.place(value) + chance.gauss(0.0, SPREAD)
        place = -place if place < 0 else 2 - place if place > 1 else place  # reflected at the ends
        return self.at(min(1.0, max(0.0, place)))

    def changes(self, value: Any) -> dict[str, Any]:
        """The settings of a suggested value, by dotted name."""
        return dict.fromkeys(self.settings, self.rounded(value))


def importance(space: Sequence[Dimension], trials: Sequence[Tried]) -> dict[str, float]:
    """The share of each dimension in how results differ; empty with too few trials.

    A parabola over the dimension alone is fitted to the ranks of the results; its share is the
    part of their variance that it explains, adjusted for its parameters (adjusted R²).
    """
    import numpy as np

    if len(trials) < FEWEST or len({tried.result for tried in trials}) < 2:
        return {}
    ranks = np.argsort(np.argsort([tried.result for tried in trials])).astype(float)
    ranks -= ranks.mean()
    found = {}
    for dimension in space:
        places = np.array([dimension.place(tried.values[dimension.name]) for tried in trials])
        degree = min(2, len(set(places.tolist())) - 1)
        rest = ranks - np.polyval(np.polyfit(places, ranks, degree), places)
        unexplained = (rest**2).sum() / (ranks**2).sum()
        adjusted = 1 - unexplained * (len(ranks) - 1) / (len(ranks) - degree - 1)
        found[dimension.name] = max(0.0, float(adjusted)) if degree else 0.0
    total = sum(found.values())
    shares = {name: value / total if total else 0.0 for name, value in found.items()}
    return dict(sorted(shares.items(), key=lambda one: -one[1]))


def near(
    space: Sequence[Dimension], params: Mapping[str, Any], chance: random.Random
) -> dict[str, Any]:
    """Change a few of these values."""
    share = min(1.0, CHANGED / len(space))
    changed = [one for one in space if chance.random() < share] or [chance.choice(space)]
    return {**params, **{one.name: one.near(params[one.name], chance) for one in changed}}


def dimensions(settings: Mapping[str, Any]) -> list[Dimension]:
    """The space around nested settings: those of these dimensions that the task has."""
    model, found = settings["model"], []
    if model.get("cell") in CELLS:
        found.append(Dimension("cell", ("model.cell",), model["cell"], CELLS))
    for setting, factor, multiple in FACTORS:
        name = setting.rpartition(".")[2]
        if start := _value(settings, setting):
            names = [setting]
            if name == "hidden_size" and model.get("embedding_size") == start:
                names.append("model.embedding_size")  # they may be tied
            ends = start / factor, start * factor
            found.append(Dimension(name, tuple(names), start, (), *ends, True, multiple))
    if layers := model.get("num_layers"):
        most = max(MOST_LAYERS, layers)
        setting = "model.num_layers"
        found.append(Dimension("num_layers", (setting,), layers, (), 1, most, multiple=1))
    for name, highest in DROPOUTS.items():
        if (start := model.get(name)) is not None:
            found.append(Dimension(name, (f"model.{name}",), start, (), 0.0, max(highest, start)))
    optimiser = settings.get("optimiser", {})
    for name, choices in (("kind", tuple(OPTIMISERS)), ("average", AVERAGES)):
        if (start := optimiser.get(name)) in choices:
            label = "optimiser" if name == "kind" else name
            found.append(Dimension(label, (f"optimiser.{name}",), start, choices))
    return found


def converted(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes of these settings, the learning rate and the limit on the gradient's norm converted
    to the optimiser that the changes choose."""
    before = settings.get("optimiser", {}).get("kind")
    after = changes.get("optimiser.kind", before)
    found = dict(changes)
    if after != before:
        names = ("optimiser.learning_rate", "training.clip_norm")
        for name, old, new in zip(names, OPTIMISERS[before], OPTIMISERS[after], strict=True):
            if name in found:
                found[name] = float(f"{found[name] * new / old:.3g}")
    return found


def _value(settings: Mapping[str, Any], name: str) -> Any:
    """A setting by its dotted name, or None."""
    found: Any = settings
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found
