"""The length of a run in epochs, updates or minutes, and its position.

The loop asks a `Budget` for the progress (0 to 1, for schedules), whether the run is over, and when
to validate. Minutes cover the whole run: the time for the last validation, the test and saving is
estimated from measurements, and training ends that much earlier. Schedules run over the time that
is left for training, so the learning rate reaches its final value in time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from elman.base.errors import ElmanError
from elman.train.training_config import TrainingConfig

VALIDATION_SHARE = 0.05
"""Under --minutes: the largest share of the time for validations during training."""
MOST_VALIDATIONS = 60
"""Under --minutes: the maximum number of validations."""
ONE_VALIDATION_SHARE = 0.05
"""Under --minutes: validation data that would take a larger share than this is cut."""
TEST_SHARE = 0.10
"""Under --minutes: the same for the test at the end."""
SLACK_SHARE = 0.005
SLACK_SECONDS = 1.0
"""Under --minutes: reserved for what is not measured, such as starting and ending the process."""
LONGEST_INTERVAL = 5000
"""Without --minutes: the maximum number of updates between validations."""
LEAST_INTERVAL = 20
"""Without --minutes: the minimum number of updates between validations, of which each costs as much
as several updates if the text is tiny."""
TRAINED_PER_VALIDATED = 6
"""Without --minutes: tokens that training reads at least for each one that validation reads. A
token takes a third of the time in validation, so that it has 5 % of the time. Tokens are counted,
not seconds, so that a run repeats."""
VALIDATED_EPOCHS, LATER_PER_VALIDATED = 100, 20
"""After so many validations, training reads so many tokens for each one: less than 2 %."""
SAMPLES_PER_DOUBLING = 4
"""Validations that draw a sample, of those by which their number doubles: samples take longer than
validations on a GPU, and later ones differ less."""
SAMPLE_INTERVAL = 100
"""Where the run decides when to validate: the updates of which at most one draws a sample, which
costs as much as several updates of a small model."""


@dataclass
class Progress:
    """The position of the run: what a train state holds besides tensors."""

    step: int = 0
    tokens: int = 0
    valid_losses: list[float] = field(default_factory=list)
    """The criterion of each validation: a loss, or a negated metric."""
    best_loss: float = 0.0
    """The surprisal of the best model, which decides between models with the same metric; 0 if it
    is not known."""
    validated_step: int = -1
    validated_tokens: int = 0
    """Tokens read before the last validation."""
    update_seconds: float = 0.0
    validation_seconds: float = 0.0
    """Spent on validations and samples."""
    saving_seconds: float = 0.0
    """Spent on writing models and train states."""
    valid_limit: int | None = None
    """Validation tokens in use; fixed at the start, so that losses are comparable."""
    averaged_from: int = 0
    """Number of validations before the present average began."""
    num_restarts: int = 0
    """How often fine-tuning has started."""
    is_tuned: bool = False
    """Whether the last fine-tuning has stopped improving."""

    @property
    def best(self) -> float:
        """The lowest criterion so far."""
        return min(self.valid_losses, default=math.inf)

    @property
    def num_waiting(self) -> int:
        """Number of validations since the best one."""
        losses = self.valid_losses
        return len(losses) - 1 - losses.index(self.best) if losses else 0


class Budget:
    """The run's length and clock, in seconds since the run began, earlier sessions included."""

    def __init__(
        self,
        training: TrainingConfig,
        tokens_per_epoch: int,
        *,
        clock: Callable[[], float],
        started: float,
    ) -> None:
        """`started` is the clock's reading when this session began."""
        self.training = training
        self.tokens_per_epoch = tokens_per_epoch
        self.total = None if training.minutes is None else training.minutes * 60.0
        self.began = 0.0
        """When the first update could start, after reading and encoding."""
        self.reserve = 0.0
        """Expected duration of the end of the run."""
        self._clock = clock
        self._started = started
        self._session = (0.0, 0.0)
        self.validated_at = 0.0
        """When the last validation ended."""

    def seconds(self) -> float:
        return self._clock() - self._started

    def resume(self, seconds: float, began: float) -> None:
        """Add the `seconds` of earlier sessions."""
        self._started -= seconds
        self.began = began

    def begin(self, step: int = 0, tokens: int = 0) -> None:
        """Note that set-up is over and training starts or continues."""
        self.began = self.began or self.seconds()
        self.validated_at = self.seconds()
        self._session = (self.seconds(), self.progress(step, tokens))
        if self.total is not None and self.began > 0.9 * self.total:
            raise ElmanError(
                "no time is left to train in: starting, reading the text and building the model "
                f"took {self.began:.0f} s, the run is to take {self.total:.0f} s",
                "give it more --minutes; what was encoded is kept, so the next run starts sooner",
            )

    def expect_end(self, validation: float, test: float, saving: float) -> None:
        """Reserve time for the last validation, the test (in seconds each) and saving."""
        if self.total is not None:
            test = min(test, TEST_SHARE * self.total)
            slack = SLACK_SHARE * self.total + SLACK_SECONDS
            self.reserve = validation + test + saving + slack

    def most_tokens(self, share: float, tokens_per_second: float) -> int | None:
        """Return how many tokens can be evaluated in a `share` of the time; None if unlimited."""
        return None if self.total is None else max(1, int(share * self.total * tokens_per_second))

    def progress(self, step: int, tokens: int) -> float:
        """Return the finished part of the training, 0 to 1."""
        if self.total is not None:
            length = max(1e-9, self.total - self.reserve - self.began)
            done = (self.seconds() - self.began) / length
        elif self.training.steps is not None:
            done = step / self.training.steps
        else:
            assert self.training.epochs is not None
            done = tokens / max(1, self.training.epochs * self.tokens_per_epoch)
        return min(1.0, max(0.0, done))

    def is_over(self, step: int, epoch: int, step_seconds: float) -> bool:
        """Return whether there is no time for another update of about `step_seconds`."""
        if self.total is not None:
            return step > 0 and self.seconds() + step_seconds > self.total - self.reserve
        if self.training.steps is not None:
            return step >= self.training.steps
        assert self.training.epochs is not None
        return epoch >= self.training.epochs

    def seconds_left(self, progress: float) -> float | None:
        """Estimate the time to the end; None at the very beginning."""
        now = self.seconds()
        if self.total is not None:
            return max(0.0, self.total - now)
        since, before = self._session
        return None if progress <= before else (now - since) / (progress - before) * (1 - progress)

    def wants_validation(
        self,
        progress: Progress,
        epoch_ended: bool,
        num_tokens: int,
        validation_seconds: float,
        num_readings: int = 1,
    ) -> bool:
        """Return whether to validate now; it reads `num_tokens`, for two averages twice, and takes
        `validation_seconds`."""
        if self.training.validate_every:
            return progress.step % self.training.validate_every == 0
        if self.total is None:
            if not (epoch_ended or progress.step % LONGEST_INTERVAL == 0):
                return False
            if progress.step - max(0, progress.validated_step) < LEAST_INTERVAL:
                return False
            is_early = len(progress.valid_losses) < VALIDATED_EPOCHS
            least = TRAINED_PER_VALIDATED if is_early else LATER_PER_VALIDATED * num_readings
            return progress.tokens - progress.validated_tokens >= least * num_tokens
        training_per_validation = (1 - VALIDATION_SHARE) / VALIDATION_SHARE
        interval = max(self.total / MOST_VALIDATIONS, training_per_validation * validation_seconds)
        now = self.seconds()
        left = self.total - self.reserve - now  # the run ends with a validation: none just before
        return now - self.validated_at >= interval and left > interval / 2

    def wants_sample(self, progress: Progress) -> bool:
        """Return whether the validation that comes now draws a sample."""
        number = len(progress.valid_losses) + 1
        if number % (1 << max(0, number.bit_length() - SAMPLES_PER_DOUBLING.bit_length())):
            return False
        if self.training.validate_every or self.total is not None:
            return True
        return progress.step // SAMPLE_INTERVAL > progress.validated_step // SAMPLE_INTERVAL

    def validated(self) -> None:
        self.validated_at = self.seconds()
