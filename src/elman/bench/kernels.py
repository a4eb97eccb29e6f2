"""One recurrent layer, forward and backward, beside torch's: microseconds per time step.

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
from elman.bench.measuring import Row, Work, less_is_better
from elman.bench.recurrent_command import CellName, Size
from elman.nn.scan_cells import ScanCell
from elman.nn.stack import Stack, StackConfig
from elman.nn.torch_weights import to_torch


def on_cpu(cells: Sequence[CellName], sizes: Sequence[Size], repeat: int) -> Iterator[Row]:
    for cell, size in product(cells, sizes):
        torch.manual_seed(0)
        stack = Stack(StackConfig(cell=cell, hidden_size=size.hidden_size), size.hidden_size)
        inputs_BTI = torch.randn(size.num_steps, size.batch_size, size.hidden_size)
        inputs_BTI = inputs_BTI.transpose(0, 1)
        peer, owner, beside = _peer(stack)
        works = {
            "ours": _both_ways(partial(_outputs, stack), stack, inputs_BTI),
            "peer": _both_ways(peer, owner, inputs_BTI),
        }
        ours, kernel = recurrent.run_and_name(works["ours"], stack)
        first = {"ours": ours, "peer": works["peer"]()}
        costs = recurrent.measure_cpu(works, repeat)
        exact = _copy(stack, kernel="reference", dtype=torch.float64)
        gradient = _both_ways(partial(_outputs, exact), exact, inputs_BTI.double())()
        yield recurrent.cpu_row(
            f"{cell} layer",
            less_is_better,
            costs["ours"],
            costs["peer"],
            {name: recurrent.distance(result, gradient) for name, result in first.items()},
            size,
            kernel=kernel,
            beside=beside,
            unit="us/step",
            factor=1e6 / size.num_steps,
        )


def on_gpu(
    cells: Sequence[CellName], sizes: Sequence[Size], repeat: int, dtype_name: str
) -> Iterator[Row]:
    dtype: torch.dtype = getattr(torch, dtype_name)
    for cell, size in product(cells, sizes):
        torch.manual_seed(0)
        config = StackConfig(cell=cell, hidden_size=size.hidden_size)
        stack = Stack(config, size.hidden_size).to("cuda", dtype)
        shape = (size.num_steps, size.batch_size, size.hidden_size)
        inputs_TBI = torch.randn(shape, device="cuda", dtype=dtype)
        gradient_TBH = torch.randn(shape, device="cuda", dtype=dtype)
        make = {
            "ours": partial(_ours_on_gpu, stack, inputs_TBI, gradient_TBH),
            "peer": partial(_torch_on_gpu, stack, inputs_TBI, gradient_TBH),
        }
        # Capture first: a work must not have run outside the stream that captures its graph.
        replays = {name: recurrent.captured(work()) for name, work in make.items()}
        calls = {name: work() for name, work in make.items()}
        exact_stack = _copy(stack, kernel="reference", dtype=torch.float64)
        exact = _ours_on_gpu(exact_stack, inputs_TBI.double(), gradient_TBH.double())()
        ours, kernel = recurrent.run_and_name(calls["ours"], stack)
        results = {"ours": ours.double(), "peer": calls["peer"]().double()}
        errors = {name: recurrent.distance(result, exact) for name, result in results.items()}
        peaks = {name: recurrent.peak_bytes(work) for name, work in calls.items()}
        for title, works in (("", calls), (", graphed", replays)):
            costs = recurrent.measure_gpu(works, repeat)
            row = less_is_better(
                f"{cell} layer{title}",
                costs["ours"].seconds * 1e6 / size.num_steps,
                costs["peer"].seconds * 1e6 / size.num_steps,
                "us/step",
                **vars(size),
                dtype=dtype_name,
                kernel=kernel,
                beside=f"nn.{cell.upper()}",
                peak_bytes=peaks["ours"],
                peer_peak_bytes=peaks["peer"],
            )
            yield replace(row, error=errors["ours"], peer_error=errors["peer"])


def _peer(stack: Stack) -> tuple[Callable[[Tensor], Tensor], nn.Module, str]:
    """A peer's forward pass, the module whose gradients it makes, and its name."""
    cell = stack.layers[0].cell
    if isinstance(cell, ScanCell):
        return partial(_log_space, cell), stack, "log space"
    module = to_torch(stack)
    return partial(_outputs, module), module, f"nn.{type(module).__name__}"


def _outputs(layers: nn.Module, inputs_BTI: Tensor) -> Tensor:
    outputs_BTH: Tensor = layers(inputs_BTI)[0]
    return outputs_BTH


def _log_space(cell: ScanCell, inputs_BTI: Tensor) -> Tensor:
    """The papers' scan (Heinsen, 2023): cumulative sums and log-sum-exps of logarithms.

    It can only add positive numbers; an SRU's are made positive, for the same amount of work.
    """
    projected = cell.project(inputs_BTI)
    keep, add = cell.coefficients(projected)
    kept = torch.cumsum(keep.log(), 1)
    logs = torch.logcumsumexp(add.abs().log() - kept, 1)
    return cell.read(projected, (kept + logs).exp())


def _both_ways(forward: Callable[[Tensor], Tensor], owner: nn.Module, inputs_BTI: Tensor) -> Work:
    """Forward and backward; the result is the gradient of the inputs."""

    def work() -> Tensor:
        inputs = inputs_BTI.detach().requires_grad_()
        owner.zero_grad(set_to_none=True)
        forward(inputs).square().sum().backward()  # type: ignore[no-untyped-call]
        assert inputs.grad is not None
        return inputs.grad

    return work


def _ours_on_gpu(stack: Stack, inputs_TBI: Tensor, gradient_TBH: Tensor) -> Work:
    stack = _copy(stack)
    inputs_BTI = inputs_TBI.transpose(0, 1).detach().clone().requires_grad_()
    state = stack.initial_state(inputs_BTI.shape[0])
    leaves = [inputs_BTI, *stack.parameters()]

    def work() -> Tensor:
        _drop_gradients(leaves)
        stack(inputs_BTI, state)[0].backward(gradient_TBH.transpose(0, 1))
        assert inputs_BTI.grad is not None
        return inputs_BTI.grad.transpose(0, 1)

    return work


def _torch_on_gpu(stack: Stack, inputs_TBI: Tensor, gradient_TBH: Tensor) -> Work:
    module: Any = to_torch(stack)
    module = type(module)(inputs_TBI.shape[2], gradient_TBH.shape[2]).to(inputs_TBI)  # time first
    module.load_state_dict(to_torch(stack).state_dict())
    module.flatten_parameters()
    inputs = inputs_TBI.detach().clone().requires_grad_()
    leaves = [inputs, *module.parameters()]

    def work() -> Tensor:
        _drop_gradients(leaves)
        module(inputs)[0].backward(gradient_TBH)
        assert inputs.grad is not None
        return inputs.grad

    return work


def _copy(stack: Stack, *, kernel: str | None = None, dtype: torch.dtype | None = None) -> Stack:
    config = stack.config if kernel is None else replace(stack.config, kernel=kernel)
    new = Stack(config, stack.input_size).to(next(stack.parameters()))
    new.load_state_dict(stack.state_dict())
    return new.to(dtype=dtype)


def _drop_gradients(tensors: Sequence[Tensor]) -> None:
    for tensor in tensors:
        tensor.grad = None
