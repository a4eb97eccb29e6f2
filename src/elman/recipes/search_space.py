"""The settings that `elman search` varies, around those of a configuration.

A dimension is a name, and the values that it may have. Sizes and rates are searched by their
logarithm. A value equal to that of the configuration changes nothing, so the configuration itself
is a point of the space.
"""

from __future__ import annotations

from collections.abc import Mapping
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

    def changes(self, value: Any) -> dict[str, Any]:
        """The settings of a suggested value, by dotted name; none if nothing changes."""
        if self.multiple > 1:
            value = max(1, round(value / self.multiple)) * self.multiple
            near = abs(value - self.start) <= self.multiple / 2
            value = self.start if near else value
        elif not self.multiple and not self.choices and value != self.start:
            value = float(f"{value:.3g}")
        return {} if value == self.start else dict.fromkeys(self.settings, value)


def dimensions(settings: Mapping[str, Any]) -> list[Dimension]:
    """The space around nested settings: those of these dimensions that the task has."""
    model, training = settings["model"], settings["training"]
    found = []
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
        alike = [f"model.{name}" for name in DROPOUTS if model.get(name) == start]
        most_dropout = max(MOST_DROPOUT, start)
        found.append(Dimension("dropout", tuple(alike), start, (), 0.0, most_dropout))
    if rate := settings.get("optimiser", {}).get("learning_rate"):
        ends = rate / RATE_FACTOR, rate * RATE_FACTOR
        found.append(
            Dimension("learning_rate", ("optimiser.learning_rate",), rate, (), *ends, True)
        )
    assert training["batch_size"]
    return found
