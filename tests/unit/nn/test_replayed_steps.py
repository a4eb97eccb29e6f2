"""Steps of decoding that are replayed give what ordinary ones give, whichever rows come and go.

Without a GPU: `Repeat` stands for a CUDA graph, as in test_replayed_updates.py.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from elman import testing
from elman.nn import graphed
from elman.nn.graphed import GraphedStep
from elman.nn.state import State
from elman.testing import VOCAB_SIZE
from stand_ins import Repeat
from tiny_models import TINY

CPU = torch.device("cpu")
torch.manual_seed(0)
MODEL = testing.build(TINY["lstm reference"]).eval().requires_grad_(False)


@pytest.fixture(autouse=True)
def _capture_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphed, "STEPS_BEFORE_STEP_CAPTURE", 0)


def test_every_step_is_that_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphed, "MOST_ROWS", 8)
    capture = Repeat()
    step = GraphedStep(MODEL.step, CPU, capture)

    @given(st.data())
    def check(data: st.DataObject) -> None:
        ids = st.integers(0, VOCAB_SIZE - 1)
        state = MODEL.initial_state(data.draw(st.integers(1, 10)))
        reached = []
        for _ in range(data.draw(st.integers(1, 6))):
            rows = st.integers(0, state.batch_size - 1)
            if data.draw(st.booleans()):  # rows leave and join; otherwise go on as the stream does
                state = state.select(data.draw(st.lists(rows, min_size=1, max_size=10)))
            size = state.batch_size
            tokens_B = torch.tensor(data.draw(st.lists(ids, min_size=size, max_size=size)))
            expected_BV, expected = MODEL.step(tokens_B, state)
            logprobs_BV, state = step(tokens_B, state)
            torch.testing.assert_close(logprobs_BV, expected_BV)
            reached.append((state, expected))
        for found, expected in reached:  # later steps change no earlier state
            for name, tensor in found.flatten().items():
                torch.testing.assert_close(tensor, expected.flatten()[name])

    check()
    assert capture.num_recorded == 4  # 1, 2, 4 and 8 rows
    assert 0 < step.num_replayed < step.num_calls


def test_a_step_that_cannot_be_captured_runs_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    step = GraphedStep(MODEL.step, CPU, Repeat(error="operation not permitted"))
    tokens_B, state = torch.tensor([1, 2]), MODEL.initial_state(2)
    for _ in range(3):
        torch.testing.assert_close(step(tokens_B, state)[0], MODEL.step(tokens_B, state)[0])
    assert step.describe() == "not replayed from a CUDA graph: operation not permitted"
    assert [record.message for record in caplog.records] == [
        f"steps of decoding are {step.describe()}"
    ]
    assert step.num_replayed == 0


def test_states_of_other_widths_have_graphs_of_their_own() -> None:
    """As those of a decoder that attends to sources of different lengths."""

    def attend(tokens_B: Tensor, state: State) -> tuple[Tensor, State]:
        memory_BS = state.tensor("memory")
        return memory_BS.sum(dim=1, keepdim=True) + tokens_B[:, None], State({"memory": memory_BS})

    step = GraphedStep(attend, CPU, capture := Repeat())
    for length in (3, 5, 3):
        logprobs_BV, _ = step(torch.tensor([1, 2]), State({"memory": torch.ones(2, length)}))
        assert logprobs_BV.flatten().tolist() == [length + 1.0, length + 2.0]
    assert capture.num_recorded == 2


def test_there_is_a_limit_to_the_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphed, "MOST_GRAPHS", 2)
    step = GraphedStep(MODEL.step, CPU, capture := Repeat())
    for size in (1, 2, 4, 8):
        tokens_B, state = torch.arange(size), MODEL.initial_state(size)
        torch.testing.assert_close(step(tokens_B, state)[0], MODEL.step(tokens_B, state)[0])
    assert capture.num_recorded == step.num_replayed == 2


def test_the_first_steps_are_ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphed, "STEPS_BEFORE_STEP_CAPTURE", 2)
    step = GraphedStep(MODEL.step, CPU, Repeat())
    tokens_B, state = torch.tensor([1]), MODEL.initial_state(1)
    for _ in range(5):
        _, state = step(tokens_B, state)
    assert (step.num_calls, step.num_replayed) == (5, 3)
