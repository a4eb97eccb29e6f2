"""The loops of dynamic evaluation, beside torch."""

from __future__ import annotations

import pytest
import torch

from elman.nn.kernels import adaptation, mkl

pytestmark = pytest.mark.skipif(
    not mkl.available(), reason="numba is missing, or torch has no MKL here"
)
STEP = adaptation.Step(rate=0.01, epsilon=0.1, pull=0.7)


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("num_left", [0, 1, 6])
def test_a_softmax_is_updated_and_read_at_once(num_left: int, num_threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        torch.manual_seed(1)
        now, trained, rms = torch.randn(1031, 70), torch.randn(1031, 70), torch.rand(1031, 70)
        bias, targets = torch.randn(1031), torch.tensor([3, 1030, 3, 7, 8])
        left = adaptation.Factors(torch.randn(num_left, 1031), torch.randn(num_left, 70))
        moved = torch.zeros(1031, dtype=torch.long)
        moved[[5, 1030]] = 1
        vectors = torch.randn(5, 70, requires_grad=True)
        pull = (STEP.pull * rms).clamp(max=1)
        gradient = left.slopes_CG.t() @ left.vectors_CI
        after = now + pull * (trained - now) - STEP.rate * gradient / (rms + STEP.epsilon)
        expected = torch.where(moved[:, None] == 1, now, after)
        logits = vectors @ expected.t() + bias
        logits.retain_grad()
        logprobs = logits.log_softmax(1).gather(1, targets[:, None])[:, 0]
        (-logprobs.mean()).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            found = adaptation.read_softmax(
                *(now, trained, rms, bias, left, moved, vectors.detach(), targets, STEP)
            )
        assert logits.grad is not None
        assert vectors.grad is not None
        theirs = (logprobs.detach(), logits.grad, vectors.grad)
        for one, other in zip((*found, now), (*theirs, expected), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    finally:
        torch.set_num_threads(before)
