from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elman.base.errors import ElmanError
from elman.decode.beam import Hypothesis, beam_search, normalise
from elman.decode.config import DecodeConfig
from elman.decode.sample import sample

Make = Callable[..., Any]


def exhaustive(
    model: Any, prompt: list[int], config: DecodeConfig, end_ids: set[int]
) -> list[Hypothesis]:
    """Every continuation that ends with an end token, or runs to the last allowed one without."""
    hypotheses = []
    for length in range(1, config.max_tokens + 1):
        for tokens in itertools.product(range(model.vocab_size), repeat=length):
            ended = tokens[-1] in end_ids
            if any(token in end_ids for token in tokens[:-1]) or not (
                ended or length == config.max_tokens
            ):
                continue
            before, logprob = [0, 0, *prompt][-2:], 0.0
            for token in tokens:
                logprob += float(model.logprobs_VVV[before[0], before[1], token])
                before = [before[1], token]
            score = normalise(logprob, length, config.length_penalty)
            hypotheses.append(Hypothesis(tokens, logprob, score, "stop" if ended else "length"))
    return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)


@given(
    st.integers(0, 1000),
    st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    st.sampled_from([set(), {1}, {1, 2}]),
)
@settings(deadline=None, max_examples=25)
def test_a_wide_beam_equals_exhaustive_search(
    table_lm: Make, seed: int, penalty: float, ends: set[int]
) -> None:
    model = table_lm(vocab_size=3, seed=seed)
    config = DecodeConfig(max_tokens=4, beam_size=81, num_samples=10, length_penalty=penalty)
    found = beam_search(model, [2], config, boundary_id=0, end_ids=ends)
    expected = exhaustive(model, [2], config, ends)
    assert [h.score for h in found] == pytest.approx([h.score for h in expected[:10]], rel=1e-5)
    # By name and not by rank: different orders of the same trigrams are exactly as probable.
    by_tokens = {h.tokens: h for h in expected}
    assert len({h.tokens for h in found}) == min(10, len(expected))
    for hypothesis in found:
        assert hypothesis.score == pytest.approx(by_tokens[hypothesis.tokens].score, rel=1e-5)
        assert hypothesis.logprob == pytest.approx(by_tokens[hypothesis.tokens].logprob, rel=1e-5)
        assert hypothesis.finish_reason == by_tokens[hypothesis.tokens].finish_reason


def test_the_best_whole_can_differ_from_the_greedy_choice(table_of: Make) -> None:
    probabilities_VVV = torch.full((3, 3, 3), 1 / 3)
    probabilities_VVV[0, 0] = torch.tensor([0.0, 0.55, 0.45])
    probabilities_VVV[0, 2] = torch.tensor([0.9, 0.05, 0.05])
    model = table_of(probabilities_VVV.log())
    (greedy, _) = sample(model, [[]], DecodeConfig(max_tokens=2, greedy=True), boundary_id=0)
    (best,) = beam_search(model, [], DecodeConfig(max_tokens=2, beam_size=2), boundary_id=0)
    assert greedy.token == 1
    assert best.tokens == (2, 0)
    assert best.logprob == pytest.approx(math.log(0.45 * 0.9))


def test_a_beam_of_one_is_greedy(table_lm: Make) -> None:
    model = table_lm()
    (found,) = beam_search(model, [3], DecodeConfig(max_tokens=7), boundary_id=0)
    steps = list(sample(model, [[3]], DecodeConfig(max_tokens=7, greedy=True), boundary_id=0))
    assert found.tokens == tuple(step.token for step in steps)
    assert found.logprob == pytest.approx(sum(step.logprob for step in steps))


def test_length_normalisation_is_the_documented_formula() -> None:
    assert normalise(-3.0, 7, 0.0) == -3.0
    assert normalise(-3.0, 7, 1.0) == pytest.approx(-1.5)
    assert normalise(-3.0, 1, 0.6) == -3.0


def test_the_search_ends_early_only_when_nothing_can_overtake(table_of: Make) -> None:
    # Ending at once has probability 0.6; the longer way has 0.4, then certainty, and overtakes when
    # its length is rewarded enough.
    probabilities_VVV = torch.zeros(3, 3, 3)
    probabilities_VVV[..., 2] = 1.0
    probabilities_VVV[0, 0] = torch.tensor([0.0, 0.6, 0.4])
    model = table_of(probabilities_VVV.log())
    short, long = (
        beam_search(
            model,
            [],
            DecodeConfig(max_tokens=40, beam_size=1, length_penalty=p),
            boundary_id=0,
            end_ids={1},
        )[0]
        for p in (0.2, 1.0)
    )
    assert short.tokens == (1,)
    assert len(long.tokens) == 40
    assert long.finish_reason == "length"
    assert len(model.batch_sizes) == 1 + 39 + 1  # the short one needed a single step


def test_bias_bans_tokens_and_renormalises(table_of: Make) -> None:
    model = table_of(torch.tensor([0.5, 0.25, 0.25]).log().expand(3, 3, 3))
    config = DecodeConfig(max_tokens=2, beam_size=2, logit_bias={0: -100.0})
    (best,) = beam_search(model, [], config, boundary_id=0)
    assert 0 not in best.tokens
    assert best.logprob == pytest.approx(2 * math.log(0.5))


def test_no_possible_continuation_is_an_error(table_of: Make) -> None:
    model = table_of(torch.full((3, 3, 3), -torch.inf))
    with pytest.raises(ElmanError, match="no token can follow"):
        beam_search(model, [], DecodeConfig(beam_size=2), boundary_id=0)
