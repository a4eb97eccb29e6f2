"""Gradient norms, norm clipping, and running averages between two reports.

Nothing here waits for the device during an update: losses and norms stay tensors until a report or
a checkpoint reads all of them at once. A loss that is not finite is noticed only then, so each
update's norms are kept per parameter, and the error can name the first one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from elman.base.errors import ElmanError
from elman.nn.kernels.adam import CompiledAdam
from elman.nn.kernels.lookup import merge_rows
from elman.nn.kernels.norms import norms

MARGIN = 1.0
"""Nats per token above a uniform distribution from which on a model is called diverged."""


@torch.no_grad()
def clip(
    parameters: Sequence[Parameter],
    threshold: float,
    optimiser: torch.optim.Optimizer | None = None,
) -> tuple[Tensor, Tensor]:
    """Clip gradients to norm `threshold`, in place or in the next step of an `optimiser` that can;
    return the norm before, and per parameter.

    Pascanu, Mikolov and Bengio (2013): if ‖g‖ ≥ threshold, scale g by threshold / ‖g‖. A threshold
    of 0 only measures.
    """
    for p in parameters:
        if p.grad is not None and p.grad.is_sparse:
            p.grad = merge_rows(p.grad)
    found = [p.grad for p in parameters if p.grad is not None]
    gradients = [g._values() if g.is_sparse else g for g in found]
    norms_P = norms(gradients)
    norm = torch.linalg.vector_norm(norms_P)
    # On a CPU the norm is known here, and most updates need no pass over the gradients.
    if threshold and (norm.is_cuda or not norm < threshold):
        scale = (threshold / norm).clamp(max=1.0)
        if isinstance(optimiser, CompiledAdam):
            optimiser.scale = float(scale)
        else:
            torch._foreach_mul_(gradients, scale)
    return norm, norms_P


@torch.no_grad()
def add_decay(parameters: Sequence[Parameter], decay: float) -> None:
    """Add the gradient of a penalty, half of `decay` times the sum of squared weights."""
    weights: list[Tensor] = [p for p in parameters if p.grad is not None]
    gradients = [p.grad for p in parameters if p.grad is not None]
    torch._foreach_add_(gradients, weights, alpha=decay)


@dataclass
class Meter:
    """Token-weighted averages since the last report."""

    parameters: Mapping[str, Parameter]
    """By name, in the order of the norms."""
    clip_norm: float
    nats: float = 0.0
    num_tokens: int = 0
    norms: float = 0.0
    num_clipped: int = 0
    num_steps: int = 0
    _pending: list[tuple[int, int, Tensor, Tensor, Tensor]] = field(default_factory=list)

    def add(self, step: int, num_tokens: int, nats: Tensor, norm: Tensor, norms_P: Tensor) -> None:
        """Add an update without waiting for its result."""
        self._pending.append((step, num_tokens, nats, norm, norms_P))

    def settle(self) -> None:
        """Wait for the pending updates and sum them up; raise if a loss or norm is not finite."""
        if not self._pending:
            return
        values = torch.stack([torch.stack((nats, norm)) for _, _, nats, norm, _ in self._pending])
        for (step, num_tokens, _, _, norms_P), (nats, norm) in zip(
            self._pending, values.tolist(), strict=True
        ):
            if not (math.isfinite(nats) and math.isfinite(norm)):
                names = [name for name, p in self.parameters.items() if p.grad is not None]
                raise diverged(step, nats, norms_P.tolist(), names)
            self.nats += nats
            self.num_tokens += num_tokens
            self.norms += norm
            self.num_clipped += bool(self.clip_norm) and norm >= self.clip_norm
            self.num_steps += 1
        self._pending.clear()

    def figures(self) -> dict[str, Any]:
        """Return the averages since the last report, and reset them."""
        self.settle()
        steps = max(1, self.num_steps)
        loss = self.nats / max(1, self.num_tokens)
        figures = {
            "loss": loss,
            "perplexity": perplexity(loss),
            "gradient_norm": self.norms / steps,
            "clip_rate": self.num_clipped / steps,
        }
        self.nats = self.norms = 0.0
        self.num_tokens = self.num_clipped = self.num_steps = 0
        return figures

    def state_dict(self) -> dict[str, Any]:
        names = ("nats", "num_tokens", "norms", "num_clipped", "num_steps")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in self.state_dict():
            setattr(self, name, state[name])


MOST_NATS = 700.0
"""exp of more does not fit into a float; a validation loss above it ends the run."""


def perplexity(nats_per_token: float) -> float:
    """Return exp of the mean surprisal, limited to what a float (and JSON) can hold."""
    return math.exp(min(nats_per_token, MOST_NATS))


def worse_than_chance(
    nats_per_token: float | None, vocab_size: int | None, *, continued: bool
) -> str | None:
    """Return a warning if a model has learnt less than that all tokens are equally likely.

    One that is `continued` on a distant text begins far above chance, and has not diverged.
    """
    if not nats_per_token or not vocab_size or nats_per_token < math.log(vocab_size) + MARGIN:
        return None
    figures = (
        f"the perplexity is {perplexity(nats_per_token):.3g}, that of guessing "
        f"among {vocab_size:,} tokens {vocab_size:,}"
    )
    if continued:
        return f"the model has not yet adapted to the text: {figures}; train it for longer"
    return f"training diverged: {figures}; lower optimiser.learning_rate"


def diverged(step: int, nats: float, norms: Sequence[float], names: Sequence[str]) -> ElmanError:
    """Return the error for a loss or gradient that is not finite; a validation has no `norms`."""
    broken = [name for name, norm in zip(names, norms, strict=True) if not math.isfinite(norm)]
    if not norms:
        where = f"the validation loss became {nats:.3g}"
    elif not math.isfinite(nats):
        where = f"the loss became {nats}"
    elif broken:
        where = f"the gradient of {broken[0]} is no longer finite"
    else:
        where = "the norm of the gradient is no longer finite"
    return ElmanError(
        f"training stopped at step {step}: {where}",
        "lower optimiser.learning_rate or training.clip_norm, add schedule.warmup_steps, or use "
        "training.precision=float32; the last checkpoint and the best model are from before it",
    )
