from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import pytest
import torch
from torch import Tensor

from elman import testing
from elman.base.errors import ElmanError
from elman.decode.options import DecodeOptions
from elman.nn.kernels import kernel_limits, mkl, model_step, recorded_plans
from elman.nn.state import State
from elman.serve.engine import Engine
from elman.serve.refusals import Busy
from elman.serve.stream_batch import StreamBatch
from elman.serve.streams import Continuation, Stream
from tiny_models import TINY

V = testing.VOCAB_SIZE


class Paced:
    """A model that makes a token only when it is allowed to."""

    vocab_size = V

    def __init__(self) -> None:
        self.allowed = threading.Semaphore(0)
        self.fails = False

    def initial_state(self, batch_size: int) -> State:
        return State({"last": torch.zeros(batch_size, dtype=torch.long)})

    def step(self, tokens_B: Tensor, state: State) -> tuple[Tensor, State]:
        self.allowed.acquire()
        if self.fails:
            raise RuntimeError("a bug")
        logprobs_BV = torch.zeros(len(tokens_B), V)
        logprobs_BV[torch.arange(len(tokens_B)), (tokens_B + 1) % V] = 9.0
        return logprobs_BV.log_softmax(dim=-1), State({"last": tokens_B})

    def logprobs(self, tokens_BT: Tensor, targets_BT: Tensor, state: State) -> tuple[Tensor, State]:
        return torch.zeros(tokens_BT.shape), State({"last": tokens_BT[:, -1]})


def ask(first: int = 1, max_tokens: int = 3) -> Continuation:
    return Continuation(prompt=(first,), config=DecodeOptions(max_tokens=max_tokens, greedy=True))


@pytest.mark.skipif(bool(mkl.onednn_problem()), reason="weights are not packed in parts")
def test_a_process_that_is_forked_packs_for_the_threads_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, before = testing.build(TINY["lstm"]), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        with kernel_limits(step_work=1), recorded_plans() as plans:
            engine = Engine(StreamBatch(model, boundary_id=0))
            engine.warm_up(num_threads=3)
            assert {plan.num_parts for found in plans.values() for plan in found} == {1}
            monkeypatch.setattr(model_step, "pack", None)
            torch.set_num_threads(3)
            assert all(stream.finish_reason == "length" for stream in engine.run(*[ask()] * 5))
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def model() -> Paced:
    return Paced()


@pytest.fixture
def engine(model: Paced) -> Any:
    engine = Engine(StreamBatch(model, boundary_id=0, max_streams=2), max_waiting=2)
    yield engine
    model.allowed.release(10_000)
    engine.close()


def test_tokens_arrive_one_by_one(model: Paced, engine: Engine) -> None:
    (stream,) = engine.submit(ask())
    for number in (1, 2, 3):
        model.allowed.release()
        engine.wait(stream, seen=number - 1)
        assert stream.tokens == [2, 3, 4][:number]
    engine.wait(stream)
    assert stream.finish_reason == "length"


def test_a_reader_that_never_reads_holds_nobody_up(model: Paced, engine: Engine) -> None:
    slow, quick = engine.submit(ask(1, max_tokens=500), ask(5, max_tokens=500))
    model.allowed.release(500)
    engine.wait(quick)
    engine.wait(slow)
    assert len(slow.tokens) == len(quick.tokens) == 500


def test_an_unread_stream_pauses_and_goes_on_when_it_is_read(model: Paced, engine: Engine) -> None:
    wanted = DecodeOptions(max_tokens=9, greedy=True)
    unread = Continuation(prompt=(1,), config=wanted, max_unread=2)
    slow, quick = engine.submit(unread, ask(5, max_tokens=5))
    model.allowed.release(5)
    engine.wait(quick)
    assert (len(slow.tokens), engine.num_paused) == (2, 1)
    engine.read(slow, 1)
    model.allowed.release(1)
    engine.wait(slow, seen=2)
    engine.read(slow, 9)
    model.allowed.release(6)
    engine.wait(slow)
    assert slow.tokens == [(2 + i) % V for i in range(9)]
    (cancelled,) = engine.submit(unread)
    model.allowed.release(2)
    engine.wait(cancelled, seen=1)
    engine.cancel([cancelled])
    engine.wait(cancelled)
    assert (cancelled.finish_reason, engine.num_paused) == ("cancelled", 0)


def test_more_than_may_wait_are_turned_away_whole(model: Paced, engine: Engine) -> None:
    with pytest.raises(Busy, match="waiting"):
        engine.submit(*[ask(max_tokens=1)] * 3)
    assert engine.num_waiting == 0
    model.allowed.release(2)
    for stream in engine.submit(ask(max_tokens=1), ask(max_tokens=1)):
        engine.wait(stream)
        assert stream.finish_reason == "length"


def test_cancelling_wakes_an_idle_engine_and_ends_the_stream(model: Paced, engine: Engine) -> None:
    (stream,) = engine.submit(ask(max_tokens=1000))
    model.allowed.release()
    engine.wait(stream, seen=0)
    engine.cancel([stream])
    model.allowed.release()  # the token that was being made when it was cancelled
    engine.wait(stream)
    assert stream.finish_reason == "cancelled"
    assert engine.num_streams == 0


def test_a_failing_model_ends_its_streams_and_the_next_ones_go_on(
    model: Paced, engine: Engine
) -> None:
    model.fails = True
    (stream,) = engine.submit(ask())
    model.allowed.release()
    engine.wait(stream)
    assert stream.finish_reason == "error"
    assert isinstance(stream.error, ElmanError)
    model.fails = False
    (stream,) = engine.submit(ask())
    model.allowed.release(3)
    engine.wait(stream)
    assert stream.finish_reason == "length"


def test_closing_ends_what_still_runs(model: Paced) -> None:
    engine = Engine(StreamBatch(model, boundary_id=0))
    (stream,) = engine.submit(ask(max_tokens=10_000))
    model.allowed.release()
    engine.wait(stream, seen=0)
    closing = threading.Thread(target=engine.close)
    closing.start()
    model.allowed.release(10_000)
    closing.join()
    assert stream.finish_reason in ("error", "length")
    with pytest.raises(Busy, match="shutting down"):
        engine.submit(ask())


def test_whoever_wants_to_know_is_told_after_every_turn(model: Paced) -> None:
    told: list[Stream] = []

    def notify(streams: Sequence[Stream]) -> None:
        told.extend(streams)

    listener: Callable[[Sequence[Stream]], None] = notify
    with closing(Engine(StreamBatch(model, boundary_id=0), notify=listener)) as engine:
        model.allowed.release(3)
        (stream,) = engine.submit(ask())
        engine.wait(stream)
    assert told == [stream] * 3
