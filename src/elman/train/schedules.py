"""The learning rate over a run, as a factor of the optimiser's.

Every schedule is a pure function of where the run stands: the progress from 0 to 1 (of the steps,
or of the time under --minutes), the step, the epoch, and the validation losses so far. Nothing is
remembered, so resuming has nothing to restore.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """How the learning rate changes during the run."""

    kind: Literal["constant", "cosine", "linear", "decay", "plateau"] = "cosine"
    """constant; cosine or linear down to `final`; decay by `factor` each epoch after `decay_after`
    epochs; plateau: by `factor` whenever validation stops improving.
    """
    warmup_steps: int = 0
    """Updates over which the rate rises from 0 at the start; works with every kind."""
    final: float = 0.0
    """cosine, linear: the factor that is left at the end."""
    decay_after: int = 0
    """decay: how many epochs keep the full rate."""
    factor: float = 0.5
    """decay, plateau: what the rate is multiplied by."""
    patience: int = 0
    """plateau: validations without improvement that are forgiven."""


def rate_factor(
    config: ScheduleConfig,
    *,
    progress: float,
    step: int,
    epoch: int,
    valid_losses: Sequence[float] = (),
) -> float:
    """What the learning rate is multiplied by, for the update after `step` updates, `epoch` counted
    from 0.
    """
    progress = min(1.0, max(0.0, progress))
    match config.kind:
        case "constant":
            factor = 1.0
        case "cosine":
            factor = config.final + (1 - config.final) * (1 + math.cos(math.pi * progress)) / 2
        case "linear":
            factor = config.final + (1 - config.final) * (1 - progress)
        case "decay":
            factor = config.factor ** max(0, epoch + 1 - config.decay_after)
        case "plateau":
            factor = config.factor ** num_reductions(valid_losses, config.patience)
    if step < config.warmup_steps:
        factor *= (step + 1) / config.warmup_steps
    return factor


def num_reductions(valid_losses: Sequence[float], patience: int) -> int:
    """How often a plateau was met: more than `patience` validations in a row without a new best."""
    best, waited, reductions = math.inf, 0, 0
    for loss in valid_losses:
        if loss < best:
            best, waited = loss, 0
            continue
        waited += 1
        if waited > patience:
            reductions, waited = reductions + 1, 0
    return reductions
