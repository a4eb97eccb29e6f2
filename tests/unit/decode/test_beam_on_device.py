"""The search of which the host reads little finds what the one that it watches finds."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from elman import testing
from elman.decode import beam, beam_on_device
from elman.decode.beam import beam_search
from elman.decode.beam_on_device import (
    STEPS_BEFORE_CAPTURE,
    GraphedBeams,
    advance,
    begin,
    extend,
)
from elman.decode.beam_step import Rules
from elman.decode.options import DecodeOptions
from elman.models.decoder import DecoderConfig
from elman.nn.state import State
from elman.tasks.translation.model import SequenceToSequenceConfig
from stand_ins import DEVICE, Repeat, no_waiting
from tiny_models import TINY

Make = Callable[..., Any]


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Search as on a CPU, and as on a GPU, with or without graphs."""

    def search(model: Any, *args: Any, graphs: Any = None, **named: Any) -> Any:
        here = beam_search(model, *args, **named)
        with monkeypatch.context() as patch:
            patch.setattr(beam, "_is_far", lambda device: True)
            patch.setattr(beam, "graphs_of", lambda model, device: graphs)
            return here, beam_search(model, *args, **named)

    return search


def assert_same(here: Any, there: Any) -> None:
    assert len(here) == len(there)
    for ours, theirs in zip(here, there, strict=True):
        scores = [one.score for one in ours]
        assert [one.score for one in theirs] == pytest.approx(scores, rel=1e-9)
        for one, other in zip(ours, theirs, strict=True):
            # Different orders of the same trigrams are exactly as probable.
            if sum(score == pytest.approx(one.score, rel=1e-9) for score in scores) == 1:
                assert one.finish_reason == other.finish_reason
                assert one.logprob == pytest.approx(other.logprob, rel=1e-9)
                assert one.tokens == other.tokens or one is ours[-1]


@pytest.mark.parametrize("graphed", [False, True])
def test_random_searches(
    table_lm: Make, both: Any, graphed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beam_on_device, "STEPS_BEFORE_CAPTURE", 5)
    draw = random.Random(4)
    for seed in range(60):
        vocab_size = draw.choice([2, 3, 7, 20])
        beam_size = draw.randint(1, 6)
        prompts = [
            [draw.randrange(vocab_size) for _ in range(draw.randint(0, 3))]
            for _ in range(draw.choice([1, 2, 5, 11]))
        ]
        limits = [draw.randint(1, 30) for _ in prompts]
        bias = {0: -torch.inf, 1: 0.5} if draw.random() < 0.3 and vocab_size > 2 else {}
        options = DecodeOptions(
            beam_size=beam_size,
            num_samples=draw.randint(1, beam_size),
            length_penalty=draw.choice([0.0, 0.7, 1.0]),
            logit_bias=bias,
        )
        ends = {draw.randrange(vocab_size) for _ in range(draw.randint(0, 2))} - {0}
        model = table_lm(vocab_size, seed=seed)
        graphs = GraphedBeams(torch.device("cpu"), Repeat()) if graphed else None
        found = both(
            model, prompts, options, boundary_id=0, end_ids=ends, limits=limits, graphs=graphs
        )
        assert_same(*found)


def translator() -> Any:
    torch.manual_seed(5)
    decoder = DecoderConfig(
        hidden_size=8, embedding_size=6, attention="bilinear", input_feeding=True
    )
    model = SequenceToSequenceConfig(decoder=decoder).build(9)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return model.double().eval()


def test_replayed_steps_of_a_translator(both: Any) -> None:
    """The same shapes again and again, with other sources and other weights."""
    model, capture = translator(), Repeat()
    graphs = GraphedBeams(torch.device("cpu"), capture)
    options = DecodeOptions(beam_size=3, num_samples=2, length_penalty=0.8, coverage_penalty=0.3)
    for seed in range(8):
        source_BS = testing.some_tokens(6, 5, seed=seed) % 9
        mask_BS = torch.arange(5) < torch.tensor([[5], [2], [4], [5], [1], [3]])
        with torch.no_grad():
            state = model.condition(source_BS, mask_BS)
        limits = [20, 5, 9, 31, 1, 12]
        found = both(
            *(model, [[]] * 6, options),
            boundary_id=0,
            end_ids={0},
            state=state,
            limits=limits,
            graphs=graphs,
        )
        assert_same(*found)
        if seed == 5:
            with torch.no_grad():
                model.decoder.stack.layers[0].cell.bias.add_(0.2)
    assert graphs.problem is None
    assert graphs.num_replayed > 2 * STEPS_BEFORE_CAPTURE
    assert capture.num_recorded == graphs.num_graphs > 1


def test_weights_elsewhere_get_graphs_of_their_own(both: Any) -> None:
    model = translator()
    graphs = GraphedBeams(torch.device("cpu"), Repeat())
    options = DecodeOptions(beam_size=2, max_tokens=40)
    state = model.condition(torch.tensor([[3, 1, 2]]))
    for _ in range(3):
        for _ in range(3):
            found = both(
                *(model, [[]], options), boundary_id=0, end_ids=set(), state=state, graphs=graphs
            )
            assert_same(*found)
        weight = model.decoder.head.softmax.weight
        weight.data = torch.randn_like(weight)
    assert graphs.num_graphs == 3


def test_another_search_at_the_same_time_does_without_graphs(both: Any) -> None:
    model, graphs = translator(), GraphedBeams(torch.device("cpu"), Repeat())
    options = DecodeOptions(beam_size=2, max_tokens=50)
    with graphs.lock:
        found = both(model, [[]], options, boundary_id=0, end_ids={0}, graphs=graphs)
    assert_same(*found)
    assert graphs.num_calls == 0


def test_what_takes_too_much_memory_is_not_captured(both: Any) -> None:
    model, graphs = translator(), GraphedBeams(torch.device("cpu"), Repeat())
    graphs.room = 100
    options = DecodeOptions(beam_size=2, max_tokens=60)
    for _ in range(3):
        assert_same(*both(model, [[]], options, boundary_id=0, end_ids=set(), graphs=graphs))
    assert graphs.num_graphs == 0
    assert graphs.num_calls > STEPS_BEFORE_CAPTURE


@pytest.mark.parametrize("name", ["input feeding", "attention bilinear", "sequence to sequence"])
def test_steps_wait_for_nothing(name: str) -> None:
    model = testing.build(TINY[name]).eval()
    bias = {1: -torch.inf, 2: 0.5}
    penalty = 0.2 if "attention" in name or "feeding" in name else 0.0
    options = DecodeOptions(beam_size=4, coverage_penalty=penalty, logit_bias=bias)
    rules = Rules(options, {3}, model.vocab_size, torch.device("cpu"))
    for kind, value in vars(rules).items():  # as if they had been made on the device
        if isinstance(value, torch.Tensor):
            setattr(rules, kind, value.to(DEVICE))
        elif isinstance(value, tuple):
            setattr(rules, kind, tuple(one.to(DEVICE) for one in value))
    source_BS = torch.zeros(3, 5, dtype=torch.long)
    with torch.no_grad():
        state: State = model.condition(source_BS, source_BS == 0)
        logprobs_BV, state = model.step(source_BS[:, 0], state)
        logprobs_BV, state = logprobs_BV.to(DEVICE), state.to(DEVICE)
        model.to(DEVICE)
        beams, logprobs_BV = begin(logprobs_BV, state, rules, [9, 4, 6], 4)
        with no_waiting():
            extend(beams, rules, logprobs_BV, beams.state)
            after = advance(model.step, beams, rules)
    theirs = beams.state.flatten()
    shared = {k for k, tensor in after.state.flatten().items() if tensor is theirs[k]}
    assert shared == {"memory", "keys", "mask", "summary"} & theirs.keys()
