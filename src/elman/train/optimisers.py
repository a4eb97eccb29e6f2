"""Optimisers by name: the lecture's SGD, Adam, AdamW, and averaged SGD as AWD-LSTM uses it.

torch's own optimisers do the arithmetic, in their fused form: one pass over the weights per step.
`asgd` is SGD until the validation loss stops falling; from then on the weights are averaged, and it
is the average that is validated and saved (NT-ASGD, Merity, Keskar and Socher 2018).
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

from elman.base.config import at_least, between
from elman.base.errors import UsageError
from elman.nn.thawing import Thawing


@dataclass(frozen=True, kw_only=True)
class OptimiserConfig:
    """How a gradient becomes an update."""

    kind: Literal["sgd", "asgd", "adam", "adamw"] = "adam"
    """Which optimiser; asgd is sgd whose weights are averaged once validation stops improving."""
    learning_rate: float = 0.003
    """The step size before the schedule."""
    weight_decay: float = 0.0
    """How strongly weights are pulled to zero: part of the gradient (adamw: of the update)."""
    momentum: float = 0.0
    """sgd: how much of the previous direction is kept."""
    dampening: float = 0.0
    """sgd: how much of the new gradient momentum leaves out."""
    nesterov: bool = False
    """sgd: look ahead along the momentum."""
    maximise: bool = False
    """Climb instead of descending. sgd climbs as the slide does, weight decay and all; adam and
    adamw as torch does, weights still pulled to zero.
    """
    beta1: float = 0.9
    """adam, adamw: decay of the gradient's running mean."""
    beta2: float = 0.999
    """adam, adamw: decay of the squared gradient's running mean."""
    epsilon: float = 1e-8
    """adam, adamw: keeps the division safe."""
    non_monotone_interval: int = 5
    """asgd: averaging starts when a validation is worse than the best of those more than so many
    before it.
    """

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate < math.inf:
            raise UsageError(
                f"optimiser.learning_rate cannot be {self.learning_rate}",
                "try 0.003 for adam, 20 for sgd",
            )
        for name in ("weight_decay", "epsilon", "non_monotone_interval"):
            at_least(f"optimiser.{name}", getattr(self, name), 0)
        for name in ("momentum", "beta1", "beta2"):
            between(f"optimiser.{name}", getattr(self, name), 0, 1, below=True)
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise UsageError(
                "optimiser.nesterov needs momentum and no dampening",
                "set optimiser.momentum=0.9 and optimiser.dampening=0",
            )


def build(
    config: OptimiserConfig, parameters: Sequence[Parameter], thawing: Thawing | None = None
) -> torch.optim.Optimizer:
    """The optimiser that `config` describes, over `parameters`; those of `thawing` are in groups of
    their own, whose `share` of the learning rate they learn at.

    On CUDA the learning rate is a tensor there: a captured step reads it anew at each replay.
    """
    on_cuda = parameters[0].is_cuda
    groups = _groups(parameters, thawing)
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
        # The slide adds the weight decay first and climbs last, θ + γ g, which is a step of -γ;
        # torch's own `maximize` turns the gradient round before the weight decay is added.
        for group in sgd.param_groups:
            group["climbs"] = config.maximise
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


def _groups(parameters: Sequence[Parameter], thawing: Thawing | None) -> list[dict[str, Any]]:
    if thawing is None:
        return [{"params": list(parameters)}]
    apart = {id(parameter) for group in thawing.groups for parameter in group}
    groups: list[dict[str, Any]] = [{"params": [p for p in parameters if id(p) not in apart]}]
    for group, rate in zip(thawing.groups, thawing.rates, strict=True):
        groups.append({"params": group, "share": rate})
    return groups


def set_rate(group: dict[str, Any], rate: float) -> None:
    """Give a group of parameters its learning rate."""
    rate = -rate if group.get("climbs") else rate
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def averaging_starts(config: OptimiserConfig, valid_losses: Sequence[float]) -> bool:
    """Whether, after these validation losses, averaging should be on.

    Algorithm 1 of the paper, as its authors' code reads it: the newest loss is compared with the
    best of those that are more than `non_monotone_interval` validations old.
    """
    if config.kind != "asgd":
        return False
    n = config.non_monotone_interval
    return any(
        valid_losses[t] > min(valid_losses[: t - n]) for t in range(n + 1, len(valid_losses))
    )


class Average:
    """The mean of the weights over all updates since it was begun."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.parameters = list(parameters)
        self.means: list[Tensor] = [p.detach().clone() for p in self.parameters]
        self.count = 0

    @torch.no_grad()
    def update(self) -> None:
        """Take the present weights into the mean."""
        self.count += 1
        torch._foreach_lerp_(self.means, [p.detach() for p in self.parameters], 1.0 / self.count)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let the model have the averaged weights for a while: to be validated, sampled from,
        saved.
        """
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def state_dict(self) -> dict[str, Tensor]:
        """The mean and its count, for a checkpoint."""
        means = {str(i): mean for i, mean in enumerate(self.means)}
        return {**means, "count": torch.tensor(self.count)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """The opposite of `state_dict`."""
        self.count = int(state["count"])
        for i, mean in enumerate(self.means):
            mean.copy_(state[str(i)])

    def _swap(self) -> None:
        for i, parameter in enumerate(self.parameters):
            parameter.data, self.means[i] = self.means[i], parameter.data
