"""The base of every task's configuration.

Each task has its own `RunConfig` (tasks/*/settings.py) with exactly the parts that it reads; any
other setting is refused. It is saved with the run, defaults and a format number included. This
module does not import torch: counted models do not need it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from elman.base.errors import UsageError

FORMAT = 2
"""The number in config.json; `tasks/opening.py` lifts older formats to it."""


@dataclass(frozen=True, kw_only=True)
class TextData:
    """Which data: files, folders, patterns, or names of built-in corpora."""

    train: tuple[str, ...] = ()
    """What to train on."""
    valid: tuple[str, ...] = ()
    """What to validate on."""
    test: tuple[str, ...] = ()
    """What to test the finished model on."""


@dataclass(frozen=True, kw_only=True)
class SplitData(TextData):
    """Data of which a part is held out if no validation data is given."""

    valid_fraction: float = 0.1
    """The share of the training data to hold out if no validation data is given."""

    def __post_init__(self) -> None:
        if not 0 < self.valid_fraction < 1:
            raise UsageError(
                f"'data.valid_fraction' cannot be {self.valid_fraction}", "use a value in (0, 1)"
            )

    @property
    def held_out(self) -> str:
        """The default validation data, for the card and the notes."""
        return f"the last {self._valid_percent} of the text"

    @property
    def held_out_test(self) -> str:
        """The default test data, for the card."""
        return "held-out text"

    @property
    def _valid_percent(self) -> str:
        return f"{100 * self.valid_fraction:.3g}%"


@dataclass(frozen=True, kw_only=True)
class RandomSplitData(SplitData):
    """Data of which texts drawn at random are held out if no validation data is given."""

    @property
    def held_out(self) -> str:
        return f"{self._valid_percent} of the texts, drawn at random"


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A run; each task adds the parts that it reads."""

    format: int = FORMAT
    """The format of this configuration."""
    task: str
    """What is trained: the name of a task."""
    recipe: str = "automatic"
    """The source of the settings: a recipe, or automatic choices."""
    data: TextData = field(default_factory=TextData)
    """The data."""
