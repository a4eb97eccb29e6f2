"""Learning-rate schedules, as factors of the optimiser's learning rate.

A schedule is a pure function of the progress from 0 to 1 (of the steps, or of the time under
--minutes), the step, the epoch and the validation losses so far. It has no state to restore.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from elman.base.config import at_least, between, check_reads


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """The learning-rate schedule."""

    kind: Literal["constant", "cosine", "linear", "decay", "plateau"] = "cosine"
    """constant; cosine or linear down to `final`, after `hold`; decay: times `factor` each epoch
    after `decay_after` epochs; plateau: times `factor` whenever validation stops improving.
    """
    warmup_steps: int = 0
    """Updates of linear warm-up from 0; works with every kind."""
    final: float = 0.0
    """cosine, linear: the factor at the end."""
    hold: float = 0.0
    """cosine, linear: the share of the run at the full rate, before it falls."""
    decay_after: int = 0
    """decay: number of epochs at the full rate."""
    factor: float = 0.5
    """decay, plateau: factor of each reduction."""
    patience: int = 0
    """plateau: validations without improvement that are tolerated."""

    def __post_init__(self) -> None:
        reads = {
            "cosine": ["final", "hold"],
            "linear": ["final", "hold"],
            "decay": ["decay_after", "factor"],
            "plateau": ["factor", "patience"],
        }
        check_reads(self, "schedule", "kind", reads)
        for name in ("warmup_steps", "final", "decay_after", "patience"):
            at_least(f"schedule.{name}", getattr(self, name), 0)
        between("schedule.factor", self.factor, 0, 1)
        between("schedule.hold", self.hold, 0, 1, below=True)


def rate_factor(
    config: ScheduleConfig,
    *,
    progress: float,
    step: int,
    epoch: int,
    valid_losses: Sequence[float] = (),
) -> float:
    """Return the factor for the update that follows `step` updates; epochs count from 0."""
    progress = min(1.0, max(0.0, progress))
    fallen = max(0.0, progress - config.hold) / (1 - config.hold)
    match config.kind:
        case "constant":
            factor = 1.0
        case "cosine":
            factor = config.final + (1 - config.final) * (1 + math.cos(math.pi * fallen)) / 2
        case "linear":
            factor = config.final + (1 - config.final) * (1 - fallen)
        case "decay":
            factor = config.factor ** max(0, epoch + 1 - config.decay_after)
        case "plateau":
            factor = config.factor ** num_reductions(valid_losses, config.patience)
    if step < config.warmup_steps:
        factor *= (step + 1) / config.warmup_steps
    return factor


def num_reductions(valid_losses: Sequence[float], patience: int) -> int:
    """Count the plateaus: more than `patience` validations in a row without a new best."""
    best, waited, reductions = math.inf, 0, 0
    for loss in valid_losses:
        if loss < best:
            best, waited = loss, 0
            continue
        waited += 1
        if waited > patience:
            reductions, waited = reductions + 1, 0
    return reductions
