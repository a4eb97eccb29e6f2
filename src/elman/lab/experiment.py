"""What an experiment is: a claim, how it is measured, and the rule that decides about it.

An experiment is one file. It declares an `Experiment`: the claim as the lectures make it, the
`Question`s whose numbers decide, each with a prediction and the smallest effect that counts, and a
`Knob` that breaks the claim. Its `measure` runs one seed and yields `Row`s of plain values as they
come, its `figure` draws the rows of all seeds. Everything else (processes, intervals, verdicts,
pages, the studio) is the same for all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from elman.base.errors import UsageError
from elman.lab.figures import Figure

Row = dict[str, Any]
"""Something measured: plain values by name, among them `seed`. Rows of one kind have one form."""
Value = TypeVar("Value")
Rule = Literal["above", "below", "within"]
Size = Literal["tiny", "small", "large"]
SIZE: Size = "small"
"""The default size."""
SEEDS = 5
"""The default number of seeds."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A number that decides about the claim, or about a part of it."""

    name: str
    """What is asked, as "tanh: distance of the slope from log rho"."""
    unit: str
    """Of the effect, as "nats per token"; empty for a ratio or a share."""
    prediction: float
    """The effect that was expected before the first run."""
    minimum: float
    """The claim holds if the whole interval lies `above` it, `below` it, or `within` plus and minus
    it; it does not hold here if the whole interval lies on the other side."""
    rule: Rule = "above"
    effect: Callable[[Sequence[Row]], float]
    """The effect in the rows of one seed; NaN if they do not tell."""

    def says(self) -> str:
        """The rule in words."""
        number = f"{self.minimum:g} {self.unit}".rstrip()
        return f"within ±{number}" if self.rule == "within" else f"{self.rule} {number}"


@dataclass(frozen=True, kw_only=True)
class Knob:
    """The one thing to change, to break the claim."""

    name: str
    meaning: str
    values: tuple[float | str, ...]
    """What the studio offers; numbers between them are accepted too."""
    default: float | str
    broken: float | str
    """The value at which the claim is expected to fail."""

    def parse(self, text: str) -> float | str:
        """Read a value from the command line."""
        if isinstance(self.default, str):
            if text not in self.values:
                known = ", ".join(map(str, self.values))
                raise UsageError(f"the knob '{self.name}' has no value '{text}'", f"one of {known}")
            return text
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        numbers = [float(value) for value in self.values]
        if not min(numbers) <= value <= max(numbers):
            hint = f"give a number from {min(numbers):g} to {max(numbers):g}"
            raise UsageError(f"the knob '{self.name}' cannot be '{text}'", hint)
        whole = isinstance(self.default, int)
        if whole and value != int(value):
            raise UsageError(f"the knob '{self.name}' needs a whole number", "leave the dot out")
        return int(value) if whole else value


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One seed of an experiment."""

    seed: int
    knob: Any
    size: Size
    """small: two minutes on two cores for five seeds; large: a GPU; tiny: a second, to try it."""
    device: str
    folder: Path
    """Empty, for files; removed afterwards."""

    def pick(self, *, tiny: Value, small: Value, large: Value) -> Value:
        """The value for the size."""
        return {"tiny": tiny, "small": small, "large": large}[self.size]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A claim and the experiment about it."""

    id: str
    title: str
    """A few words for lists."""
    claim: str
    """As the lectures make it."""
    sources: tuple[str, ...]
    """Lecture and slide."""
    design: str
    """What is trained and measured, and why so; Markdown."""
    questions: tuple[Question, ...]
    knob: Knob
    breaks: str
    """What turning the knob shows; Markdown."""
    limits: str = ""
    """What the experiment does not say; Markdown."""
    measure: Callable[[Trial], Iterator[Row]]
    """Run one seed, on one thread unless the experiment runs `alone`."""
    figure: Callable[[Sequence[Row]], Figure]
    equations: tuple[str, ...]
    """What computes it, as "elman.nn.cells:RNNCell.step"."""
    reading: tuple[str, ...]
    seconds: float
    """On two cores with five seeds, about."""
    alone: bool = False
    """Whether it measures time: then seeds run one after the other, with all threads."""

    def rows_by_seed(self, rows: Sequence[Row]) -> dict[int, list[Row]]:
        found: dict[int, list[Row]] = {}
        for row in rows:
            found.setdefault(int(row["seed"]), []).append(row)
        return found
