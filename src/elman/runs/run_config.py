"""`RunConfig`: everything that a run depends on, in one frozen value.

The runner is its one reader; every other part receives its own piece. What is saved with a run is
this, defaults included, with a format number.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from elman.base.config import at_least, between
from elman.base.errors import UsageError
from elman.models import MODELS
from elman.objectives.objective_config import RegimeConfig
from elman.tokens.tokenizer_config import TokenizerConfig
from elman.train.training_config import LaneTrainingConfig
from elman.train.optimisers import OptimiserConfig
from elman.train.schedules import ScheduleConfig

FORMAT = 1
"""The number in config.json; `run_folder.LIFTS` brings older ones up to it."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which text: files, folders, patterns, or names of built-in corpora."""

    train: tuple[str, ...] = ()
    """What to learn from."""
    valid: tuple[str, ...] = ()
    """What to validate on; where there is none, the end of the training text is held out."""
    test: tuple[str, ...] = ()
    """What to judge the finished model on."""
    column: str = ""
    """Which column has the labels, where data comes in columns: a name or a number from 1. Empty:
    for taggers upos of CoNLL-U, else the last; for classifiers it is found out.
    """
    text_column: str = ""
    """For classifiers: which column has the texts, a name or a number from 1. Empty: found out."""
    valid_fraction: float = 0.1
    """How much of the training text is held out where there is no validation text."""
    test_fraction: float = 0.0
    """For classifiers: how much is held out for a test where no test data is given."""
    num_folds: int = 0
    """For classifiers: equal parts into which the data is divided, one of them to test on."""
    fold: int = 1
    """For classifiers: which of these parts that is."""
    split_seed: int = 1
    """For classifiers: which of the random divisions; that of the model is training.seed."""
    max_length: int = 250
    """Pairs with more tokens than this on either side are left out of training."""

    def __post_init__(self) -> None:
        if not 0 < self.valid_fraction < 1:
            raise UsageError(
                f"'data.valid_fraction' should lie between 0 and 1, not be {self.valid_fraction}"
            )
        at_least("data.max_length", self.max_length, 1)
        between("data.test_fraction", self.test_fraction, 0, 1, below=True)
        at_least("data.num_folds", self.num_folds, 0)
        if self.num_folds == 1 or not 1 <= self.fold <= max(1, self.num_folds):
            raise UsageError(
                f"there is no fold {self.fold} of {self.num_folds}", "use 2 folds or more"
            )


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig(RegimeConfig):
    """What is minimised, for every task."""

    class_weights: Literal["none", "balanced"] = "none"
    """none: every text has the same weight; balanced: every label has, however rare it is."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A whole run."""

    format: int = FORMAT
    """The form of this configuration."""
    task: Literal[
        "lm",
        "window",
        "maxent",
        "ngram",
        "snm",
        "tagger",
        "classifier",
        "translator",
        "captioner",
        "conditional",
        "elmo",
    ] = "lm"
    """What is made: a language model (lm, a recurrent one, window, the fixed-window one, maxent, of
    hashed n-grams, ngram, or snm, a sparse matrix of skip-grams) or a model of another task, by its
    name.
    """
    recipe: str = "automatic"
    """Where the settings came from: a recipe, or the automatic choices."""
    data: DataConfig = field(default_factory=DataConfig)
    """The text."""
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    """How text becomes tokens."""
    model: Any = field(metadata={"table": MODELS})
    """The model; its kind is one of the table of models."""
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    """What is minimised."""
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    """How a gradient becomes an update."""
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """How the learning rate changes."""
    training: LaneTrainingConfig = field(default_factory=LaneTrainingConfig)
    """The loop."""
