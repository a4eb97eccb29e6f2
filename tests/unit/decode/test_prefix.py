from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from elman.base.errors import UsageError
from elman.decode.prefix import prefill, reading
from elman.models.recurrent import RecurrentLMConfig

MODEL = RecurrentLMConfig(hidden_size=8, embedding_size=8).build(7).eval()
PROMPTS = st.lists(st.lists(st.integers(0, 6), max_size=9), min_size=1, max_size=5)


@given(PROMPTS)
@settings(deadline=None, max_examples=40)
def test_ragged_prompts_are_read_as_each_would_be_alone(prompts: list[list[int]]) -> None:
    logprobs_BV, state = prefill(MODEL, prompts, boundary_id=0)
    for row, prompt in enumerate(prompts):
        alone = MODEL.initial_state(1)
        for token in [0, *prompt]:
            alone_BV, alone = MODEL.step(torch.tensor([token]), alone)
        torch.testing.assert_close(logprobs_BV[row], alone_BV[0].detach())
        for name, tensor in alone.flatten().items():
            torch.testing.assert_close(state.flatten()[name][row], tensor[0].detach())


def test_a_model_without_hidden_vectors_is_read_too(table_lm: Callable[..., Any]) -> None:
    model = table_lm()
    logprobs_BV, _ = prefill(model, [[1, 2, 3], [], [4]], boundary_id=0)
    expected_BV = model.logprobs_VVV[torch.tensor([2, 0, 0]), torch.tensor([3, 0, 4])]
    torch.testing.assert_close(logprobs_BV, expected_BV)


def test_a_token_from_another_vocabulary_is_refused(table_lm: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match="vocabulary"):
        prefill(table_lm(), [[6]], boundary_id=0)


def test_reading_switches_dropout_and_gradients_off_and_back_on() -> None:
    model: Any = nn.Dropout()
    with reading(model):
        assert not model.training
        assert not torch.is_grad_enabled()
    assert model.training
    assert torch.is_grad_enabled()
