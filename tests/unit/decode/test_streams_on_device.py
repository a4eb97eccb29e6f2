"""Tokens of many streams that are drawn on a device are those that `sample` draws for each.

Without a GPU: `Repeat` stands for a CUDA graph. Streams that come, go and pause are in
tests/unit/serve/test_stream_batch.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from elman import testing
from elman.decode import streams_on_device
from elman.decode.options import DecodeOptions
from elman.decode.random_numbers import Generator, Numbers
from elman.decode.rows import RowSettings
from elman.decode.sample import sample
from elman.decode.streams_on_device import Made, Streams, StreamSteps
from elman.nn import graphed
from elman.nn.state import State
from stand_ins import DEVICE, Repeat, no_waiting
from tiny_models import TINY

CPU = torch.device("cpu")
V, END = testing.VOCAB_SIZE, 5
torch.manual_seed(0)
MODEL = testing.build(TINY["lstm reference"]).double().eval().requires_grad_(False)
OPTIONS = {
    "one penalty": [{"presence_penalty": 0.5}] * 3,
    "plain": [{}, {}, {}],
    "temperature": [{"temperature": 0.5}, {}, {"temperature": 1.5}],
    "truncated": [{"top_k": 3}, {"top_p": 0.7}, {"min_p": 0.2, "top_k": 40}],
    "some greedy": [{"greedy": True}, {}, {"temperature": 0.0, "top_k": 2}],
    "all greedy": [{"greedy": True}] * 3,
    "penalties": [{"presence_penalty": 1.5}, {"frequency_penalty": -1.0}, {}],
    "one bias": [{"logit_bias": {3: 4.0, 7: -math.inf}}] * 3,
    "biases": [{"logit_bias": {3: 4.0}}, {}, {"logit_bias": {7: -math.inf, 3: 1.0}}],
}


@pytest.fixture(autouse=True)
def _capture_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams_on_device, "STEPS_BEFORE_CAPTURE", 2)


def steps_of(capture: Repeat, step: Any = MODEL.step, end_ids: Any = (END,)) -> StreamSteps:
    return StreamSteps(step, CPU, vocab_size=V, end_ids=end_ids, capture=capture)


def streams_of(options: list[DecodeOptions]) -> Streams:
    number = len(options)
    tokens_B = torch.arange(number) % V
    return Streams(tokens_B, MODEL.initial_state(number), RowSettings.of(options))


def draws_of(options: list[DecodeOptions], num_steps: int) -> Any:
    numbers = Numbers()
    numbers.add([Generator(one.seed) for one in options])
    return numbers.coming(num_steps)


def tokens_of(made: list[Made], row: int) -> list[int]:
    """Up to the end token."""
    tokens = [token for some in made for token in some.tokens_KB[:, row].tolist()]
    return tokens[: tokens.index(END) + 1] if END in tokens else tokens


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("error", ["", "operation not permitted"])
def test_every_row_is_as_alone(name: str, error: str) -> None:
    options = [
        DecodeOptions(max_tokens=9, seed=seed, **some) for seed, some in enumerate(OPTIONS[name])
    ]
    steps, streams = steps_of(Repeat(error=error)), streams_of(options)
    draws_KB, left_B, made = draws_of(options, 9), np.full(3, 9), []
    for some_KB in (draws_KB[:2], draws_KB[2:6], draws_KB[6:]):
        one, streams = steps(streams, left_B, some_KB)
        made.append(one)
        left_B = left_B - len(some_KB)
        for row in range(3):
            left_B[row] = 0 if END in tokens_of(made, row) else left_B[row]
    for row, one in enumerate(options):
        alone = list(sample(MODEL, [[]], one, boundary_id=row, end_ids={END}))
        assert tokens_of(made, row) == [step.token for step in alone]
        logprobs = [value for some in made for value in some.logprobs_KB[:, row]]
        assert logprobs[: len(alone)] == pytest.approx([step.logprob for step in alone], abs=1e-5)
    assert steps.num_calls == 9
    assert steps.num_replayed == (0 if error else 7)


def test_a_row_keeps_its_state_from_its_last_token_on() -> None:
    options = [DecodeOptions(seed=seed) for seed in range(5)]
    draws_KB = draws_of(options, 6)
    left_B = np.array([1, 6, 3, 2, 6])
    steps, streams = steps_of(Repeat(), end_ids=()), streams_of(options)
    made, streams = steps(streams, left_B, draws_KB)
    for row, number in enumerate(left_B):
        state, tokens_B = MODEL.initial_state(1), torch.tensor([row % V])
        for token in made.tokens_KB[:number, row].tolist():
            _, state = MODEL.step(tokens_B, state)
            tokens_B = torch.tensor([token])
        assert int(streams.tokens_B[row]) == int(tokens_B)
        for name, tensor in state.flatten().items():
            torch.testing.assert_close(streams.state.flatten()[name][row : row + 1], tensor)


def test_a_step_that_cannot_be_captured_runs_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    steps = steps_of(Repeat(error="operation not permitted"))
    options = [DecodeOptions(seed=1)] * 2
    steps(streams_of(options), np.full(2, 8), draws_of(options, 8))
    assert steps.describe() == "not replayed from a CUDA graph: operation not permitted"
    assert [record.message for record in caplog.records] == [
        f"steps of decoding are {steps.describe()}"
    ]


def test_states_of_other_widths_have_graphs_of_their_own() -> None:
    """As those of a decoder that attends to sources of different lengths."""

    def attend(tokens_B: Tensor, state: State) -> tuple[Tensor, State]:
        memory_BS = state.tensor("memory")
        liked_B = (memory_BS.sum(dim=1).long() + tokens_B) % V
        scores_BV = torch.zeros(len(tokens_B), V).scatter(1, liked_B[:, None], 9.0)
        return scores_BV.log_softmax(dim=1), State({"memory": memory_BS})

    options = [DecodeOptions(greedy=True)] * 2
    steps = steps_of(capture := Repeat(), attend, end_ids=())
    for length in (3, 4, 3):
        state = State({"memory": torch.ones(2, length)})
        streams = Streams(torch.tensor([1, 2]), state, RowSettings.of(options))
        made, _ = steps(streams, np.full(2, 3), np.ones((3, 2)))
        expected = [[(first + n * length) % V for first in (1, 2)] for n in (1, 2, 3)]
        assert made.tokens_KB.tolist() == expected
    assert capture.num_recorded == 2


def test_there_is_a_limit_to_the_graphs_and_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphed, "MOST_GRAPHS", 2)
    monkeypatch.setattr(streams_on_device, "MOST_ROWS", 2)
    steps = steps_of(capture := Repeat())
    for number in (3, 1, 2, 4):
        options = [DecodeOptions(seed=1)] * number
        steps(streams_of(options), np.full(number, 8), draws_of(options, 8))
    assert capture.num_recorded == 2
    assert (steps.num_calls, steps.num_replayed) == (32, 16)


@pytest.mark.parametrize(
    ("options", "num_tables"),
    [({}, 1), ({"presence_penalty": 1.0}, 2), ({"logit_bias": {3: 4.0}}, 1)],
)
def test_graphs_keep_no_more_memory_than_they_may(options: dict[str, Any], num_tables: int) -> None:
    steps = steps_of(capture := Repeat())
    row = sum(t.numel() * t.element_size() for t in MODEL.initial_state(1).flatten().values())
    row += 4 * V * num_tables
    steps.room = 3 * row + 2 * 4 * V
    for number in (1, 4, 2, 1, 4):
        some = [DecodeOptions(seed=1, **options)] * number
        made, _ = steps(streams_of(some), np.full(number, 8), draws_of(some, 8))
        assert made.tokens_KB.shape == (8, number)
    assert capture.num_recorded == steps.num_graphs == 2
    assert 3 * row <= steps.num_bytes <= steps.room
    steps.release()
    assert steps.num_bytes == 0


def test_released_graphs_are_not_replayed() -> None:
    replays: list[int] = []

    class Counted(Repeat):
        def record(self, work: Callable[[], None]) -> Callable[[], None]:
            return lambda: (replays.append(1), work())[1]

    options = [DecodeOptions(seed=1)] * 2
    steps = steps_of(Counted(), end_ids=())
    draws_KB, left_B = draws_of(options, 8), np.full(2, 8)
    expected, _ = steps(streams_of(options), left_B, draws_KB)
    made, streams = steps(streams_of(options), left_B, draws_KB[:4])
    number = len(replays)
    steps.release()
    steps.problem = "released"
    more, _ = steps(streams, left_B, draws_KB[4:])
    assert len(replays) == number > 0
    assert [*made.tokens_KB.tolist(), *more.tokens_KB.tolist()] == expected.tokens_KB.tolist()


@pytest.mark.parametrize("name", OPTIONS)
def test_a_step_waits_for_nothing(name: str) -> None:
    options = [DecodeOptions(**some) for some in OPTIONS[name]]
    rows = steps_of(Repeat())._new(streams_of(options), 4)
    model = testing.build(TINY["lstm"]).to(DEVICE).eval()
    steps = StreamSteps(model.step, DEVICE, vocab_size=V, capture=Repeat())
    own = rows.streams
    columns = {name: column_B1.to(DEVICE) for name, column_B1 in own.settings.columns.items()}
    rows.streams = Streams(
        own.tokens_B.to(DEVICE),
        model.initial_state(4),
        RowSettings(
            columns,
            None,
            own.settings.greedy_B.to(DEVICE),
            own.settings.num_greedy,
            own.settings.most_k,
        ),
        None if own.counts_BV is None else own.counts_BV.to(DEVICE),
    )
    for field in ("bias", "given_SB", "left_B", "place", "made_K2B"):
        tensor = getattr(rows, field)
        setattr(rows, field, None if tensor is None else tensor.to(DEVICE))
    with no_waiting(), torch.no_grad():
        steps._advance(rows)
