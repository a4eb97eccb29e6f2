"""Settings of a run of a classifier."""

from __future__ import annotations

from dataclasses import dataclass, field

from elman.base.config import UnreadSetting, at_least, between
from elman.base.errors import UsageError
from elman.runs.run_config import RandomSplitData
from elman.runs.trained_run import TrainedRun
from elman.tasks.classification.model import ClassifierConfig
from elman.tasks.classification.objective import ClassificationConfig
from elman.tokens.tokenizer_config import TokenizerConfig


@dataclass(frozen=True, kw_only=True)
class LabelledData(RandomSplitData):
    """Labelled texts, and how they are divided."""

    column: str = ""
    """The column with the labels: a name or a number from 1. Empty: detected."""
    text_column: str = ""
    """The column with the texts: a name or a number from 1. Empty: detected."""
    second_column: str = ""
    """Of pairs of texts, the column with the second one. Empty: labels are of single texts."""
    test_fraction: float = 0.0
    """The share to hold out for a test if no test data is given."""
    num_folds: int = 0
    """Split the data into this many equal parts and test on one of them; 0: do not."""
    fold: int = 1
    """The part to test on, from 1."""
    split_seed: int = 1
    """Random seed of the split. The seed of the model is training.seed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        between("data.test_fraction", self.test_fraction, 0, 1, below=True)
        at_least("data.num_folds", self.num_folds, 0)
        at_least("data.split_seed", self.split_seed, 0)
        if self.num_folds == 1 or not 1 <= self.fold <= max(1, self.num_folds):
            raise UsageError(
                f"there is no fold {self.fold} of {self.num_folds}", "use 2 folds or more"
            )

    @property
    def held_out_test(self) -> str:
        return "texts held out, drawn at random"


@dataclass(frozen=True, kw_only=True)
class ClassifierRun(TrainedRun):
    """A run of a classifier."""

    task: str = "classifier"
    data: LabelledData = field(default_factory=LabelledData)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    """How text becomes tokens."""
    model: ClassifierConfig = field(default_factory=ClassifierConfig)
    """The model."""
    objective: ClassificationConfig = field(default_factory=ClassificationConfig)
    """What is minimised."""

    def __post_init__(self) -> None:
        if not self.data.second_column and self.model.joint_size != ClassifierConfig.joint_size:
            raise UnreadSetting("model.joint_size", "leave it out, or set data.second_column")
