"""Several layers of LSTMs with extras as one wave: results and gradients beside the reference's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from elman.nn.cells import LSTMCell
from elman.nn.cells import run as reference
from elman.nn.kernels import recorded_plans, wave
from elman.nn.stack import Stack, StackConfig
from elman.nn.state import State

MOGRIFIED = {"mogrify_rounds": 5, "mogrify_rank": 3, "cap_input": True}
CASES: dict[str, tuple[dict[str, Any], tuple[int, int, int], bool, int]] = {
    "plain": ({}, (1, 3, 6), False, 0),
    "capped": ({"cap_input": True}, (2, 6, 6), True, 1),
    "mogrified": (MOGRIFIED, (2, 6, 6), True, 1),
    "three layers": (MOGRIFIED, (3, 6, 6), False, 2),
    "four rounds": ({"mogrify_rounds": 4, "mogrify_rank": 2}, (1, 20, 18), True, 0),
    "one round": ({"mogrify_rounds": 1, "mogrify_rank": 2}, (2, 5, 5), True, 2),
}
"""Options of the cell; layers, inputs, units; state dropout; what is between layers: nothing, a mask
for each step, one for all."""


def results(
    name: str, *, as_wave: bool, sizes: tuple[int, int] = (4, 5), device: str = "cpu"
) -> list[Tensor]:
    """Outputs and last states of all layers, and all gradients; the reference's in float64."""
    options, (num_layers, input_size, hidden_size), is_masked, between = CASES[name]
    batch_size, num_steps = sizes
    torch.manual_seed(5)
    cells = [
        LSTMCell(hidden_size if level else input_size, hidden_size, **options)
        for level in range(num_layers)
    ]
    for cell in cells:
        for parameter in cell.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
    x = torch.randn(batch_size, num_steps, input_size)
    states = [torch.randn(2, batch_size, hidden_size) for _ in cells]
    masks = [(torch.rand(batch_size, hidden_size) < 0.5) * 2.0 for _ in cells if is_masked]
    shape = (batch_size, 1 if between == 2 else num_steps, hidden_size)
    kept = [(torch.rand(shape) < 0.5) * 2.0 for _ in cells[1:] if between]
    places = [(batch_size, num_steps, hidden_size), *[(batch_size, hidden_size)] * 2] * num_layers
    weights = [torch.randn(place) for place in places]
    dtype = torch.float32 if as_wave else torch.float64

    def there(tensor: Tensor) -> Tensor:
        return tensor.to(device, dtype)

    x = there(x).requires_grad_()
    leaves = [x]
    given = []
    for both in states:
        h, c = (there(part).requires_grad_() for part in both)
        given.append(State({"h": h, "c": c}))
        leaves += [h, c]
    for cell in cells:
        cell.to(device, dtype)
        leaves += list(cell.parameters())
    recurrent = [cell.recurrent_weight * 0.9 for cell in cells]
    masks, kept = [there(mask) for mask in masks], [there(mask) for mask in kept]
    if as_wave:
        found = wave.run_layers(cells, x, given, recurrent, masks, kept)
    else:
        found, entering = [], x
        for level, (cell, state, U) in enumerate(zip(cells, given, recurrent, strict=True)):
            mask = masks[level] if masks else None
            found.append(reference(cell, entering, state, None, U, None, mask))
            entering = found[-1][0]
            if kept and level < len(kept):
                entering = entering * kept[level]
    outputs = [t for out, state in found for t in (out, state.tensor("h"), state.tensor("c"))]
    total = sum((o.to(dtype) * there(w)).sum() for o, w in zip(outputs, weights, strict=True))
    assert isinstance(total, Tensor)
    return [*outputs, *torch.autograd.grad(total, leaves)]


def worst_error(name: str, **options: Any) -> float:
    """The largest relative error of any result."""
    pairs = zip(
        results(name, as_wave=True, **options),
        results(name, as_wave=False, **options),
        strict=True,
    )
    return max(float((a - b).detach().norm() / b.detach().norm()) for a, b in pairs)


IN_THE_INTERPRETER = """
import json, sys
sys.path.insert(0, sys.argv[1])
from test_wave import CASES, worst_error
print(json.dumps({name: worst_error(name) for name in CASES}))
"""


def test_it_computes_what_the_reference_does_in_triton_s_interpreter() -> None:
    pytest.importorskip("triton")
    command = [sys.executable, "-c", IN_THE_INTERPRETER, os.path.dirname(__file__)]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    for name, error in json.loads(done.stdout).items():
        assert error < 1e-5, name


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("sizes", [(4, 5), (67, 3)])
def test_it_computes_what_the_reference_does(name: str, sizes: tuple[int, int]) -> None:
    assert worst_error(name, sizes=sizes, device="cuda") < 1e-4
    with torch.autocast("cuda", torch.bfloat16):
        assert worst_error(name, sizes=sizes, device="cuda") < 0.03


@pytest.mark.gpu
@pytest.mark.parametrize("rounds", [0, 5])
def test_a_stack_makes_a_wave(rounds: int) -> None:
    """Real sizes in bfloat16: as near to the reference in float64 as step by step."""
    sizes = {"hidden_size": 256, "num_layers": 2}
    more = {"mogrify_rounds": rounds, "mogrify_rank": 24 if rounds else 0, "cap_input": True}
    stack = Stack(StackConfig(**sizes, **more, sum_layers=True), 256).cuda()  # type: ignore[arg-type]
    inputs_BTI = torch.randn(64, 20, 256, device="cuda")
    found = {}
    for kernel in ("auto", "stepwise", "reference"):
        for layer in stack.layers:
            layer.kernel = kernel
        is_exact = kernel == "reference"
        stack.to(torch.float64 if is_exact else torch.float32).zero_grad()
        with (
            torch.autocast("cuda", torch.bfloat16, enabled=not is_exact),
            recorded_plans() as plans,
        ):
            outputs, _ = stack(inputs_BTI.double() if is_exact else inputs_BTI)
        assert {p.kernel for each in plans.values() for p in each} == {
            kernel.replace("auto", "wave")
        }
        outputs.double().square().sum().backward()
        gradients = [p.grad.double() for p in stack.parameters() if p.grad is not None]
        found[kernel] = [outputs.double().detach(), *gradients]
    for ours, theirs, exact in zip(*found.values(), strict=True):
        errors = [float((one - exact).norm() / exact.norm()) for one in (ours, theirs)]
        assert errors[0] < 1.5 * errors[1] + 1e-3


COMPILE = """
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from elman.nn.kernels import persistent_tiling, wave

FLOATS = {"bias", "cells", "to_last", "to_h", "to_x", "to_cells", "to_vectors", "to_gated", "to_new"}
shape = wave._Shape(
    dtype=torch.bfloat16, device=0, num_layers=2, batch_size=64, input_size=912, hidden_size=912,
    rank=88, num_rounds=2, cap_input=True, is_masked=True, between=1,
)
launches = wave._Launches(shape)
for launch in (*launches.narrow, *launches.gate, launches.cell, launches.cell_slopes,
               launches.product_slopes, *launches.gate_slopes, *launches.narrow_slopes):
    names, signature, places = launch.function.arg_names, {}, {}
    for place, name in enumerate(names):
        signature[name] = "constexpr" if name in launch.constants else "*fp32" if name in FLOATS else "*bf16"
        if name in launch.constants:
            places[place,] = launch.constants[name]
        if name in ("slot", "T", "B"):
            signature[name] = "i32"
    source = ASTSource(launch.function, signature, places)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=launch.options)
    assert made.metadata.shared <= persistent_tiling.H200.shared_memory, (names, made.metadata)
"""


def test_launches_compile_and_fit_on_the_chip() -> None:
    """For an H200, without one: what the interpreter does not look at."""
    pytest.importorskip("triton")
    command = [sys.executable, "-c", COMPILE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
