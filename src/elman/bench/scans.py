"""`elman bench scans`: the scan of minGRU and its like, h = keep * h + add, beside public ones.

Forward and backward over all steps, microseconds per step. The peers are the scan in log space that
the papers give (Heinsen, 2023), `jax.lax.associative_scan` and torch's `associative_scan`. On a GPU
torch's is compiled, and ours and torch's are also replayed from CUDA graphs; what jax compiled
stays as it is.

B batch, T time steps, H units.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elman.bench import recurrent
from elman.bench.measuring import Cost, Work, by_the_clock, in_turns
from elman.bench.rows import Row, note
from elman.bench.sizes import Size
from elman.nn.kernels import Purpose, plan
from elman.nn.kernels.scan import linear_scan
from elman.nn.scan_cells import MinGRUCell

CALLS = 4
"""Of one measurement: a single call is mostly launch time on a GPU."""
LARGEST_ERROR = 1e-3
"""A mode of torch with a larger error is left out."""

Scan = Callable[[Tensor, Tensor], Tensor]
"""keep and add, (T, B, H), to the states after each step."""


@dataclass(frozen=True)
class Inputs:
    """The coefficients, and the gradient of the states."""

    keep_TBH: Tensor
    add_TBH: Tensor
    gradient_TBH: Tensor

    @classmethod
    def drawn(cls, size: Size, device: str) -> Inputs:
        """Coefficients as a minGRU has them: log space knows only positive ones."""
        torch.manual_seed(0)
        shape = (3, size.num_steps, size.batch_size, size.hidden_size)
        keep_TBH, add_TBH, gradient_TBH = torch.randn(shape, device=device).unbind()
        return cls(keep_TBH.sigmoid(), add_TBH.exp(), gradient_TBH)

    def both_ways(self, scan: Scan) -> Work:
        """Return the states, and the gradients of keep and add."""
        keep_TBH, add_TBH = (
            part.detach().requires_grad_() for part in (self.keep_TBH, self.add_TBH)
        )

        def work() -> tuple[Tensor, ...]:
            states_TBH = scan(keep_TBH, add_TBH)
            gradients = torch.autograd.grad(states_TBH, (keep_TBH, add_TBH), self.gradient_TBH)
            return states_TBH.detach(), *gradients

        return work

    def exact(self) -> Tensor:
        """The same, joined, in float64."""
        wide = Inputs(*(part.double() for part in vars(self).values()))
        return _joined(wide.both_ways(_step_by_step)(), self.keep_TBH.device)


@dataclass(frozen=True)
class Side:
    """A scan with its gradients: ours or a peer's."""

    name: str
    work: Work
    wait: Callable[[Any], object]
    """Returns when a result of `work` is there."""
    can_be_captured: bool = True

    def run(self) -> None:
        for _ in range(CALLS):
            result = self.work()
        self.wait(result)


class Absent(Exception):
    """A peer does not run here; the message names it and says why."""


def measure(sizes: Sequence[Size], repeat: int, device: str) -> Iterator[Row]:
    """A row for each peer and size; on a GPU another with ours replayed from a graph."""
    for make in (_log_space, _jax, _torch):
        for size in sizes:
            inputs = Inputs.drawn(size, device)
            exact = inputs.exact()
            try:
                peer = make(inputs, exact)
            except Absent as why:
                note(f"no row beside {why}")
                break
            yield from _rows(_ours(inputs), peer, exact, size, repeat, device)


def _rows(
    ours: Side, peer: Side, exact: Tensor, size: Size, repeat: int, device: str
) -> Iterator[Row]:
    sides = {"ours": ours, "peer": peer}
    errors = {
        name: recurrent.distance(_joined(side.work(), exact.device), exact)
        for name, side in sides.items()
    }
    about: dict[str, Any] = {"kernel": ours.name, "beside": peer.name, "device": device}
    title = f"scan beside {peer.name}"
    pairs = {title: sides}
    if device == "cuda":
        pairs[f"{title}, graphed"] = {name: _graphed(side) for name, side in sides.items()}
    for name, pair in pairs.items():
        works = {which: side.run for which, side in pair.items()}
        in_turns(works, 1)
        costs = in_turns(works, repeat, partial(_of_a_call, device))
        yield recurrent.step_row(name, costs["ours"], costs["peer"], size, errors, **about)


def _graphed(side: Side) -> Side:
    return replace(side, work=recurrent.captured(side.work)) if side.can_be_captured else side


def _of_a_call(device: str, work: Work) -> Cost:
    cost = by_the_clock(work)
    cpu_seconds = cost.cpu_seconds if device == "cpu" else 0.0
    return Cost(cost.seconds / CALLS, cpu_seconds / CALLS, 0)


def _joined(results: Sequence[Any], device: torch.device) -> Tensor:
    """States and gradients in one vector."""
    parts = [part if isinstance(part, Tensor) else np.array(part) for part in results]
    return torch.cat([torch.as_tensor(part, device=device).double().flatten() for part in parts])


def _in_torch(name: str, scan: Scan, inputs: Inputs) -> Side:
    wait: Callable[[], Any] = torch.cuda.synchronize if inputs.keep_TBH.is_cuda else tuple
    return Side(name, inputs.both_ways(scan), lambda result: wait())


def _ours(inputs: Inputs) -> Side:
    """The scan that is planned for a minGRU of this size."""
    num_steps, batch_size, hidden_size = inputs.keep_TBH.shape
    chosen = plan(
        MinGRUCell(1, hidden_size),
        device=inputs.keep_TBH.device,
        dtype=torch.float32,
        shape=(batch_size, num_steps, 1),
        purpose=Purpose.TRAINING,
    )
    initial_BH = torch.zeros_like(inputs.keep_TBH[0])

    def scan(keep_TBH: Tensor, add_TBH: Tensor) -> Tensor:
        return linear_scan(keep_TBH, add_TBH, initial_BH, chosen.variant)

    return _in_torch(chosen.describe(), scan, inputs)


def _step_by_step(keep_TBH: Tensor, add_TBH: Tensor) -> Tensor:
    states = [add_TBH[0]]
    for keep_BH, add_BH in zip(keep_TBH[1:], add_TBH[1:], strict=True):
        states.append(keep_BH * states[-1] + add_BH)
    return torch.stack(states)


def log_space(keep: Tensor, add: Tensor, dim: int) -> Tensor:
    """The papers' scan (Heinsen, 2023): cumulative sums and log-sum-exps of logarithms.

    It can only add positive numbers; others are made positive, for the same amount of work.
    """
    kept = torch.cumsum(keep.log(), dim)
    return (kept + torch.logcumsumexp(add.abs().log() - kept, dim)).exp()


def _log_space(inputs: Inputs, exact: Tensor) -> Side:
    return _in_torch("log space", partial(log_space, dim=0), inputs)


def _compose(first: Any, second: Any) -> Any:
    """Two steps in one, of torch or jax."""
    return first[0] * second[0], second[0] * first[1] + second[1]


def _jax(inputs: Inputs, exact: Tensor) -> Side:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # memory is shared with torch
    try:
        jax = import_module("jax")
        (device, *_) = jax.devices("gpu" if inputs.keep_TBH.is_cuda else "cpu")
    except ImportError:
        raise Absent("jax.lax.associative_scan: jax is not installed") from None
    except RuntimeError as error:
        raise Absent(f"jax.lax.associative_scan: {_first_line(error)}") from error
    given = [jax.device_put(part.cpu().numpy(), device) for part in vars(inputs).values()]

    def both_ways(keep: Any, add: Any, gradient: Any) -> Any:
        def scan(keep: Any, add: Any) -> Any:
            return jax.lax.associative_scan(_compose, (keep, add), axis=0)[1]

        states, back = jax.vjp(scan, keep, add)
        return states, *back(gradient)

    work = partial(jax.jit(both_ways), *given)
    return Side("jax.lax.associative_scan", work, jax.block_until_ready, can_be_captured=False)


def _torch(inputs: Inputs, exact: Tensor) -> Side:
    """In pointwise mode, which is for GPUs; if that fails or errs, in generic mode."""
    on_gpu, problem = inputs.keep_TBH.is_cuda, "torch's associative_scan"
    for mode in ("pointwise", "generic") if on_gpu else ("generic",):
        name = f"torch's associative_scan, {mode}"
        try:
            associative_scan = import_module(
                "torch._higher_order_ops.associative_scan"
            ).associative_scan

            def scan(
                keep: Tensor, add: Tensor, mode: str = mode, call: Any = associative_scan
            ) -> Any:
                return call(_compose, (keep, add), 0, combine_mode=mode)[1]

            # Sizes that change would be compiled for any size, which pointwise mode refuses.
            compiled = torch.compile(scan, fullgraph=True, dynamic=False) if on_gpu else scan
            side = _in_torch(name, compiled, inputs)
            error = recurrent.distance(_joined(side.work(), exact.device), exact)
        except (ImportError, RuntimeError, ValueError) as failure:
            problem = f"{name}: {_first_line(failure)}"
        else:
            if error <= LARGEST_ERROR:
                return side
            problem = f"{name}: its results or gradients are wrong, by {error:.1g} of their size"
        if on_gpu and mode == "pointwise":
            note(problem)
    raise Absent(problem)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
