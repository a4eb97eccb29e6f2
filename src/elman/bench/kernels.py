"""Measure one recurrent layer, forward and backward, beside torch's: microseconds per time step.

The peer of cells that torch does not have is the papers' scan in log space. On a GPU a launch often
costs the CPU more than the kernel costs the GPU, so each comparison has two rows there: called one
by one, and replayed from CUDA graphs.

B batch, T time steps, I inputs, H hidden units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from elman.bench import recurrent
from elman.bench.measuring import Work, by_the_clock, in_turns
from elman.bench.rows import Row
from elman.bench.scans import log_space
from elman.bench.sizes import CellName, Size
from elman.nn.scan_cells import ScanCell
from elman.nn.stack import Stack, StackConfig
from elman.nn.state import State
from elman.nn.torch_weights import to_torch


def measure(
    cells: Sequence[CellName],
    sizes: Sequence[Size],
    repeat: int,
    device: str = "cpu",
    dtype_name: str = "float32",
) -> Iterator[Row]:
    dtype: torch.dtype = getattr(torch, dtype_name)
    for cell, size in product(cells, sizes):
        torch.manual_seed(0)
        config = StackConfig(cell=cell, hidden_size=size.hidden_size)
        stack = Stack(config, size.hidden_size).to(device, dtype)
        shape = (size.num_steps, size.batch_size, size.hidden_size)
        inputs_BTI = torch.randn(shape, device=device, dtype=dtype).transpose(0, 1)
        gradient_BTH, state, clock, rows = None, None, by_the_clock, {}
        if device == "cuda":
            gradient_BTH = torch.randn_like(inputs_BTI)
            state = stack.initial_state(size.batch_size)
            clock = recurrent.by_the_gpu_clock
            # Capture first: a work must not have run outside the stream that captures its graph.
            captured, _ = _works(_copy(stack), inputs_BTI, gradient_BTH, state)
            rows[", graphed"] = {name: recurrent.captured(w) for name, w in captured.items()}
        works, beside = _works(stack, inputs_BTI, gradient_BTH, state)
        ours, kernel = recurrent.run_and_name(works["ours"], stack)
        first = {"ours": ours, "peer": works["peer"]()}
        about: dict[str, Any] = {"kernel": kernel, "beside": beside}
        if device == "cuda":
            peaks = [recurrent.peak_bytes(work) for work in works.values()]
            about |= {"dtype": dtype_name, "peak_bytes": peaks[0], "peer_peak_bytes": peaks[1]}
        rows = {"": works, **rows}
        costs = {title: in_turns(these, repeat, clock) for title, these in rows.items()}
        # float64 comes last: memory that it frees would speed up the timed allocations.
        exact = _exact(stack, inputs_BTI, gradient_BTH)
        errors = {name: recurrent.distance(result, exact) for name, result in first.items()}
        for title, cost in costs.items():
            name = f"{cell} layer{title}"
            yield recurrent.step_row(name, cost["ours"], cost["peer"], size, errors, **about)


def _works(
    stack: Stack,
    inputs_BTI: Tensor,
    gradient_BTH: Tensor | None = None,
    state: State | None = None,
) -> tuple[dict[str, Work], str]:
    """Ours and the peer's, and the peer's name."""
    cell = stack.layers[0].cell
    ours = _both_ways(stack, lambda x_BTI: stack(x_BTI, state)[0], inputs_BTI, gradient_BTH)
    if isinstance(cell, ScanCell):
        peer = _both_ways(stack, partial(_log_space, cell), inputs_BTI, gradient_BTH)
        return {"ours": ours, "peer": peer}, "log space"
    module = to_torch(stack)
    peer = _both_ways(module, lambda x_BTI: module(x_BTI)[0], inputs_BTI, gradient_BTH)
    return {"ours": ours, "peer": peer}, f"nn.{type(module).__name__}"


def _exact(stack: Stack, inputs_BTI: Tensor, gradient_BTH: Tensor | None = None) -> Tensor:
    """The result of `_both_ways` in float64."""
    exact = _copy(stack, kernel="reference").double()
    gradient = None if gradient_BTH is None else gradient_BTH.double()
    work = _both_ways(exact, lambda x_BTI: exact(x_BTI)[0], inputs_BTI.double(), gradient)
    result: Tensor = work()
    return result


def _log_space(cell: ScanCell, inputs_BTI: Tensor) -> Tensor:
    projected = cell.project(inputs_BTI)
    return cell.read(projected, log_space(*cell.coefficients(projected), 1))


def _both_ways(
    owner: nn.Module,
    forward: Callable[[Tensor], Tensor],
    inputs: Tensor,
    gradient: Tensor | None,
) -> Work:
    """Forward and backward through `owner`; the result is the gradient of the inputs.

    `gradient` is that of the outputs; without it the loss is the sum of their squares.
    """
    inputs = inputs.detach().clone().requires_grad_()

    def work() -> Tensor:
        for leaf in (inputs, *owner.parameters()):
            leaf.grad = None
        outputs = forward(inputs)
        if gradient is None:
            outputs.square().sum().backward()  # type: ignore[no-untyped-call]
        else:
            outputs.backward(gradient)  # type: ignore[no-untyped-call]
        assert inputs.grad is not None
        return inputs.grad

    return work


def _copy(stack: Stack, *, kernel: str | None = None) -> Stack:
    config = stack.config if kernel is None else replace(stack.config, kernel=kernel)
    new = Stack(config, stack.input_size).to(next(stack.parameters()))
    new.load_state_dict(stack.state_dict())
    return new
