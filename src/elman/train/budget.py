"""How long a run is: in epochs, in updates, or in minutes.

The loop asks a `Budget` how far it is (0 to 1, what schedules follow), whether it is over, and when
to validate. Minutes are a promise about the whole run: what comes after the last update, a
validation, the test and saving, is estimated from what has been measured so far, and training ends
that much earlier. The schedule runs over the time that is left to training, so the learning rate
arrives at its end in time.
"""

from __future__ import annotations

from collections.abc import Callable

from elman.base.errors import ElmanError
from elman.train.training_config import TrainingConfig

VALIDATION_SHARE = 0.05
"""Under --minutes: the most of the time that validations during training may take."""
MOST_VALIDATIONS = 20
"""Under --minutes: no more validations than this, however quick they are."""
ONE_VALIDATION_SHARE = 0.05
"""Under --minutes: a validation text that would take longer than this share is cut."""
TEST_SHARE = 0.10
"""Under --minutes: likewise for the test at the end."""
SLACK_SHARE = 0.005
SLACK_SECONDS = 1.0
"""Under --minutes: kept back for what nobody measured, the program's own start and end included."""
LONGEST_INTERVAL = 5000
"""Without --minutes: validate at least this often (in updates), however long an epoch is."""


class Budget:
    """The run's length and clock. All times are seconds since the run began, earlier sittings
    included.
    """

    def __init__(
        self,
        training: TrainingConfig,
        tokens_per_epoch: int,
        *,
        clock: Callable[[], float],
        started: float,
    ) -> None:
        """`started` is the clock's reading when this sitting began."""
        self.training = training
        self.tokens_per_epoch = tokens_per_epoch
        self.total = None if training.minutes is None else training.minutes * 60.0
        self.began = 0.0
        """When the first update could start: what came before was reading and encoding."""
        self.reserve = 0.0
        """What the end of the run is expected to take."""
        self._clock = clock
        self._started = started
        self._sitting = (0.0, 0.0)
        self._validated = 0.0

    def seconds(self) -> float:
        """Time since the run began."""
        return self._clock() - self._started

    def resume(self, seconds: float, began: float) -> None:
        """Count the `seconds` that earlier sittings took."""
        self._started -= seconds
        self.began = began

    def begin(self, step: int = 0, tokens: int = 0) -> None:
        """The set-up is over: training starts now, or goes on where it had come to."""
        self.began = self.began or self.seconds()
        self._validated = self.seconds()
        self._sitting = (self.seconds(), self.progress(step, tokens))
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
        """How many tokens can be evaluated within `share` of the time; None where time is not the
        measure.
        """
        return None if self.total is None else max(1, int(share * self.total * tokens_per_second))

    def progress(self, step: int, tokens: int) -> float:
        """How much of the training is behind us, 0 to 1."""
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
        """Whether there is no room for another update, which takes about `step_seconds`."""
        if self.total is not None:
            return step > 0 and self.seconds() + step_seconds > self.total - self.reserve
        if self.training.steps is not None:
            return step >= self.training.steps
        assert self.training.epochs is not None
        return epoch >= self.training.epochs

    def seconds_left(self, progress: float) -> float | None:
        """An estimate of the time to the end; None at the very beginning."""
        now = self.seconds()
        if self.total is not None:
            return max(0.0, self.total - now)
        since, before = self._sitting
        return None if progress <= before else (now - since) / (progress - before) * (1 - progress)

    def wants_validation(self, step: int, epoch_ended: bool, validation_seconds: float) -> bool:
        """Whether to validate after `step`; one validation takes about `validation_seconds`."""
        if self.training.validate_every:
            return step % self.training.validate_every == 0
        if self.total is None:
            return epoch_ended or step % LONGEST_INTERVAL == 0
        training_per_validation = (1 - VALIDATION_SHARE) / VALIDATION_SHARE
        interval = max(self.total / MOST_VALIDATIONS, training_per_validation * validation_seconds)
        now = self.seconds()
        left = (
            self.total - self.reserve - now
        )  # the last validation comes anyway: none shortly before it
        return now - self._validated >= interval and left > interval / 2

    def validated(self) -> None:
        """A validation has just ended."""
        self._validated = self.seconds()
