"""Optimisers by name: SGD, Adam, AdamW, RMSprop.

torch's fused optimisers do the arithmetic, in one pass over the weights per update; on a CPU a
compiled Adam, which clips in the same pass. With any of them the weights can be averaged over
updates (`averages.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Parameter

from elman.base.config import at_least, between, check_reads
from elman.base.errors import UsageError
from elman.nn.kernels.adam import CompiledAdam, serves


@dataclass(frozen=True, kw_only=True)
class OptimiserConfig:
    """The optimiser."""

    kind: Literal["sgd", "asgd", "adam", "adamw", "rmsprop"] = "adam"
    """asgd is sgd with a triggered average (AWD-LSTM). rmsprop is adam without the mean of
    gradients, as Melis and others (2018) use it."""
    learning_rate: float = 0.003
    """Learning rate before the schedule."""
    weight_decay: float = 0.0
    """Weight decay: added to the gradient (adamw: to the update)."""
    clip_decay: bool = False
    """Add the weight decay to the gradient before its norm is clipped, like the gradient of a
    penalty in the loss (Melis and others, 2018). Otherwise it is added after clipping, as in torch:
    if most gradients are clipped to a half, the decay is then twice as strong.
    """
    momentum: float = 0.0
    """sgd: momentum."""
    dampening: float = 0.0
    """sgd: dampening of the momentum."""
    nesterov: bool = False
    """sgd: Nesterov momentum."""
    maximise: bool = False
    """Maximise instead of minimising. sgd also turns the weight decay round; adam and adamw still
    decay the weights, as in torch.
    """
    beta1: float = 0.9
    """adam, adamw: decay of the running mean of gradients."""
    beta2: float = 0.999
    """adam, adamw, rmsprop: decay of the running mean of squared gradients."""
    epsilon: float = 1e-8
    """adam, adamw, rmsprop: added to the denominator."""
    average: Literal["none", "triggered", "exponential", "two_tailed"] = "none"
    """Average the weights over updates, and validate and save the average: from when validation
    stops improving (triggered: Merity and others, 2018; what asgd does), with exponential weights
    (Polyak and Juditsky, 1992), or over as many of the last updates as validate best (two_tailed:
    Melis, 2022).
    """
    non_monotone_interval: int = 5
    """triggered: start averaging when a validation is worse than the best one that is more than
    this many validations older.
    """
    average_latest: int = 0
    """triggered: start averaging after this many validations at the latest; 0: no limit."""
    restarts: int = 0
    """triggered: how often to go on from the best average with a new one (the fine-tuning of Merity
    and others, 2018): when its validation stops improving by the same rule, or at the latest after
    equal shares of the run.
    """
    average_decay: float = 0.999
    """exponential: the factor by which the weight of an update falls with each later one."""
    average_every: int = 1
    """Average the weights after every n-th update: of long averages, most updates are alike."""

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate < math.inf:
            raise UsageError(
                f"optimiser.learning_rate cannot be {self.learning_rate}",
                "try 0.003 for adam, 20 for sgd",
            )
        for name in (
            *("weight_decay", "epsilon", "non_monotone_interval", "average_latest", "restarts"),
        ):
            at_least(f"optimiser.{name}", getattr(self, name), 0)
        if self.clip_decay and (self.kind == "adamw" or self.maximise):
            raise UsageError(
                "optimiser.clip_decay is for weight decay in the gradient of a loss to minimise",
                "drop it, or adamw and optimiser.maximise",
            )
        at_least("optimiser.average_every", self.average_every, 1)
        between("optimiser.dampening", self.dampening, 0, 1)
        for name in ("momentum", "beta1", "beta2", "average_decay"):
            between(f"optimiser.{name}", getattr(self, name), 0, 1, below=True)
        sgd, adam = ["momentum", "dampening", "nesterov"], ["beta1", "beta2", "epsilon"]
        reads = {"sgd": sgd, "asgd": sgd, "adam": adam, "adamw": adam, "rmsprop": adam[1:]}
        check_reads(self, "optimiser", "kind", reads)
        if self.kind == "asgd" and self.average not in ("none", "triggered"):
            raise UsageError(
                f"asgd averages by itself, not as {self.average}", "set optimiser.kind=sgd"
            )
        reads = {
            "triggered": ["non_monotone_interval", "average_latest", "restarts", "average_every"],
            "exponential": ["average_decay", "average_every"],
            "two_tailed": ["average_every"],
        }
        if self.kind == "asgd":
            reads["none"] = reads["triggered"]
        check_reads(self, "optimiser", "average", reads)
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise UsageError(
                "optimiser.nesterov needs momentum and no dampening",
                "set optimiser.momentum=0.9 and optimiser.dampening=0",
            )

    @property
    def decay_to_clip(self) -> float:
        """The weight decay that is added before clipping."""
        return self.weight_decay if self.clip_decay else 0.0

    @property
    def averaging(self) -> str:
        """The average in use: asgd's is triggered."""
        return "triggered" if self.kind == "asgd" else self.average


def build(
    config: OptimiserConfig,
    parameters: Sequence[Parameter],
    own_rates: Sequence[tuple[Sequence[Parameter], float]] = (),
) -> torch.optim.Optimizer:
    """Build the optimiser; `own_rates` are groups of the parameters with the share of the learning
    rate that each gets.

    On CUDA the learning rate is a tensor, so that a captured update reads it at each replay.
    """
    on_cuda = parameters[0].is_cuda
    decay = config.weight_decay - config.decay_to_clip
    apart = {id(parameter) for group, _ in own_rates for parameter in group}
    groups: list[dict[str, Any]] = [{"params": [p for p in parameters if id(p) not in apart]}]
    groups += [{"params": list(group), "share": share} for group, share in own_rates]
    for group in groups:
        group["lr"] = config.learning_rate
        if on_cuda:
            group["lr"] = torch.tensor(config.learning_rate, device=parameters[0].device)
    if config.kind in ("sgd", "asgd"):
        sgd = torch.optim.SGD(
            groups,
            momentum=config.momentum,
            dampening=config.dampening,
            weight_decay=decay,
            nesterov=config.nesterov,
            fused=True,
        )
        # A learning rate of -γ: weight decay is added before the sign changes;
        # torch's own `maximize` negates the gradient before weight decay is added.
        for group in sgd.param_groups:
            group["negated"] = config.maximise
            set_rate(group, config.learning_rate)
        return sgd
    cls = CompiledAdam if serves(parameters) else torch.optim.Adam
    return cls(
        groups,
        betas=(0.0 if config.kind == "rmsprop" else config.beta1, config.beta2),
        eps=config.epsilon,
        weight_decay=decay,
        maximize=config.maximise,
        fused=True,
        capturable=on_cuda,
        decoupled_weight_decay=config.kind == "adamw",
    )


def set_rate(group: dict[str, Any], rate: float) -> None:
    """Set the learning rate of a parameter group."""
    rate = -rate if group.get("negated") else rate
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate
