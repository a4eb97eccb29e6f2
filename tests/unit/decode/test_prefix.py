from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from elman.base.errors import UsageError
from elman.decode.prefix import prefill
from elman.models.interface import reading
from elman.models.recurrent import RecurrentLMConfig

PROMPTS = st.lists(st.lists(st.integers(0, 5), max_size=9), min_size=1, max_size=5)


@given(PROMPTS)
@settings(max_examples=60)
def test_ragged_prompts_are_read_as_each_would_be_alone(
    table_lm: Callable[..., Any], prompts: list[list[int]]
) -> None:
    model = table_lm()
    logprobs_BV, state = prefill(model, prompts, boundary_id=0)
    for row, prompt in enumerate(prompts):
        before, last = [0, 0, *prompt][-2:]
        torch.testing.assert_close(logprobs_BV[row], model.logprobs_VVV[before, last])
        assert state.tensor("last")[row] == last


def test_a_network_is_read_to_the_same_state_and_never_asked_what_it_predicts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("elman.decode.prefix.CHUNK_LENGTH", 2)
    model = RecurrentLMConfig(hidden_size=8, embedding_size=8).build(7).eval()
    prompts = [[1, 2, 3, 4, 5, 6], [], [3, 3, 3]]
    alone = []
    for prompt in prompts:
        tokens_BT = torch.tensor([[0, *prompt]])
        with torch.no_grad():
            hidden, state = model.hidden(tokens_BT, model.initial_state(1))
            alone.append((model.head.logprobs_all(hidden.dropped_BTH[0, -1:]), state))
    monkeypatch.setattr(model.head, "logprobs", pytest.fail)
    logprobs_BV, state = prefill(model, prompts, boundary_id=0)
    for row, (alone_BV, alone_state) in enumerate(alone):
        torch.testing.assert_close(logprobs_BV[row], alone_BV[0])
        for name, tensor in alone_state.flatten().items():
            torch.testing.assert_close(state.flatten()[name][row], tensor[0])


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
