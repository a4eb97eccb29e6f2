"""Continuous batching: what a stream says does not depend on its company."""

from __future__ import annotations

import gc
import math
import random
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from elman import testing
from elman.base.errors import ElmanError, UsageError
from elman.decode import streams_on_device
from elman.decode.options import DecodeOptions
from elman.decode.rows import RowSettings
from elman.decode.sample import sample
from elman.models.interface import LanguageModel
from elman.models.mixture import Mixture
from elman.ngrams.backoff import BackoffModel
from elman.ngrams.counting import count
from elman.ngrams.smoothing import build
from elman.nn.graphed import Capture
from elman.nn.state import State
from elman.serve import batch_rows, prompts
from elman.serve.prefixes import PrefixCache
from elman.serve.stream_batch import StreamBatch
from elman.serve.streams import Continuation, Stream
from elman.tasks.counted_model import CountedLM
from elman.tasks.ngram.settings import NgramConfig
from stand_ins import Repeat
from tiny_models import TINY

V = testing.VOCAB_SIZE
BOUNDARY = 2
ENDS = frozenset({5})


def network(name: str) -> Any:
    # In double precision no two tokens are so close that the size of a batch could decide.
    return testing.build(TINY[name]).double()


def ngram() -> CountedLM[BackoffModel]:
    ids = np.minimum(np.random.default_rng(0).zipf(1.2, 4_000) - 1, V - 1)
    return CountedLM(build(count(ids, 3, vocab_size=V, boundary_id=BOUNDARY), NgramConfig(order=3)))


MODELS: dict[str, LanguageModel] = {
    "network": network("lstm"),
    "window": network("window"),
    "n-grams": ngram(),
    "mixture": Mixture([network("gru torch"), ngram()], [0.6, 0.4]),
}


CAPTURES = [None, Repeat(), Repeat(error="operation not permitted")]
"""One token per turn; several, replayed; several, not replayed."""


@dataclass(frozen=True)
class Visit:
    """A stream of a test: when it comes, what it asks for, and when it has enough."""

    turn: int
    request: Continuation
    leaves_after: int | None
    """Cancelled once it has so many tokens; None stays to the end."""


CONFIGS = st.builds(
    DecodeOptions,
    max_tokens=st.integers(1, 9),
    temperature=st.sampled_from([0.0, 0.7, 1.0, 1.5]),
    top_k=st.sampled_from([0, 0, 3]),
    top_p=st.sampled_from([1.0, 0.8]),
    min_p=st.sampled_from([0.0, 0.1]),
    presence_penalty=st.sampled_from([0.0, 0.0, 1.5]),
    frequency_penalty=st.sampled_from([0.0, 0.0, -1.0]),
    logit_bias=st.sampled_from([{}, {3: 4.0, 7: -100.0}]),
    seed=st.integers(0, 99),
)
VISITS = st.lists(
    st.builds(
        Visit,
        turn=st.integers(0, 8),
        request=st.builds(
            Continuation,
            prompt=st.sampled_from([(1, 2, 3, 4, 5), (1, 2, 3)])
            | st.lists(st.integers(0, V - 1), max_size=9).map(tuple),
            config=CONFIGS,
            num_alternatives=st.sampled_from([0, 0, 2]),
            score_prompt=st.booleans(),
        ),
        leaves_after=st.none() | st.integers(0, 6),
    ),
    min_size=1,
    max_size=6,
)


def run(batch: StreamBatch, visits: list[Visit]) -> list[Stream]:
    """Every visit, to its end."""
    streams = [Stream(visit.request) for visit in visits]
    for turn in range(1000):
        for visit, stream in zip(visits, streams, strict=True):
            if visit.turn == turn:
                batch.add(stream)
            if visit.leaves_after is not None and len(stream.tokens) >= visit.leaves_after:
                stream.cancel()
        batch.advance()
        if batch.is_idle and turn >= max(visit.turn for visit in visits):
            return streams
    raise AssertionError("the batch never came to rest")


def alone(model: LanguageModel, request: Continuation) -> list[Any]:
    assert request.config is not None
    return list(
        sample(
            model,
            [request.prompt],
            request.config,
            boundary_id=BOUNDARY,
            end_ids=ENDS,
            num_alternatives=request.num_alternatives,
        )
    )


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("name", MODELS)
@given(VISITS, st.integers(1, 4), st.sampled_from([0, 1 << 20]), st.sampled_from([1, 5, 512]))
@settings(max_examples=8)
def test_streams_say_in_company_what_they_say_alone(
    name: str,
    capture: Capture | None,
    visits: list[Visit],
    max_streams: int,
    cache_bytes: int,
    read_tokens: int,
) -> None:
    """Whoever joins and leaves, at whatever token, however little is read at a time, with prefixes
    known or not, and with one token per turn or several, replayed or not."""
    model = MODELS[name]
    batch = StreamBatch(
        model,
        boundary_id=BOUNDARY,
        end_ids=ENDS,
        max_streams=max_streams,
        cache=PrefixCache(cache_bytes),
        capture=capture,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams_on_device, "STEPS_BEFORE_CAPTURE", 1)
        patch.setattr(prompts, "READ_TOKENS", read_tokens)
        patch.setattr(prompts, "CACHE_STRIDE", 4)
        streams = run(batch, visits)
    for visit, stream in zip(visits, streams, strict=True):
        steps = alone(model, visit.request)
        number = len(stream.tokens)
        assert stream.tokens == [step.token for step in steps[:number]]
        assert stream.logprobs == pytest.approx([step.logprob for step in steps[:number]], abs=1e-5)
        if visit.request.num_alternatives:
            same_alternatives(stream.alternatives, [step.alternatives for step in steps[:number]])
        if stream.finish_reason == "cancelled":
            assert visit.leaves_after is not None
            assert number == min(visit.leaves_after, number)
        else:
            assert number == len(steps)
            assert len(stream.logprobs) == number
            assert stream.finish_reason == steps[-1].finish_reason
        if visit.request.score_prompt and number:
            scores_prompt(model, stream)


def same_alternatives(ours: Any, theirs: Any) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        assert [value for _, value in mine] == pytest.approx([v for _, v in other], abs=1e-5)


def scores_prompt(model: LanguageModel, stream: Stream) -> None:
    tokens_BT = torch.tensor([[BOUNDARY, *stream.continuation.prompt]])
    with torch.no_grad():
        expected = testing.whole(model, tokens_BT)[0].tolist() if tokens_BT.shape[1] > 1 else []
    assert stream.prompt_logprobs == pytest.approx(expected, abs=1e-5)
    assert len(stream.prompt_alternatives) == (
        len(expected) if stream.continuation.num_alternatives else 0
    )


class Counting:
    """A model that counts what it is asked to read."""

    def __init__(self) -> None:
        self.model = network("lstm")
        self.vocab_size = V
        self.num_read = 0
        self.batch_sizes: list[int] = []

    def initial_state(self, batch_size: int) -> State:
        return self.model.initial_state(batch_size)

    def step(self, tokens_B: Tensor, state: State) -> tuple[Tensor, State]:
        self.batch_sizes.append(len(tokens_B))
        return self.model.step(tokens_B, state)

    def logprobs(self, tokens_BT: Tensor, targets_BT: Tensor, state: State) -> tuple[Tensor, State]:
        self.num_read += tokens_BT.numel()
        return self.model.logprobs(tokens_BT, targets_BT, state)


def ask(prompt: list[int], **settings: Any) -> Continuation:
    config = DecodeOptions(**{"max_tokens": 3, "greedy": True, **settings})
    return Continuation(prompt=tuple(prompt), config=config)


def test_a_known_prefix_is_not_read_again() -> None:
    model = Counting()
    batch = StreamBatch(model, boundary_id=BOUNDARY, cache=PrefixCache(1 << 20))
    prompt = [1, 2, 3, 4, 5, 6]
    (first,) = run(batch, [Visit(0, ask(prompt), None)])
    assert model.num_read == len(prompt)  # the boundary and all but the last token
    (again,) = run(batch, [Visit(0, ask(prompt), None)])
    assert model.num_read == len(prompt)
    assert again.num_cached == len(prompt) - 1
    assert again.tokens == first.tokens
    (longer,) = run(batch, [Visit(0, ask([*prompt, 7, 8, 9]), None)])
    assert model.num_read == len(prompt) + 3  # 6, 7 and 8: the state after 1 to 5 was known
    assert longer.num_cached == len(prompt) - 1


def test_a_text_is_continued_from_where_a_stream_left_it() -> None:
    model = Counting()
    batch = StreamBatch(model, boundary_id=BOUNDARY, cache=PrefixCache(1 << 20))
    (first,) = run(batch, [Visit(0, ask([1, 2, 3]), None)])
    read = model.num_read
    (_,) = run(batch, [Visit(0, ask([1, 2, 3, *first.tokens]), None)])
    assert model.num_read == read


def test_many_continuations_of_one_prompt_read_it_once() -> None:
    model = Counting()
    batch = StreamBatch(model, boundary_id=BOUNDARY)
    prompt = [1, 2, 3, 4, 5, 6]
    streams = run(batch, [Visit(0, ask(prompt), None) for _ in range(5)])
    assert model.num_read == len(prompt)
    assert all(stream.tokens == streams[0].tokens for stream in streams)


def test_streams_advance_in_one_step() -> None:
    model = Counting()
    batch = StreamBatch(model, boundary_id=BOUNDARY)
    run(batch, [Visit(0, ask([1] * n, max_tokens=4), None) for n in (1, 3, 5)])
    assert model.batch_sizes == [3, 3, 3, 3]


def test_a_cancelled_stream_frees_its_place_before_the_next_token() -> None:
    model = Counting()
    batch = StreamBatch(model, boundary_id=BOUNDARY, max_streams=1)
    hog, next_one = Stream(ask([1], max_tokens=1000)), Stream(ask([2], max_tokens=1))
    batch.add(hog)
    batch.add(next_one)
    batch.advance()
    assert (len(hog.tokens), len(next_one.tokens)) == (1, 0)
    hog.cancel()
    batch.advance()
    assert (len(hog.tokens), len(next_one.tokens)) == (1, 1)
    assert hog.finish_reason == "cancelled"
    assert batch.is_idle


def test_a_long_prompt_is_read_between_the_tokens_of_others() -> None:
    batch = StreamBatch(Counting(), boundary_id=BOUNDARY)
    speaking, reading = Stream(ask([1], max_tokens=50)), Stream(ask([3] * 2000, max_tokens=1))
    batch.add(speaking)
    batch.advance()
    batch.add(reading)
    while reading.finish_reason is None:
        before = len(speaking.tokens)
        batch.advance()
        assert len(speaking.tokens) == before + 1
    assert len(speaking.tokens) > 2000 // prompts.READ_TOKENS


@pytest.mark.parametrize(
    ("prompt_length", "turns", "num_begun"),
    [(64, 2, 16), (2, 1, 100)],  # 16 pieces of 32 tokens are a turn's 512
)
def test_prompts_are_read_in_pieces_that_are_not_small(
    prompt_length: int, turns: int, num_begun: int
) -> None:
    batch = StreamBatch(Counting(), boundary_id=BOUNDARY)
    streams = [Stream(ask([n % V] * (prompt_length - 1) + [n // V])) for n in range(100)]
    for stream in streams:
        batch.add(stream)
    for _ in range(turns):
        assert not any(stream.tokens for stream in streams)
        batch.advance()
    assert [len(stream.tokens) for stream in streams] == [1] * num_begun + [0] * (100 - num_begun)


@pytest.mark.parametrize("capture", CAPTURES)
def test_one_row_without_a_possible_token_fails_alone(capture: Capture | None) -> None:
    class Broken(Counting):
        def step(self, tokens_B: Tensor, state: State) -> tuple[Tensor, State]:
            logprobs_BV, state = super().step(tokens_B, state)
            logprobs_BV[tokens_B == 7] = torch.nan
            return logprobs_BV, state

    batch = StreamBatch(Broken(), boundary_id=BOUNDARY, capture=capture)
    bad, good = run(batch, [Visit(0, ask([7]), None), Visit(0, ask([1]), None)])
    assert bad.finish_reason == "error"
    assert isinstance(bad.error, ElmanError)
    assert good.finish_reason in ("length", "error")
    assert good.tokens


def test_a_prompt_that_is_only_read_is_scored_and_done() -> None:
    batch = StreamBatch(Counting(), boundary_id=BOUNDARY)
    request = Continuation(prompt=(1, 2, 3), config=None, score_prompt=True, num_alternatives=1)
    (stream,) = run(batch, [Visit(0, request, None)])
    assert stream.finish_reason == "length"
    assert stream.tokens == []
    scores_prompt(batch.model, stream)


@pytest.mark.parametrize("token", [-1, V])
def test_tokens_from_another_vocabulary_are_refused(token: int) -> None:
    batch = StreamBatch(Counting(), boundary_id=BOUNDARY)
    with pytest.raises(UsageError, match="vocabulary"):
        batch.check(ask([token]))
    with pytest.raises(UsageError, match="logit_bias"):
        batch.check(ask([1], logit_bias={token: 1.0}))


@pytest.mark.parametrize("capture", CAPTURES)
@given(
    st.lists(st.tuples(CONFIGS, st.integers(1, 4)), min_size=1, max_size=5),
    st.integers(1, 3),
    st.randoms(use_true_random=False),
)
@settings(max_examples=5)
def test_pausing_changes_no_token(
    capture: Capture | None,
    wanted: list[tuple[DecodeOptions, int]],
    max_streams: int,
    chance: random.Random,
) -> None:
    model = MODELS["network"]
    batch = StreamBatch(
        model, boundary_id=BOUNDARY, end_ids=ENDS, max_streams=max_streams, capture=capture
    )
    streams = [
        Stream(Continuation(prompt=(1, 2), config=config, max_unread=unread))
        for config, unread in wanted
    ]
    for stream in streams:
        batch.add(stream)
    while any(stream.finish_reason is None for stream in streams):
        batch.advance()
        for stream in streams:
            assert len(stream.tokens) <= stream.pause_at
        chosen = chance.choice(streams)
        chosen.read(len(chosen.tokens))
    assert batch.is_idle
    assert batch.num_paused == 0
    for stream in streams:
        steps = alone(model, stream.continuation)
        assert stream.tokens == [step.token for step in steps]


def test_several_tokens_per_turn_once_every_stream_has_its_first() -> None:
    batch = StreamBatch(MODELS["network"], boundary_id=BOUNDARY, capture=Repeat())
    first = Stream(ask([1], max_tokens=30))
    batch.add(first)
    lengths = []
    for _ in range(3):
        batch.advance()
        lengths.append(len(first.tokens))
    second = Stream(ask([2], max_tokens=3))
    batch.add(second)
    while not batch.is_idle:
        batch.advance()
        lengths.append(len(first.tokens))
    assert lengths == [1, 9, 17, 18, 26, 30]
    for stream in (first, second):
        steps = alone(MODELS["network"], stream.continuation)
        assert stream.tokens == [step.token for step in steps][: len(stream.tokens)]


def test_alternatives_are_noted_only_where_they_are_asked_for() -> None:
    batch = StreamBatch(MODELS["network"], boundary_id=BOUNDARY)
    without, with_some = (
        Stream(ask([1], max_tokens=9)),
        Continuation(
            prompt=(2,), config=DecodeOptions(max_tokens=3, greedy=True), num_alternatives=2
        ),
    )
    batch.add(without)
    batch.advance()
    batch.add(other := Stream(with_some))
    while not batch.is_idle:
        batch.advance()
    assert without.alternatives == []  # its reader expects none, or one for every token
    assert [len(some) for some in other.alternatives] == [2] * len(other.tokens)


@pytest.mark.parametrize("is_paused", [False, True])
@pytest.mark.parametrize(
    ("capture", "num_before", "where", "what"),
    [
        (None, 0, batch_rows, "gathered"),
        (None, 2, State, "cat"),
        (Repeat(), 0, batch_rows, "gathered"),
        (Repeat(), 2, State, "cat"),
        (Repeat(), 2, RowSettings, "of"),
        (Repeat(), 2, RowSettings, "join"),
    ],
)
def test_streams_that_cannot_join_fail_and_the_batch_goes_on(
    is_paused: bool,
    capture: Capture | None,
    num_before: int,
    where: Any,
    what: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when the device has no memory left."""
    batch = StreamBatch(MODELS["network"], boundary_id=BOUNDARY, capture=capture)
    slow = Continuation(prompt=(1,), config=DecodeOptions(max_tokens=9, seed=1), max_unread=2)
    streams = [Stream(ask([1], max_tokens=99)) for _ in range(num_before)] + [Stream(slow)]
    for stream in streams:
        batch.add(stream)
    while not streams[-1].paused:
        batch.advance()
    batch.advance()
    if is_paused:
        streams[-1].read(2)
    else:
        more = [Stream(ask([2, 3], seed=3)), Stream(Continuation(prompt=(2, 3), config=None))]
        for stream in more:
            batch.add(stream)
        streams += more

    def no_memory(*_: Any) -> Any:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(where, what, no_memory)
        if where is batch_rows:
            patch.setattr(prompts, what, no_memory)
        with pytest.raises(RuntimeError, match="out of memory"):
            batch.advance()
        failed = batch.fail(ElmanError("out of memory"))
    assert set(failed) == set(streams)
    assert [stream.finish_reason for stream in streams] == ["error"] * len(streams)
    assert batch.statistics.finished == {"error": len(streams)}
    assert batch.is_idle
    assert batch.num_streams == batch.num_paused == 0
    request = ask([1, 2], max_tokens=20)
    (after,) = run(batch, [Visit(0, request, None)])
    expected = [step.token for step in alone(MODELS["network"], request)]
    assert after.tokens == expected[: len(after.tokens)]
    assert after.finish_reason == "length"


@pytest.mark.parametrize("is_failed", [False, True])
def test_a_batch_without_streams_holds_no_rows(is_failed: bool) -> None:
    model = Counting()
    batch = StreamBatch(model, boundary_id=BOUNDARY, capture=Repeat(error="not permitted"))
    rows: list[weakref.ref[Tensor]] = []

    def step(tokens_B: Tensor, state: State) -> tuple[Tensor, State]:
        rows.extend(weakref.ref(tensor) for tensor in state.flatten().values())
        return model.step(tokens_B, state)

    assert batch.steps is not None
    batch.steps._step = step
    for n in range(20):
        batch.add(Stream(ask([1], max_tokens=5 if n else 8)))
    while not batch.is_idle:
        batch.advance()
        if is_failed:
            batch.fail(ElmanError("stopped"))
    gc.collect()
    assert rows
    assert not any(tensor() is not None for tensor in rows)


@pytest.mark.parametrize("capture", CAPTURES)
def test_there_are_no_alternatives_to_an_impossible_token(capture: Capture | None) -> None:
    batch = StreamBatch(MODELS["network"], boundary_id=BOUNDARY, capture=capture)
    nothing = DecodeOptions(logit_bias=dict.fromkeys(range(V), -math.inf))
    requests = [
        Continuation(prompt=(1,), config=config, num_alternatives=2)
        for config in (nothing, DecodeOptions(max_tokens=3, greedy=True))
    ]
    failed, other = run(batch, [Visit(0, request, None) for request in requests])
    assert failed.finish_reason == "error"
    assert failed.tokens == failed.logprobs == failed.alternatives == []
    assert len(other.alternatives) == len(other.tokens) == 3
