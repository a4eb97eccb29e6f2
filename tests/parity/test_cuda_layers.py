"""On CUDA: torch's kernels against the cells' equations, and every tiny model under autocast."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from elman import testing
from elman.nn.stack import Stack, StackConfig
from stack_results import results
from tiny_models import TINY

pytestmark = pytest.mark.gpu

CELLS: dict[str, dict[str, Any]] = {
    "lstm": {},
    "projected": {"projection_size": 6},
    "gru": {"cell": "gru"},
    "tanh": {"cell": "rnn"},
    "relu": {"cell": "rnn", "nonlinearity": "relu"},
}


@pytest.mark.parametrize("lengths", [None, [9, 2, 5, 9, 1]], ids=["whole", "ragged"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one way", "both ways"])
@pytest.mark.parametrize("name", CELLS)
def test_torch_equals_reference(name: str, bidirectional: bool, lengths: list[int] | None) -> None:
    torch.manual_seed(0)
    config = StackConfig(num_layers=2, hidden_size=11, **CELLS[name])
    stack = Stack(config, 7, bidirectional=bidirectional).to("cuda", torch.double)
    inputs_BTI = torch.randn(5, 9, 7, device="cuda", dtype=torch.double)
    lengths_B = None if lengths is None else torch.tensor(lengths, device="cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # cuDNN warns about scattered weights
        both = [results(stack, kernel, inputs_BTI, lengths_B) for kernel in ("torch", "reference")]
    torch.testing.assert_close(*both, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", TINY)
def test_autocast(name: str, dtype: torch.dtype) -> None:
    """Close to exact, losses and gradients in float32, no warning, states kept in float32."""
    model = testing.build(TINY[name])
    tokens_BT = testing.some_tokens(3, 7)
    exact = testing.whole(model, tokens_BT).detach()
    model.cuda()
    tokens_BT = tokens_BT.cuda()
    with warnings.catch_warnings(), torch.autocast("cuda", dtype=dtype):
        warnings.simplefilter("error")
        state = model.initial_state(3)
        logprobs_BT, after = model.logprobs(tokens_BT[:, :-1], tokens_BT[:, 1:], state)
        logprobs_BV, _ = model.step(tokens_BT[:, 0], after)
        model.train()
        hidden, _ = model.hidden(tokens_BT[:, :-1], after)
        losses_BT = model.head.losses(hidden.dropped_BTH, tokens_BT[:, 1:], hidden.contexts_BTO)
        losses_BT.mean().backward()
    assert logprobs_BT.dtype == logprobs_BV.dtype == losses_BT.dtype == torch.float32
    torch.testing.assert_close(logprobs_BT.detach().cpu(), exact, rtol=0.03, atol=0.03)
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.dtype == torch.float32
        assert bool(parameter.grad.isfinite().all()), parameter_name
