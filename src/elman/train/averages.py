"""Averages of the weights over updates; the average is what is validated and saved.

triggered     from when the validation loss stops falling (NT-ASGD: Merity, Keskar and Socher,
              2018); fine-tuning starts again from the best average
exponential   with weights that fall by a factor per update (Polyak and Juditsky, 1992; Kingma
              and Ba, 2015, section 7.2)
two_tailed    over the last updates, as many as validate best (Melis, 2022): a second average
              that began later takes over as soon as it validates at least as well
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor
from torch.nn import Parameter

from elman.train.optimisers import OptimiserConfig
from elman.train.trainable import Validation


def stopped_falling(valid_losses: Sequence[float], interval: int) -> bool:
    """Return whether a validation was worse than the best of those more than `interval` older.

    Algorithm 1 of Merity and others (2018) as in its authors' code.
    """
    return any(
        valid_losses[t] > min(valid_losses[: t - interval])
        for t in range(interval + 1, len(valid_losses))
    )


def averaging_starts(config: OptimiserConfig, valid_losses: Sequence[float]) -> bool:
    """Return whether a triggered average should be on after these validation losses."""
    if config.averaging != "triggered":
        return False
    is_late = 0 < config.average_latest <= len(valid_losses)
    return is_late or stopped_falling(valid_losses, config.non_monotone_interval)


class Average:
    """The mean of the weights over all updates since its creation.

    With `decay`, later updates weigh more once there are 1 / (1 - decay) of them; until then all
    weigh the same, so that the initial weights are soon forgotten.
    """

    def __init__(self, parameters: Sequence[Parameter], decay: float = 1.0) -> None:
        self.parameters = list(parameters)
        self.decay = decay
        self.means: list[Tensor] = [p.detach().clone() for p in self.parameters]
        self.count = 0

    @torch.no_grad()
    def update(self) -> None:
        """Add the current weights to the mean."""
        self.count += 1
        share = max(1.0 / self.count, 1.0 - self.decay)
        torch._foreach_lerp_(self.means, [p.detach() for p in self.parameters], share)

    @torch.no_grad()
    def restart(self) -> None:
        """Begin again with the current weights, in the same memory."""
        self.count = 0
        torch._foreach_copy_(self.means, [p.detach() for p in self.parameters])

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the model the averaged weights inside a `with` block."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def state_dict(self) -> dict[str, Tensor]:
        means = {str(i): mean for i, mean in enumerate(self.means)}
        return {**means, "count": torch.tensor(self.count)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.count = int(state["count"])
        if self.count < 0:
            raise ValueError(f"weights were averaged {self.count} times")
        for i, mean in enumerate(self.means):
            mean.copy_(state[str(i)])

    def _swap(self) -> None:
        for i, parameter in enumerate(self.parameters):
            parameter.data, self.means[i] = self.means[i], parameter.data


class Averages:
    """The averages that a run keeps: none until they start, one, or two of which the later one
    takes over when it is as good.
    """

    def __init__(self, parameters: Sequence[Parameter], config: OptimiserConfig) -> None:
        self.parameters = parameters
        self.config = config
        self.best: Average | None = None
        self.later: Average | None = None

    def start(self) -> None:
        config = self.config
        decay = config.average_decay if config.averaging == "exponential" else 1.0
        self.best = Average(self.parameters, decay)
        if config.averaging == "two_tailed":
            self.later = Average(self.parameters)

    def named(self) -> dict[str, Average]:
        """Return the averages by their names in the train state."""
        averages = {"average": self.best, "short": self.later}
        return {name: average for name, average in averages.items() if average is not None}

    def update(self, step: int) -> None:
        """Add the weights after `step` updates."""
        if step % self.config.average_every == 0:
            for average in self.named().values():
                average.update()

    def applied(self) -> AbstractContextManager[None]:
        """Give the model the averaged weights, if there are any, inside a `with` block."""
        return nullcontext() if self.best is None else self.best.applied()

    def measured(self, measure: Callable[[], Validation]) -> Validation:
        """Measure the model with the average, or as it is; let the later one take over."""
        with self.applied():
            found = measure()
        if self.best is None or self.later is None:
            return found
        later = found
        if self.later.count != self.best.count:
            with self.later.applied():
                later = measure()
        if later.criterion <= found.criterion:
            self.best, self.later, found = self.later, self.best, later
            self.later.restart()
        return found
