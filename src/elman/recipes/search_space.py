"""The settings that `elman search` varies, around those of a configuration.

A dimension is a name, and the values that it may have. Sizes and rates are searched by their
logarithm. The configuration itself is a point of the space.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import optuna

CELLS = ("lstm", "gru")
MOST_LAYERS = 3
MOST_DROPOUT = 0.7
DROPOUTS = ("dropout_input", "dropout_hidden", "dropout_output")
SIZES = (
    # setting                   factor  multiples of
    ("model.hidden_size", 2.0, 8),
    ("training.batch_size", 2.0, 4),
    ("training.chunk_length", 2.0, 5),
)
RATE_FACTOR = 4.0


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


def dimensions(settings: Mapping[str, Any]) -> list[Dimension]:
    """The space around nested settings: those of these dimensions that the task has."""
    model, found = settings["model"], []
    if model.get("cell") in CELLS:
        found.append(Dimension("cell", ("model.cell",), model["cell"], choices=CELLS))
    for setting, factor, multiple in SIZES:
        group, name = setting.split(".")
        if start := settings[group].get(name):
            names = [setting]
            if name == "hidden_size" and model.get("embedding_size") == start:
                names.append("model.embedding_size")  # they may be tied
            ends = start / factor, start * factor
            found.append(Dimension(name, tuple(names), start, (), *ends, True, multiple))
    if layers := model.get("num_layers"):
        most = max(MOST_LAYERS, layers)
        found.append(
            Dimension("num_layers", ("model.num_layers",), layers, (), 1, most, multiple=1)
        )
    if (start := model.get("dropout_output")) is not None:
        values = {name: model[name] for name in DROPOUTS if name in model}
        if layers == 1 and "dropout_hidden" in values:  # of one layer nothing reads it
            values["dropout_hidden"] = start
        alike = [f"model.{name}" for name, value in values.items() if value == start]
        most_dropout = max(MOST_DROPOUT, start)
        found.append(Dimension("dropout", tuple(alike), start, (), 0.0, most_dropout))
    if rate := settings.get("optimiser", {}).get("learning_rate"):
        ends = rate / RATE_FACTOR, rate * RATE_FACTOR
        found.append(
            Dimension("learning_rate", ("optimiser.learning_rate",), rate, (), *ends, True)
        )
    return found
