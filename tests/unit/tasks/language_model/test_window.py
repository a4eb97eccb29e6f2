"""The fixed-window model: its formula, its window, its direct connections."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from elman.base.config import describe
from elman.base.errors import UsageError
from elman.tasks.language_model.window import WindowLM, WindowLMConfig


def build(**options: Any) -> WindowLM:
    torch.manual_seed(0)
    config = WindowLMConfig(window_size=3, embedding_size=4, hidden_size=5, **options)
    return config.build(20, boundary_id=9)


def test_the_lecture_written_out() -> None:
    """e = [e1; e2; e3], h = tanh(W e + b1), y = softmax(U h + b2), from the boundary on."""
    model = build()
    softmax = model.head.softmax
    tokens = [9, 9, 4, 17]
    logprobs_BT, state = model.logprobs(
        torch.tensor([[4, 17]]), torch.tensor([[17, 2]]), model.initial_state(1)
    )
    for time, target in enumerate((17, 2)):
        e = model.input.embedding.weight[tokens[time : time + 3]].flatten()
        h = torch.tanh(model.layer.weight @ e + model.layer.bias)
        y = torch.softmax(softmax.weight @ h + softmax.bias, dim=0)  # type: ignore[operator, union-attr]
        torch.testing.assert_close(logprobs_BT[0, time], y[target].log())
    assert state.tensor("tokens").tolist() == [[4, 17]]


def test_direct_connections_are_columns_of_the_output_matrix() -> None:
    """softmax(U h + D e + b2), U and D side by side."""
    model = build(direct=True)
    softmax = model.head.softmax
    assert softmax.weight.shape == (20, 5 + 12)  # type: ignore[union-attr]
    U, D = torch.split(softmax.weight, [5, 12], dim=1)  # type: ignore[arg-type]
    e = model.input.embedding.weight[[9, 9, 4]].flatten()
    h = torch.tanh(model.layer.weight @ e + model.layer.bias)
    expected = torch.log_softmax(U @ h + D @ e + softmax.bias, dim=0)  # type: ignore[operator]
    logprobs_BV, _ = model.step(torch.tensor([4]), model.initial_state(1))
    torch.testing.assert_close(logprobs_BV[0], expected)


def test_sees_its_window_and_nothing_before() -> None:
    model = build()
    tokens_BT = torch.tensor([[1, 2, 3, 4, 5], [8, 2, 3, 4, 5], [1, 2, 8, 4, 5]])
    targets_BT = torch.full_like(tokens_BT, 6)
    logprobs_BT, _ = model.logprobs(tokens_BT, targets_BT, model.initial_state(3))
    torch.testing.assert_close(logprobs_BT[0, 3:], logprobs_BT[1, 3:])
    assert not torch.isclose(logprobs_BT[0, 2], logprobs_BT[1, 2])
    assert not torch.isclose(logprobs_BT[0, 4], logprobs_BT[2, 4])


def test_a_wider_window_enlarges_the_hidden_matrix() -> None:
    sizes = {
        window: WindowLMConfig(window_size=window, embedding_size=4, hidden_size=5)
        .build(20)
        .layer.weight.numel()
        for window in (1, 2, 4)
    }
    assert sizes == {1: 20, 2: 40, 4: 80}


def test_the_boundary_is_saved() -> None:
    again = WindowLMConfig(window_size=3, embedding_size=4, hidden_size=5).build(20)
    again.load_state_dict(build().state_dict())
    assert again.initial_state(2).tensor("tokens").tolist() == [[9, 9], [9, 9]]


def test_every_setting_has_prose() -> None:
    assert all(setting.prose for setting in describe(WindowLMConfig))


@pytest.mark.parametrize("name", ["window_size", "embedding_size", "hidden_size"])
def test_sizes_are_at_least_one(name: str) -> None:
    with pytest.raises(UsageError, match=f"model.{name} cannot be 0"):
        WindowLMConfig(**{name: 0})
