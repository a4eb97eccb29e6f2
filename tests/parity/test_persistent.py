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
from typing import Any

import pytest

from elman.nn.kernels import persistent_plan

pytest.importorskip("triton", reason="Triton is missing")

COMPARE = """
import json, sys
import torch
from elman.nn.kernels import KERNELS, persistent, reference
from elman.nn.stack import Stack, StackConfig
from elman.nn.state import State

# On this device too.
persistent.serves = lambda cell, device: persistent._has(cell)
persistent.runs_on = lambda device: True

def results(stack, kernel, inputs_BTI, lengths_B):
    for layer in stack.modules():
        if hasattr(layer, "kernel"):
            layer.kernel = kernel
    generator = torch.Generator().manual_seed(1)
    random = lambda like: torch.randn(like.shape, generator=generator).to(like.dtype)
    inputs_BTI = inputs_BTI.clone().requires_grad_()
    state = stack.initial_state(len(inputs_BTI)).map(lambda t: random(t).requires_grad_())
    outputs, after = stack(inputs_BTI, state, lengths_B)
    found = {"outputs": outputs, **after.flatten("after ")}
    total = sum((tensor * random(tensor)).sum() for tensor in found.values())
    wanted = {"inputs": inputs_BTI, **state.flatten("before "), **dict(stack.named_parameters())}
    gradients = torch.autograd.grad(total, list(wanted.values()))
    found |= dict(zip(wanted, gradients, strict=True))
    return {name: tensor.detach().double() for name, tensor in found.items()}

errors = {}
for name, options, (batch, hidden, steps), ragged in json.loads(sys.argv[1]):
    torch.manual_seed(0)
    stack = Stack(StackConfig(hidden_size=hidden, **options), 4)
    for parameter in stack.parameters():
        torch.nn.init.uniform_(parameter, -0.5, 0.5)
    inputs_BTI = torch.randn(batch, steps, 4)
    lengths_B = torch.arange(batch) % steps + 1 if ragged else None
    kernel = "scan" if "cell" in options and options["cell"] in ("mingru", "sru") else "triton"
    ours = results(stack, kernel, inputs_BTI, lengths_B)
    exact = results(stack.double(), "reference", inputs_BTI.double(), lengths_B)
    errors[name] = max(
        float((ours[key] - tensor).norm() / tensor.norm().clamp(min=1e-3))
        for key, tensor in exact.items()
    )

# A gradient of one direction's initial state alone.
stack = Stack(StackConfig(hidden_size=5, bidirectional=True), 4)
found = []
for kernel in ("triton", "reference"):
    for layer in stack.modules():
        if hasattr(layer, "kernel"):
            layer.kernel = kernel
    state = stack.initial_state(2)
    wanted = state.part("0").part("backward").tensor("h").requires_grad_()
    outputs, _ = stack(torch.ones(2, 3, 4), state)
    found.append(torch.autograd.grad(outputs.square().sum(), wanted)[0])
errors["one initial state"] = float((found[0] - found[1]).norm() / found[1].norm())

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
    ("lstm in both directions, ragged", {**LSTM, "bidirectional": True}, (3, 5, 4), True),
    ("lstm projected, ragged", {**LSTM, "projection_size": 3}, (3, 18, 3), True),
    ("lstm of two layers", {**LSTM, "num_layers": 2}, (2, 6, 3), False),
    ("gru of odd size", GRU, (3, 19, 4), False),
    ("gru in both directions, ragged", {**GRU, "bidirectional": True}, (3, 5, 4), True),
    ("lecture's gru of odd size", LECTURE, (3, 19, 3), False),
    ("lecture's gru both ways, ragged", {**LECTURE, "bidirectional": True}, (18, 5, 4), True),
    ("tanh, ragged", {"cell": "rnn"}, (3, 35, 3), True),
    ("relu", {"cell": "rnn", "nonlinearity": "relu"}, (3, 5, 3), False),
    ("mingru in both directions, ragged", MINGRU, (3, 25, 37), True),
    ("sru over several tiles", {"cell": "sru"}, (2, 5, 70), False),
    ("sigmoid", {"cell": "rnn", "nonlinearity": "sigmoid"}, (2, 5, 3), False),
]


NAMES = [*(case[0] for case in CASES), "one initial state", "log probabilities"]


@pytest.fixture(scope="module")
def errors() -> dict[str, float]:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", COMPARE, json.dumps(CASES)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_interpreted_equals_reference(name: str, errors: dict[str, float]) -> None:
    assert errors[name] < 5e-6


@pytest.mark.parametrize("size", [1, 3, 16, 17, 257, 400, 650, 1150, 1500, 2048])
def test_padded_sizes_are_two_powers(size: int) -> None:
    padded = persistent_plan.padded_size(size)
    assert size <= padded <= max(size + 15, size * 1.5)
    assert padded % 16 == 0
    assert padded.bit_count() <= 2


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_no_more_programs_than_multiprocessors(itemsize: int, directions: int) -> None:
    """All programs must run at once: this is half of the promise, cooperative launches the rest."""
    num_plans = 0
    for hidden_size in map(persistent_plan.padded_size, range(1, 2049, 37)):
        for batch_size in (1, 16, 17, 20, 64, 80, 300):
            for chip in (
                persistent_plan.H200,
                persistent_plan.Chip(108, 163 * 1024),
                persistent_plan.Chip(84, 99 * 1024),
                persistent_plan.Chip(20, 99 * 1024),
            ):
                plan = persistent_plan.plan(hidden_size, batch_size, itemsize, directions, chip)
                if plan is not None:
                    num_plans += 1
                    ways = persistent_plan.grids(plan, hidden_size, 4, directions)
                    assert all(a * b * c <= chip.multiprocessors for a, b, c in ways)
                    assert plan.groups * plan.rows >= batch_size
                    assert hidden_size * 4 * plan.units * itemsize < chip.shared_memory
    assert num_plans > 50
