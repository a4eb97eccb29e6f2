"""State: a value that can be picked from, joined, detached, saved."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elman.nn.state import State


@pytest.fixture
def state() -> State:
    return State(
        {
            "0": State({"h": torch.arange(6.0).view(3, 2), "c": torch.arange(3.0).view(3, 1)}),
            "tokens": torch.arange(12).view(3, 4),
        }
    )


def test_parts_and_tensors(state: State) -> None:
    assert set(state) == {"0", "tokens"}
    assert len(state) == 2
    assert state.batch_size == 3
    assert state.part("0").tensor("h").shape == (3, 2)
    assert state["tokens"] is state.tensor("tokens")
    assert repr(state) == "State(0: State(h: (3, 2), c: (3, 1)), tokens: (3, 4))"


@pytest.mark.parametrize("rows", [[2, 0, 0], torch.tensor([2, 0, 0])], ids=["list", "tensor"])
def test_rows_are_picked_and_repeated(state: State, rows: object) -> None:
    picked = state[rows]  # type: ignore[index]
    assert isinstance(picked, State)
    assert picked.batch_size == 3
    assert torch.equal(picked.tensor("tokens"), state.tensor("tokens")[[2, 0, 0]])
    assert torch.equal(picked.part("0").tensor("h"), state.part("0").tensor("h")[[2, 0, 0]])


def test_slices_and_masks(state: State) -> None:
    assert torch.equal(state.select(slice(1, 3)).tensor("tokens"), state.tensor("tokens")[1:3])
    mask = torch.tensor([True, False, True])
    assert torch.equal(state.select(mask).tensor("tokens"), state.tensor("tokens")[[0, 2]])


@settings(max_examples=20)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=6))
def test_joining_rows_is_picking_them(rows: list[int]) -> None:
    state = State({"a": State({"b": torch.randn(3, 2)}), "c": torch.randn(3)})
    joined = State.cat([state.select([row]) for row in rows])
    picked = state.select(rows)
    assert all(torch.equal(joined.flatten()[k], v) for k, v in picked.flatten().items())


def test_flatten_and_back(state: State) -> None:
    flat = state.flatten()
    assert set(flat) == {"0.h", "0.c", "tokens"}
    again = State.unflatten(flat)
    assert set(again) == set(state)
    assert all(torch.equal(again.flatten()[k], v) for k, v in flat.items())


def test_detach_cuts_and_map_keeps_the_form(state: State) -> None:
    wet = state.map(lambda tensor: tensor.float().requires_grad_() * 2)
    assert wet.part("0").tensor("h").requires_grad
    dry = wet.detach()
    assert not dry.part("0").tensor("h").requires_grad
    assert wet.part("0").tensor("h").requires_grad  # the first is as it was
    assert set(dry.flatten()) == set(state.flatten())
    assert dry.to("cpu").tensor("tokens").device.type == "cpu"
