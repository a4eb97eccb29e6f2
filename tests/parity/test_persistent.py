"""The CUDA loops in Triton's interpreter, which needs no GPU: one program after the other, step by
step, against the cells' equations. What only a GPU can show is in `test_cuda_persistent.py`.

The interpreter is chosen when Triton is first imported, so that the comparisons run in a process
of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from elman.nn.kernels import persistent_launch, persistent_tiling

pytest.importorskip("triton", reason="Triton is missing")

COMPARE = """
import json, sys
import torch
from elman.nn.stack import Stack, StackConfig
from stack_results import relative_errors, results, set_kernel

errors = {}
for name, options, (batch, hidden, steps), ragged in json.loads(sys.argv[1]):
    torch.manual_seed(0)
    both = options.pop("bidirectional", False)
    stack = Stack(StackConfig(hidden_size=hidden, **options), 4, bidirectional=both)
    for parameter in stack.parameters():
        torch.nn.init.uniform_(parameter, -0.5, 0.5)
    inputs_BTI = torch.randn(batch, steps, 4)
    lengths_B = torch.arange(batch) % steps + 1 if ragged else None
    kernel = "scan" if options.get("cell") in ("mingru", "sru", "qrnn") else "triton"
    ours = results(stack, kernel, inputs_BTI, lengths_B)
    exact = results(stack.double(), "reference", inputs_BTI.double(), lengths_B)
    errors[name] = max(relative_errors(ours, exact).values())

# A gradient of one direction's initial state alone.
stack = Stack(StackConfig(hidden_size=5), 4, bidirectional=True)
found = []
for kernel in ("triton", "reference"):
    set_kernel(stack, kernel)
    state = stack.initial_state(2)
    wanted = state.part("0").part("backward").tensor("h").requires_grad_()
    outputs, _ = stack(torch.ones(2, 3, 4), state)
    found.append(torch.autograd.grad(outputs.square().sum(), wanted)[0])
errors["one initial state"] = float((found[0] - found[1]).norm() / found[1].norm())

# Lengths that do not lie side by side, and no rows at all.
stack = Stack(StackConfig(hidden_size=5, kernel="triton"), 4)
lengths_B = torch.tensor([3, 1, 2, 1, 1, 1], dtype=torch.int32)[::2]
inputs_BTI = torch.randn(3, 3, 4)
found = [
    torch.autograd.grad(stack(inputs_BTI, None, l)[0].square().sum(), stack.layers[0].cell.bias)[0]
    for l in (lengths_B, lengths_B.long())
]
errors["lengths apart"] = float((found[0] - found[1]).norm() / found[1].norm())
stack(inputs_BTI[:0])[0].sum().backward()

# Log probabilities of targets, twice through the same graph, beside torch's cross entropy.
from elman.nn.heads.cross_entropy import target_logprobs

hidden_NH, weight_VH, bias_V = torch.randn(5, 7), torch.randn(3001, 7), torch.randn(3001)
leaves = [tensor.requires_grad_() for tensor in (hidden_NH, weight_VH, bias_V)]
targets_N, weights_N = torch.randint(3001, (5,)), torch.rand(5)
ours = target_logprobs(*leaves, targets_N)
exact = -torch.nn.functional.cross_entropy(
    hidden_NH @ weight_VH.t() + bias_V, targets_N, reduction="none"
)
pairs = [(ours, exact)]
for _ in range(2):
    found = [torch.autograd.grad(o @ weights_N, leaves, retain_graph=True) for o in (ours, exact)]
    pairs += zip(*found)
# In place, like any result of torch; NaN for targets that are not words.
ours = target_logprobs(*leaves, targets_N)
ours *= 2
pairs.append((ours, 2 * exact))
beyond = target_logprobs(*leaves, torch.tensor([-100, -1, 3001, 5000, 2**40]))
assert bool(beyond.isnan().all())
errors["log probabilities"] = max(float((a - b).norm() / b.norm()) for a, b in pairs)
print(json.dumps(errors))
"""

LSTM: dict[str, Any] = {}
GRU = {"cell": "gru"}
LECTURE = {"cell": "gru", "gru_form": "reset_before"}
MINGRU = {"cell": "mingru", "bidirectional": True}
CASES: list[tuple[str, dict[str, Any], tuple[int, int, int], bool]] = [
    ("lstm of one unit", LSTM, (1, 1, 1), False),
    ("lstm of odd size, ragged", LSTM, (3, 19, 4), True),
    ("lstm, several groups of rows", LSTM, (33, 5, 2), False),
    ("lstm in both directions, ragged", {**LSTM, "bidirectional": True}, (3, 5, 3), True),
    ("lstm projected, ragged", {**LSTM, "projection_size": 3}, (3, 18, 3), True),
    ("lstm of two layers", {**LSTM, "num_layers": 2}, (2, 6, 3), False),
    ("gru of odd size", GRU, (3, 19, 4), False),
    ("gru in both directions, ragged", {**GRU, "bidirectional": True}, (3, 5, 3), True),
    ("lecture's gru of odd size", LECTURE, (3, 19, 3), False),
    ("lecture's gru both ways, ragged", {**LECTURE, "bidirectional": True}, (18, 5, 2), True),
    ("tanh, ragged", {"cell": "rnn"}, (3, 35, 3), True),
    ("relu", {"cell": "rnn", "nonlinearity": "relu"}, (3, 5, 3), False),
    ("mingru in both directions, ragged", MINGRU, (3, 5, 33), True),
    ("qrnn in both directions, ragged", {**MINGRU, "cell": "qrnn"}, (3, 5, 4), True),
    ("sru over several tiles of units and steps", {"cell": "sru"}, (13, 5, 33), False),
    ("sigmoid", {"cell": "rnn", "nonlinearity": "sigmoid"}, (2, 5, 3), False),
]


NAMES = [*(case[0] for case in CASES), "one initial state", "lengths apart", "log probabilities"]


def run(script: str, cases: Any, **environment: str) -> str:
    """What a script prints in a process of its own, which can import the tests' helpers."""
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(cases)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def errors() -> dict[str, float]:
    found: dict[str, float] = json.loads(run(COMPARE, CASES, TRITON_INTERPRET="1"))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_interpreted_equals_reference(name: str, errors: dict[str, float]) -> None:
    assert errors[name] < 5e-6


CONTRACT = """
import json, sys
from dataclasses import replace
from elman import testing
from kernels_here import KernelCase
from tiny_models import TINY

for name, checks in json.loads(sys.argv[1]).items():
    with KernelCase("triton").executed():
        model = testing.build(replace(TINY[name], kernel="triton"))
        for check in checks:
            getattr(testing, check)(model)
"""


def test_the_contract_in_the_interpreter() -> None:
    """A part of `tests/contract/test_kernels.py`, which runs the whole on a GPU."""
    checks = ["check_stepwise_equals_whole", "check_shapes", "check_state_rows"]
    cases = {"lstm": checks, "gru lecture": checks[:1]}
    run(CONTRACT, cases, TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")


@pytest.mark.parametrize("size", [1, 3, 16, 17, 257, 400, 650, 1150, 1500, 2048])
def test_padded_sizes_are_two_powers(size: int) -> None:
    padded = persistent_tiling.padded_size(size)
    assert size <= padded <= max(size + 15, size * 1.5)
    assert padded % 16 == 0
    assert padded.bit_count() <= 2


COMPILE = """
import json, sys
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from elman.nn.kernels import persistent_launch, persistent_tiling

NUMBERS = {"state": "*fp32", "to_h": "*fp32", "to_c": "*fp32", "parts": "*fp32", "counters": "*i32"}
NUMBERS |= {"lengths": "*i32"} | dict.fromkeys(["first", "last", "steps", "B"], "i32")
ABSENT = {0: ["inner_bias", "inner"], 1: ["to_c"]}
for kind, num_gates, number, size, batch_size in json.loads(sys.argv[1]):
    shape = persistent_launch.Shape(
        kind=kind,
        num_gates=num_gates,
        dtype=getattr(torch, number),
        size=persistent_tiling.padded_size(size),
        batch_size=batch_size,
        directions=1,
        is_ragged=False,
        device=0,
    )
    tiling = persistent_tiling.tile(
        shape.size, batch_size, shape.dtype.itemsize, 1, persistent_tiling.H200
    )
    launch = persistent_launch.launch_for(shape, tiling)
    own = {"bfloat16": "*bf16", "float32": "*fp32"}[number]
    for kernel in (*launch._forward, *launch._backward):
        constants = dict.fromkeys(["lengths", *ABSENT[kind]]) | kernel.constants
        if kind == 1 and "to_gates" in kernel.function.arg_names:
            constants["state"] = None
        names = kernel.function.arg_names
        signature = {
            name: "constexpr" if name in constants else NUMBERS.get(name, own) for name in names
        }
        places = {(names.index(name),): value for name, value in constants.items() if name in names}
        source = ASTSource(kernel.function, signature, places)
        options = {"num_warps": kernel.options["num_warps"], "num_stages": 1}
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        assert made.metadata.shared <= persistent_tiling.H200.shared_memory, (size, made.metadata)
"""

COMPILED = [
    (0, 4, "bfloat16", 1040, 20),
    (1, 3, "bfloat16", 1536, 20),
    (0, 4, "float32", 528, 16),
]
"""Cell, gates, numbers, units, batch: where rooms are full or tiles small."""
LARGEST = [(0, 4, "bfloat16", 1536, 64)]
"""Compiling it takes as long as all the others."""


@pytest.mark.parametrize("cases", [COMPILED, pytest.param(LARGEST, marks=pytest.mark.slow)])
def test_loops_compile_and_fit_on_the_chip(cases: Any) -> None:
    """For an H200, without one: what the interpreter does not look at."""
    run(COMPILE, cases)


def test_torch_gets_large_batches_of_float32() -> None:
    """There the persistent kernel was five times slower."""
    tile, chip = persistent_tiling.tile, persistent_tiling.H200
    assert tile(512, 64, 4, 1, chip) is None
    assert tile(512, 32, 4, 1, chip) is not None
    assert tile(512, 64, 2, 1, chip) is not None


@pytest.mark.parametrize("itemsize", [2, 4])
def test_tiles_are_large_enough_for_tensor_cores(itemsize: int) -> None:
    for hidden_size in map(persistent_tiling.padded_size, range(1, 2049)):
        for batch_size in (1, 17, 64, 80):
            found = persistent_tiling.tile(
                hidden_size, batch_size, itemsize, 1, persistent_tiling.H200
            )
            for way in (found.forward, found.backward) if found else ():
                tiles = persistent_launch._tiles(way, hidden_size // way.pieces).values()
                assert all(n == 0 or (n >= 16 and n.bit_count() == 1) for n in tiles), hidden_size


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_no_more_programs_than_multiprocessors(itemsize: int, directions: int) -> None:
    """All programs must run at once: this is half of the promise, cooperative launches the rest."""
    num_tilings = 0
    for hidden_size in map(persistent_tiling.padded_size, range(1, 2049, 37)):
        for batch_size in (1, 16, 17, 20, 64, 80, 300):
            for chip in (
                persistent_tiling.H200,
                persistent_tiling.Chip(108, 163 * 1024),
                persistent_tiling.Chip(84, 99 * 1024),
                persistent_tiling.Chip(20, 99 * 1024),
            ):
                tiling = persistent_tiling.tile(hidden_size, batch_size, itemsize, directions, chip)
                if tiling is not None:
                    num_tilings += 1
                    ways = persistent_tiling.grids(tiling, hidden_size, 4, directions)
                    assert all(a * b * c <= chip.multiprocessors for a, b, c in ways)
                    assert tiling.groups * tiling.rows >= batch_size
                    assert hidden_size * 4 * tiling.units * itemsize < chip.shared_memory
    assert num_tilings > 50
