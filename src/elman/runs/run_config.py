"""The configuration of a run: what every task's configuration is composed from.

Each task has a `RunConfig` of its own (tasks/*/settings.py), composed of exactly the parts that it
reads; any other setting is refused. What is saved with a run is that value, defaults included, with
a format number. This module imports nothing heavy: models that are counted do without torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

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
    """Data of which a part is held out where no validation data is given."""

    valid_fraction: float = 0.1
    """The share of the training data to hold out where no validation data is given."""

    def __post_init__(self) -> None:
        if not 0 < self.valid_fraction < 1:
            raise UsageError(
                f"'data.valid_fraction' should lie between 0 and 1, not be {self.valid_fraction}"
            )

    @property
    def held_out(self) -> str:
        """What is validated on where no validation data is given, for the card."""
        return f"the last {self.valid_fraction:.0%} of the text"

    @property
    def held_out_test(self) -> str:
        """Likewise for the test."""
        return "held-out text"


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A whole run; each task adds the parts that it reads."""

    format: int = FORMAT
    """The format of this configuration."""
    task: str
    """What is trained: the name of a task."""
    recipe: str = "automatic"
    """Where the settings came from: a recipe, or the automatic choices."""
    data: TextData = field(default_factory=TextData)
    """The data."""

    @property
    def model_config(self) -> Any:
        """The model's own settings: the part `model` of every task."""
        return getattr(self, "model")  # noqa: B009  each task declares it with its own type
