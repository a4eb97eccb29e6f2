"""Optimisers by name: SGD, Adam, AdamW, and averaged SGD as in AWD-LSTM.

torch's fused optimisers do the arithmetic, in one pass over the weights per update. `asgd` is SGD
until the validation loss stops falling; from then on the weights are averaged, and the average is
validated and saved (NT-ASGD, Merity, Keskar and Socher 2018).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Parameter

from elman.base.config import at_least, between, check_reads
from elman.base.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class OptimiserConfig:
    """The optimiser."""

    kind: Literal["sgd", "asgd", "adam", "adamw"] = "adam"
    """asgd is sgd that averages the weights once validation stops improving."""
    learning_rate: float = 0.003
    """Learning rate before the schedule."""
    weight_decay: float = 0.0
    """Weight decay: added to the gradient (adamw: to the update)."""
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
    """adam, adamw: decay of the running mean of squared gradients."""
    epsilon: float = 1e-8
    """adam, adamw: added to the denominator."""
    non_monotone_interval: int = 5
    """asgd: start averaging when a validation is worse than the best one that is more than this
    many validations older.
    """

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate < math.inf:
            raise UsageError(
                f"optimiser.learning_rate cannot be {self.learning_rate}",
                "try 0.003 for adam, 20 for sgd",
            )
        for name in ("weight_decay", "epsilon", "non_monotone_interval"):
            at_least(f"optimiser.{name}", getattr(self, name), 0)
        between("optimiser.dampening", self.dampening, 0, 1)
        for name in ("momentum", "beta1", "beta2"):
            between(f"optimiser.{name}", getattr(self, name), 0, 1, below=True)
        sgd, adam = ["momentum", "dampening", "nesterov"], ["beta1", "beta2", "epsilon"]
        averaged = [*sgd, "non_monotone_interval"]
        reads = {"sgd": sgd, "asgd": averaged, "adam": adam, "adamw": adam}
        check_reads(self, "optimiser", "kind", reads)
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise UsageError(
                "optimiser.nesterov needs momentum and no dampening",
                "set optimiser.momentum=0.9 and optimiser.dampening=0",
            )


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
            weight_decay=config.weight_decay,
            nesterov=config.nesterov,
            fused=True,
        )
        # A learning rate of -γ: weight decay is added before the sign changes (as in the lecture);
        # torch's own `maximize` negates the gradient before weight decay is added.
        for group in sgd.param_groups:
            group["negated"] = config.maximise
            set_rate(group, config.learning_rate)
        return sgd
    cls = torch.optim.Adam if config.kind == "adam" else torch.optim.AdamW
    return cls(
        groups,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        weight_decay=config.weight_decay,
        maximize=config.maximise,
        fused=True,
        capturable=on_cuda,
    )


def set_rate(group: dict[str, Any], rate: float) -> None:
    """Set the learning rate of a parameter group."""
    rate = -rate if group.get("negated") else rate
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def averaging_starts(config: OptimiserConfig, valid_losses: Sequence[float]) -> bool:
    """Return whether averaging should be on after these validation losses.

    Algorithm 1 of the paper as in its authors' code: compare each loss with the best of those that
    are more than `non_monotone_interval` validations older.
    """
    if config.kind != "asgd":
        return False
    n = config.non_monotone_interval
    return any(
        valid_losses[t] > min(valid_losses[: t - n]) for t in range(n + 1, len(valid_losses))
    )


class Average:
    """The mean of the weights over all updates since its creation."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.parameters = list(parameters)
        self.means: list[Tensor] = [p.detach().clone() for p in self.parameters]
        self.count = 0

    @torch.no_grad()
    def update(self) -> None:
        """Add the current weights to the mean."""
        self.count += 1
        torch._foreach_lerp_(self.means, [p.detach() for p in self.parameters], 1.0 / self.count)

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
