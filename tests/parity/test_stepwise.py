"""LSTMs with extras step by step: results and gradients beside the reference's."""

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
from elman.nn.kernels import stepwise
from elman.nn.state import State

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "capped": {"cap_input": True},
    "mogrified": {"mogrify_rounds": 5, "mogrify_rank": 2, "cap_input": True},
    "one round": {"mogrify_rounds": 1},
}


def results(
    kernel: Any, options: dict[str, Any], dtype: torch.dtype, masked: bool, ragged: bool
) -> list[Tensor]:
    """Outputs, the last state, and all gradients."""
    torch.manual_seed(5)
    cell = LSTMCell(3, 6, **options).to(dtype)
    for parameter in cell.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    x = torch.randn(4, 7, 3, dtype=dtype, requires_grad=True)
    h, c = (torch.randn(4, 6, dtype=dtype, requires_grad=True) for _ in range(2))
    mask = (torch.rand(4, 6) < 0.5).to(dtype) * 2 if masked else None
    lengths = torch.tensor([7, 2, 5, 1]) if ragged else None
    U = cell.recurrent_weight * 0.9
    found, state = kernel(cell, x, State({"h": h, "c": c}), lengths, U, None, mask)
    last = [state.tensor("h"), state.tensor("c")]
    weights = [torch.randn(t.shape).to(dtype) for t in (found, *last)]
    total = sum((t * w).sum() for t, w in zip((found, *last), weights, strict=True))
    return [found, *last, *torch.autograd.grad(total, [x, h, c, *cell.parameters()])]


@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("ragged", [False, True], ids=["", "ragged"])
@pytest.mark.parametrize("name", CASES)
def test_it_computes_what_the_reference_does(name: str, masked: bool, ragged: bool) -> None:
    for ours, theirs in zip(
        results(stepwise.run, CASES[name], torch.double, masked, ragged),
        results(reference, CASES[name], torch.double, masked, ragged),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_one_step_of_large_matrices(batch_size: int) -> None:
    """Products with one vector are by loops; one step of several rows is more than a vector."""
    torch.manual_seed(5)
    cell = LSTMCell(256, 256, cap_input=True)
    x = torch.randn(batch_size, 1, 256, requires_grad=True)
    state = State({name: torch.randn(batch_size, 256) for name in ("h", "c")})
    results = []
    for kernel in (stepwise.run, reference):
        found, _ = kernel(cell, x, state, None, cell.recurrent_weight, None)
        slopes = torch.autograd.grad(found.square().sum(), [x, *cell.parameters()])
        results.append([found.detach(), *slopes])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_factors_of_gradients(name: str) -> None:
    """`unmultiplied` leaves what the gradients of matrices and biases are products and sums of."""
    torch.manual_seed(5)
    cell = LSTMCell(3, 6, **CASES[name])
    x, state = torch.randn(1, 7, 3), cell.initial_state(1)

    def slopes() -> tuple[Tensor | None, ...]:
        found, _ = stepwise.run(cell, x, state, None, cell.recurrent_weight, None)
        return torch.autograd.grad(found.square().sum(), list(cell.parameters()), allow_unused=True)

    expected = dict(zip(cell.parameters(), slopes(), strict=True))
    with stepwise.unmultiplied() as factors:
        left = dict(zip(cell.parameters(), slopes(), strict=True))
    biases = 0
    for matrix, (slopes_NG, vectors_NI, bias) in factors.items():
        torch.testing.assert_close(slopes_NG.t() @ vectors_NI, expected.pop(matrix))
        assert left[matrix] is None
        if bias is not None:
            torch.testing.assert_close(slopes_NG.sum(0), expected.pop(bias))
            biases += 1
    assert biases == 1
    assert not expected


def test_sixteen_bits_follow_autocast() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = results(stepwise.run, CASES["mogrified"], torch.float32, True, False)
    theirs = results(reference, CASES["mogrified"], torch.float32, True, False)
    assert ours[0].dtype == torch.bfloat16
    assert ours[2].dtype == torch.float32
    for one, other in zip(ours, theirs, strict=True):
        error = (one.detach().float() - other.detach()).norm() / other.detach().norm()
        assert float(error) < 0.05


FUSED = """
import json, sys, torch
sys.path.insert(0, sys.argv[1])
from test_stepwise import CASES, reference, results, stepwise
found = {}
for name in ("capped", "mogrified"):
    ours = results(stepwise.run, CASES[name], torch.float32, True, True)
    theirs = results(reference, CASES[name], torch.float32, True, True)
    found[name] = max(float((a - b).detach().abs().max()) for a, b in zip(ours, theirs))
print(json.dumps(found))
"""


def test_the_fused_form_in_triton_s_interpreter() -> None:
    pytest.importorskip("triton")
    command = [sys.executable, "-c", FUSED, os.path.dirname(__file__)]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    for name, error in json.loads(done.stdout).items():
        assert error < 1e-4, name
