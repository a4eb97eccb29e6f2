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


def deep(**options: Any) -> WindowLM:
    torch.manual_seed(0)
    config = WindowLMConfig(window_size=2, embedding_size=4, num_layers=3, hidden_size=5, **options)
    return config.build(20, boundary_id=9)


@pytest.mark.parametrize("join", ["plain", "residual", "dense"])
def test_several_hidden_layers_written_out(join: str) -> None:
    """h_l = tanh(W_l h_{l-1} + b_l), plus h_{l-1} if residual; dense layers read all below."""
    model = deep(join=join)
    e = model.input.embedding.weight[[9, 4]].flatten()
    h = torch.tanh(model.layer.weight @ e + model.layer.bias)
    below = [e, h]
    for layer in model.deeper:
        entering = torch.cat(below) if join == "dense" else below[-1]
        h = torch.tanh(layer.weight @ entering + layer.bias)  # type: ignore[operator]
        below.append(h + below[-1] if join == "residual" else h)
    hidden, _ = model.hidden(torch.tensor([[4]]), model.initial_state(1))
    torch.testing.assert_close(hidden.raw_BTH[0, 0], below[-1])


def test_one_hidden_layer_has_the_tensors_that_it_always_had() -> None:
    assert set(build().state_dict()) == {
        *("boundary", "input.embedding.weight", "layer.weight", "layer.bias"),
        *("head.softmax.own_weight", "head.softmax.bias"),
    }


def test_gradients_vanish_in_deep_sigmoid_layers_and_residual_ones_keep_them() -> None:
    def share(join: str) -> float:
        """The norm of the first hidden layer's gradient over that of the last's."""
        torch.manual_seed(0)
        config = WindowLMConfig(
            window_size=2, embedding_size=16, num_layers=8, hidden_size=16, join=join,
            nonlinearity="sigmoid",
        )  # fmt: skip
        model = config.build(20)
        tokens_BT = torch.arange(18).reshape(2, 9)
        loss = -model.logprobs(tokens_BT, tokens_BT + 1, model.initial_state(2))[0].mean()
        loss.backward()  # type: ignore[no-untyped-call]
        last: Any = model.deeper[-1]
        return float(model.layer.weight.grad.norm() / last.weight.grad.norm())  # type: ignore[union-attr]

    assert share("plain") < 1e-4
    assert share("residual") > 1e-2


@pytest.mark.parametrize("unread", [{"join": "residual"}, {"dropout_hidden": 0.1}])
def test_one_layer_reads_nothing_about_several(unread: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="nothing reads it"):
        WindowLMConfig(**unread)


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


@pytest.mark.parametrize("name", ["window_size", "embedding_size", "num_layers", "hidden_size"])
def test_sizes_are_at_least_one(name: str) -> None:
    with pytest.raises(UsageError, match=f"model.{name} cannot be 0"):
        WindowLMConfig(**{name: 0})
