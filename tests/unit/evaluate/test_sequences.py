from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elman.batches.buckets import batches_by_length
from elman.evaluate.sequences import exp, score_tokens
from elman.models.recurrent import RecurrentLM
from elman.nn.state import State

Build = Callable[[int], RecurrentLM]


class OnlyLM:
    """The same model with nothing but the interface that every language model has."""

    def __init__(self, model: RecurrentLM) -> None:
        self.vocab_size = model.vocab_size
        self.initial_state = model.initial_state
        self.step = model.step
        self.logprobs = model.logprobs


def expected_of(model: RecurrentLM, tokens: list[int]) -> tuple[list[float], torch.Tensor]:
    """Log probabilities of the tokens after boundary 0, and the distributions behind them."""
    with torch.no_grad():
        hidden, _ = model.hidden(torch.tensor([[0, *tokens]]), model.initial_state(1))
        logprobs_TV = model.head.logprobs_all(hidden.dropped_BTH[0, :-1])
    return [float(logprobs_TV[i, token]) for i, token in enumerate(tokens)], logprobs_TV


def logprob(model: Any, tokens: list[int]) -> float:
    (scores,), _ = score_tokens(model, [tokens], previous=0)
    assert len(scores.logprobs) == len(tokens)
    return math.fsum(scores.logprobs)


def test_a_sequence_is_scored_by_the_chain_rule(network: Build) -> None:
    model = network(9)
    tokens = [3, 1, 4, 1, 5, 8, 2, 6]
    logprobs, _ = expected_of(model, tokens)
    assert logprob(model, tokens) == pytest.approx(sum(logprobs), rel=1e-5)


def test_the_probability_of_all_continuations_is_one(network: Build) -> None:
    model = network(4)
    total = sum(
        math.exp(logprob(model, [a, b, c])) for a in range(4) for b in range(4) for c in range(4)
    )
    assert total == pytest.approx(1.0, abs=1e-5)


def test_the_empty_sequence_is_certain(network: Build) -> None:
    assert logprob(network(4), []) == 0.0


def test_an_impossible_sequence_has_infinite_perplexity() -> None:
    assert exp(math.inf) == exp(1e6) == math.inf


SEQUENCES = [[1, 2, 3, 4, 5], [], [6, 6], [2, 4, 2, 4, 2, 4, 1], [0]]


@pytest.mark.parametrize("neural", [True, False])
def test_side_by_side_is_one_by_one(network: Build, neural: bool) -> None:
    network_of_7 = network(7)
    model: Any = network_of_7 if neural else OnlyLM(network_of_7)
    members_V = torch.tensor([False, True, False, False, True, True, False])
    scored, _ = score_tokens(model, SEQUENCES, previous=0, members_V=members_V)
    plain, _ = score_tokens(model, SEQUENCES, previous=0)
    for tokens, scores, plain_scores in zip(SEQUENCES, scored, plain, strict=True):
        logprobs, logprobs_TV = expected_of(network_of_7, tokens)
        assert scores.logprobs == pytest.approx(logprobs, abs=1e-5)
        assert plain_scores.logprobs == pytest.approx(logprobs, abs=1e-5)
        assert plain_scores.member_logprobs is None
        expected = logprobs_TV[:, members_V].logsumexp(dim=-1).tolist()
        assert scores.member_logprobs == pytest.approx(expected, abs=1e-5)


def test_long_sequences_are_read_in_chunks_and_can_go_on(
    network: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elman.evaluate.sequences.CHUNK_LENGTH", 5)
    model = network(9)
    tokens = torch.randint(9, (23,), generator=torch.Generator().manual_seed(0)).tolist()
    whole, _ = score_tokens(model, [tokens], previous=0)
    first, state = score_tokens(model, [tokens[:11]], previous=0)
    second, _ = score_tokens(model, [tokens[11:]], previous=tokens[10], state=state)
    assert first[0].logprobs + second[0].logprobs == pytest.approx(whole[0].logprobs, abs=1e-5)
    assert whole[0].logprobs == pytest.approx(expected_of(model, tokens)[0], abs=1e-5)


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(1, 100))
def test_every_index_is_in_exactly_one_group_of_bounded_size(lengths: list[int], size: int) -> None:
    batches = list(batches_by_length(lengths, size))
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= size


def test_impossible_tokens_give_no_nan() -> None:
    class Certain:
        """Always expects token 1."""

        vocab_size = 3

        def initial_state(self, batch_size: int) -> State:
            return State({"h": torch.zeros(batch_size, 1)})

        def step(self, tokens_B: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
            row = torch.tensor([-math.inf, 0.0, -math.inf])
            return row.expand(len(tokens_B), -1), state

        def logprobs(self, tokens_BT: Any, targets_BT: Any, state: State) -> tuple[Any, State]:
            return torch.where(targets_BT == 1, 0.0, -math.inf), state

    model: Any = Certain()
    members_V = torch.tensor([True, False, True])
    (scores,), _ = score_tokens(model, [[1, 2]], previous=0, members_V=members_V)
    assert scores.logprobs == [0.0, -math.inf]
    assert scores.member_logprobs == [-math.inf, -math.inf]
    assert logprob(model, [1, 2]) == -math.inf
