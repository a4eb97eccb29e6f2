"""A translator on CUDA gives what it gives on the CPU, in float32 and in bf16."""

from __future__ import annotations

import pytest
import torch

from elman import testing
from elman.batches.conditional import conditional_batch
from elman.objectives.likelihood import likelihood
from elman.objectives.objective_config import LikelihoodConfig
from tiny_models import TINY

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", ["attention additive", "attention before", "input feeding"])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_losses_and_gradients(name: str, precision: torch.dtype) -> None:
    model = testing.build(TINY[name])
    source_BS = testing.some_tokens(3, 5, seed=3)
    mask_BS = torch.arange(5) < torch.tensor([[5], [2], [4]])
    batch = conditional_batch((source_BS, mask_BS), [[4, 5, 6], [7], [8, 9]], boundary_id=2)
    expected = likelihood(LikelihoodConfig(label_smoothing=0.1), model, batch, None)
    expected.loss.backward()  # type: ignore[no-untyped-call]
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    model.cuda()
    # cuDNN's layers use TensorFloat-32 unless told otherwise: ten bits are too few to compare.
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        with torch.autocast("cuda", dtype=precision, enabled=precision != torch.float32):
            found = likelihood(LikelihoodConfig(label_smoothing=0.1), model, batch.to("cuda"), None)
        found.loss.backward()  # type: ignore[no-untyped-call]
    close = (
        {"rtol": 1e-3, "atol": 1e-4} if precision == torch.float32 else {"rtol": 0.1, "atol": 0.02}
    )
    torch.testing.assert_close(found.loss.cpu(), expected.loss, **close)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad.cpu(), gradient, **close)
