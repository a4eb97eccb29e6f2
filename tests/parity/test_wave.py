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
from elman.nn.kernels.persistent_tiling import Chip
from elman.nn.stack import Stack, StackConfig
from elman.nn.state import State

MOGRIFIED = {"mogrify_rounds": 5, "mogrify_rank": 3, "cap_input": True}
CASES: dict[str, tuple[dict[str, Any], tuple[int, int, int], bool, int]] = {
    "plain": ({}, (1, 3, 6), False, 0),
    "capped": ({"cap_input": True}, (2, 6, 6), True, 1),
    "mogrified": (MOGRIFIED, (2, 6, 6), True, 1),
    "three layers": (MOGRIFIED, (3, 6, 6), False, 2),
    "two rounds": ({"mogrify_rounds": 2, "mogrify_rank": 2}, (1, 4, 7), False, 0),
    "four rounds": ({"mogrify_rounds": 4, "mogrify_rank": 2}, (1, 20, 18), True, 0),
    "one round": ({"mogrify_rounds": 1, "mogrify_rank": 2}, (2, 5, 5), True, 2),
}
"""Options of the cell; layers, inputs, units; state dropout; what is between layers: nothing, a
mask for each step, one for all."""


def results(
    name: str,
    *,
    as_wave: bool,
    sizes: tuple[int, int] = (4, 5),
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> list[Tensor]:
    """Outputs and last states of all layers, and all gradients, by the wave or the reference."""
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


def worst_error(name: str, *, as_wave: bool = True, **options: Any) -> float:
    """The largest relative error of any result, beside the reference's in float64; NaN if one of
    them is NaN."""
    pairs = zip(
        results(name, as_wave=as_wave, **options),
        results(name, as_wave=False, dtype=torch.float64, **options),
        strict=True,
    )
    errors = [((a - b).detach().norm() / b.detach().norm()).double().cpu() for a, b in pairs]
    return float(torch.stack(errors).max())  # Python's own max would drop NaN


def run(code: str, *arguments: str, interpreted: bool = False) -> None:
    """Run `code` in another process, in Triton's interpreter or for no GPU in particular."""
    pytest.importorskip("triton")
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "ELMAN_TESTS": os.path.dirname(__file__),
    }
    environment["TRITON_INTERPRET"] = "1" if interpreted else "0"
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr


PARITY = """
import os, sys
sys.path.insert(0, os.environ["ELMAN_TESTS"])
from test_wave import CASES, worst_error
for name in CASES:
    for sizes in ((4, 5), (1, 1), (3, 2)):  # batch, steps
        assert worst_error(name, sizes=sizes) < 1e-5, (name, sizes)
"""


def test_it_computes_what_the_reference_does_in_triton_s_interpreter() -> None:
    run(PARITY, interpreted=True)


STACK = """
import torch
from elman.nn.kernels import recorded_plans
from elman.nn.stack import Stack, StackConfig, executed_plans

MOGRIFIED = dict(mogrify_rounds=3, mogrify_rank=2, cap_input=True)
AT_ONCE = "wave: fused launches, 2 layers at once"
inputs_BTI = torch.randn(3, 4, 6)


def make(**options):
    torch.manual_seed(1)
    return Stack(StackConfig(hidden_size=6, num_layers=2, **options), 6)


def set_kernel(stack, kernel):
    for layer in stack.layers:
        layer.kernel = kernel


def computed(stack, kernel):
    "Outputs of all layers and states, the gradients of their sum; and what was executed."
    set_kernel(stack, kernel)
    stack.zero_grad()
    state = stack.initial_state(3).map(lambda tensor: tensor + 0.3)
    with recorded_plans() as plans:
        outputs, after = stack.all_layers(inputs_BTI, state)
        last, _ = stack(inputs_BTI, state)
    torch.testing.assert_close(last, outputs[-1], rtol=0, atol=0)
    results = [*outputs, *after.flatten().values()]
    sum((number + 1) * result.sum() for number, result in enumerate(results)).backward()
    described = {plan.describe() for found in plans.values() for plan in found}
    return results + [p.grad.clone() for p in stack.parameters()], described


def compare(stack, expected=AT_ONCE):
    found, plans = computed(stack, "wave")
    assert plans == {expected}, plans
    exact, plans = computed(stack, "reference")
    assert plans == {"reference: loop over the cell"}
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-5)


# Everything that multiplies, held fixed: the kernels draw their masks in different orders.
for locked in (False, True):
    for sum_layers in (False, True):
        stack = make(
            dropout_hidden=0.5, dropout_state=0.5, locked=locked, sum_layers=sum_layers, **MOGRIFIED
        )
        kept = stack.dropout.mask(inputs_BTI)
        assert kept.shape == (3, 1 if locked else 4, 6)
        stack.dropout.mask = lambda like: kept
        stack.dropout.forward = lambda outputs: outputs * kept
        for layer in stack.layers:
            mask_BP = layer.state_mask(layer.initial_state(3))
            layer.state_mask = lambda state, mask_BP=mask_BP: mask_BP
        compare(stack)
        set_kernel(stack, "wave")
        assert executed_plans(stack, 3, 4) == {"layers.0": AT_ONCE, "layers.1": AT_ONCE}
compare(make(dropout_hidden=0.5, dropout_state=0.5, **MOGRIFIED).eval())

# One layer that is not in training: its state is not dropped out, and the layers run one by one.
stack = make(dropout_state=0.5, **MOGRIFIED)
stack.layers[0].eval()
mask_BP = torch.tensor([0.0, 2.0]).repeat(3, 3)
state_mask = stack.layers[1].state_mask
stack.layers[1].state_mask = lambda state: None if state_mask(state) is None else mask_BP
compare(stack, "wave: fused launches")

# A layer with a kernel of its own.
stack = make(**MOGRIFIED)
set_kernel(stack, "wave")
stack.layers[1].kernel = "reference"
with recorded_plans() as plans:
    stack(inputs_BTI)
assert [plan.kernel for found in plans.values() for plan in found] == ["wave", "reference"]

# Numbers of outputs under autocast, lower layers' too.
stack = make(dropout_hidden=0.5, **MOGRIFIED)
set_kernel(stack, "wave")
with torch.autocast("cpu", torch.float16):
    outputs, state = stack.all_layers(inputs_BTI)
    last, _ = stack(inputs_BTI)
assert {output.dtype for output in (*outputs, last)} == {torch.float16}
assert {tensor.dtype for tensor in state.flatten().values()} == {torch.float32}
with torch.autocast("cpu", torch.float16):
    found, state = stack.eval()(inputs_BTI)
set_kernel(stack, "reference")
exact, exact_state = stack(inputs_BTI)
torch.testing.assert_close(found.float(), exact, rtol=0.01, atol=0.003)
torch.testing.assert_close(state.flatten(), exact_state.flatten(), rtol=0.01, atol=0.003)
set_kernel(stack.train(), "wave")

# No steps leave the state as it is.
before = stack.initial_state(3).map(torch.ones_like)
output, after = stack(inputs_BTI[:, :0], before)
assert output.shape == (3, 0, 6)
assert all(tensor.eq(1).all() for tensor in after.flatten().values())

# Autograd frees what the forward pass keeps once the backward pass is over.
output, _ = stack(inputs_BTI)
output.sum().backward()
try:
    output.sum().backward()
except RuntimeError as error:
    assert "second time" in str(error)
else:
    raise AssertionError("it still has all the numbers of the forward pass")
"""


def test_a_stack_makes_one_wave_in_triton_s_interpreter() -> None:
    """With all kinds of dropout; and what keeps layers from it."""
    run(STACK, interpreted=True)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("sizes", [(4, 5), (67, 3)])
def test_it_computes_what_the_reference_does(name: str, sizes: tuple[int, int]) -> None:
    options: dict[str, Any] = {"sizes": sizes, "device": "cuda"}
    assert worst_error(name, **options) < 1e-4
    # Rounds of a mogrifier multiply errors: in bfloat16 the reference's own are 0.006 to 0.11 here.
    with torch.autocast("cuda", torch.bfloat16):
        error = worst_error(name, **options)
        assert error < 2 * worst_error(name, as_wave=False, **options) + 0.02


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
        described = {p.describe() for each in plans.values() for p in each}
        if kernel == "auto":
            assert described == {"wave: fused launches, 2 layers at once"}
        else:
            assert {text.partition(":")[0] for text in described} == {kernel}
        outputs.double().square().sum().backward()
        gradients = [p.grad.double() for p in stack.parameters() if p.grad is not None]
        found[kernel] = [outputs.double().detach(), *gradients]
    for ours, theirs, exact in zip(*found.values(), strict=True):
        errors = [float((one - exact).norm() / exact.norm()) for one in (ours, theirs)]
        assert errors[0] < 1.5 * errors[1] + 1e-3


COMPILE = """
import json, re, subprocess, sys, tempfile
import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from elman.nn.kernels import persistent_tiling, wave

FLOATS = {"bias", "cells", "to_last", "to_h", "to_x", "to_cells", "to_vectors", "to_gated"}
number, hidden_size, multiprocessors, shared_memory, *capability = json.loads(sys.argv[1])
chip = persistent_tiling.Chip(multiprocessors, shared_memory, tuple(capability))
dtype = getattr(torch, number)
own = {"bfloat16": "*bf16", "float32": "*fp32"}[number]
assert wave.fits(hidden_size, hidden_size, 88, dtype.itemsize, chip)
shape = wave._Shape(
    dtype=dtype, device=0, num_layers=2, batch_size=64, input_size=hidden_size,
    hidden_size=hidden_size, rank=88, num_rounds=2, cap_input=True, is_masked=True, between=1,
)
launches = wave._Launches(shape, chip)
assert launches.overlaps == (capability >= [9, 0])
for launch in (*launches.narrow, *launches.gate, launches.cell, launches.cell_slopes,
               launches.product_slopes, *launches.score_slopes, *launches.narrow_slopes):
    names, signature, places, attributes = launch.function.arg_names, {}, {}, {}
    for place, name in enumerate(names):
        if name in launch.constants:
            signature[name], places[place,] = "constexpr", launch.constants[name]
        elif name in ("slot", "T", "B"):
            signature[name] = "i32"
        else:
            signature[name] = "*fp32" if name in FLOATS else own
            # As torch's addresses are: else nothing is read ahead, which takes room.
            attributes[place,] = [["tt.divisibility", 16]]
    source = ASTSource(launch.function, signature, places, attributes)
    target = GPUTarget("cuda", 10 * capability[0] + capability[1], 32)
    made = triton.compile(source, target=target, options=launch.options)
    assert made.metadata.shared <= shared_memory, (launch.function.__name__, made.metadata.shared)
    with tempfile.NamedTemporaryFile() as file:
        file.write(made.asm["cubin"])
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    # What has no room in the registers of a thread.
    (spilt,) = map(int, re.findall(r"STACK:(\\d+)", told))
    assert spilt <= 1024, (launch.function.__name__, spilt)
"""
H200 = (132, 227 * 1024, 9, 0)
CHIPS = {
    "H200, 16 bits": ("bfloat16", 912, *H200),
    "H200, 32 bits": ("float32", 912, *H200),
    "little room, 16 bits": ("bfloat16", 912, 84, 99 * 1024, 8, 6),
    "little room, 32 bits": ("float32", 912, 84, 99 * 1024, 8, 6),
    "A100, large": ("bfloat16", 4096, 108, 163 * 1024, 8, 0),
}
"""Numbers, units; multiprocessors, shared memory and capability of a GPU."""
QUICK = ("H200, 16 bits", "little room, 32 bits")


@pytest.mark.parametrize(
    "name",
    [
        *QUICK,
        *(pytest.param(name, marks=pytest.mark.slow) for name in CHIPS if name not in QUICK),
    ],
)
def test_launches_compile_and_fit_on_the_chip(name: str) -> None:
    """Without one: what the interpreter does not look at."""
    run(COMPILE, json.dumps(CHIPS[name]))


def test_large_mogrifiers_do_not_fit_on_small_chips() -> None:
    small = Chip(84, 99 * 1024, (8, 6))
    assert wave.fits(2048, 2048, 88, 2, small)
    assert not wave.fits(4096, 4096, 88, 2, small)
    assert not wave.fits(912, 4096, 88, 2, small)
    assert wave.fits(4096, 4096, 88, 4, small)  # in 32 bits, `narrow` holds nothing
    assert wave.fits(8192, 8192, 0, 2, small)  # no mogrifiers
