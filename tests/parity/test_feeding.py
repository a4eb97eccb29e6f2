"""A decoder with input feeding, all steps in one kernel: as step by step, results and gradients."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from elman import testing
from elman.models.decoder import DecoderConfig
from elman.nn.kernels import blocks, cpu_feeding, mkl, recorded_plans
from elman.nn.state import State
from elman.tasks.translation.model import SequenceToSequenceConfig
from small_tasks import uncompiled

SETTINGS: dict[str, dict[str, Any]] = {
    "bilinear": {"attention": "bilinear"},
    "dot": {"attention": "dot"},
    "tied, with the summary": {
        "attention": "bilinear",
        "context": "both",
        "tied": True,
        "embedding_size": 6,
    },
}


def results(name: str, kernel: str, dtype: torch.dtype) -> list[Tensor]:
    """Vectors, the last state, attention weights and all gradients."""
    settings = {"embedding_size": 5, **SETTINGS[name]}
    decoder = DecoderConfig(hidden_size=8, input_feeding=True, kernel=kernel, **settings)
    model: Any = uncompiled(testing.build(SequenceToSequenceConfig(decoder=decoder))).to(dtype)
    source_BS = testing.some_tokens(4, 7, seed=3)
    mask_BS = torch.arange(7) < torch.tensor([[7], [1], [4], [0]])
    if name != "bilinear":
        mask_BS = torch.ones_like(mask_BS)
    first_BT, second_BT = testing.some_tokens(4, 5, seed=5).split([2, 3], dim=1)
    memory_BSM = torch.randn(4, 7, 8, dtype=dtype, generator=torch.Generator().manual_seed(1))
    memory_BSM.requires_grad_()
    state = model.condition(source_BS, mask_BS | (torch.arange(7) == 0))
    state = State({**state, "mask": mask_BS, "memory": memory_BSM})
    # In two pieces: the gradient reaches the first by the state alone, too.
    one, state = model.hidden(first_BT, state)
    two, after = model.hidden(second_BT, state)
    shown = [one.raw_BTH, two.raw_BTH, *after.part("layers").flatten().values()]
    shown.append(after.tensor("fed"))
    generator = torch.Generator().manual_seed(2)
    total = sum((t * torch.randn(t.shape, generator=generator)).sum() for t in shown)
    assert isinstance(total, Tensor)
    wanted = [p for n, p in model.named_parameters() if "head" not in n]
    gradients = torch.autograd.grad(total, [memory_BSM, *wanted], allow_unused=True)
    weights_BTS, _ = model.decoder.weights(second_BT, state)
    found = [*shown, after.tensor("attended"), weights_BTS]
    return [*found, *(g for g in gradients if g is not None)]


@pytest.mark.parametrize("name", SETTINGS)
def test_it_computes_what_single_steps_do(name: str) -> None:
    ours = results(name, "auto", torch.double)
    theirs = results(name, "reference", torch.double)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("product", ["MKL", "oneDNN"])
def test_the_compiled_loop_computes_the_same(
    name: str, product: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if problem := mkl.onednn_problem():
        pytest.skip(problem)
    monkeypatch.setattr(cpu_feeding, "fastest", lambda *sizes: product)
    with recorded_plans() as plans:
        ours = results(name, "auto", torch.float32)
    executed = {plan.variant for found in plans.values() for plan in found}
    assert any("compiled loop with attention" in variant for variant in executed)
    theirs = results(name, "reference", torch.float32)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_sixteen_bits_follow_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16), recorded_plans() as plans:
        ours = results("bilinear", "auto", torch.float32)
    if not blocks.problem():
        executed = {plan.variant for found in plans.values() for plan in found}
        assert any("feeding, one thread, products in bfloat16" in found for found in executed)
    theirs = results("bilinear", "reference", torch.float32)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.float(), other, rtol=0.1, atol=0.06)


def test_which_decoders_it_serves_and_that_it_says_so() -> None:
    plain = DecoderConfig(hidden_size=8, embedding_size=5, input_feeding=True, attention="dot")
    for config, served in [
        (plain, True),
        (replace(plain, kernel="torch"), False),
        (replace(plain, attention="additive"), False),
        (replace(plain, num_layers=2), False),
        (replace(plain, cell="gru"), False),
        (replace(plain, peephole=True), False),
        (replace(plain, projection_size=8), False),
        (replace(plain, join="residual"), False),
        (replace(plain, dropout_state=0.1), False),
    ]:
        model: Any = uncompiled(testing.build(SequenceToSequenceConfig(decoder=config)))
        with recorded_plans() as plans:
            model.hidden(testing.some_tokens(2, 3), model.condition(testing.some_tokens(2, 4)))
        layer = model.decoder.stack.layers[0]
        assert any("input feeding" in plan.variant for plan in plans[layer]) is served


INTERPRETED = """
import torch
from test_feeding import results
pairs = zip(*(results("bilinear", kernel, torch.float32) for kernel in ("auto", "reference")))
print(max(float((a - b).abs().max() / (1 + b.abs().max())) for a, b in pairs))
"""


def test_triton_kernels_compute_the_same() -> None:
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1e-5
