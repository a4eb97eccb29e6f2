from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elman.base.errors import ElmanError, UsageError
from elman.decode.beam import Hypothesis, beam_search
from elman.decode.beam_step import coverage, normalise
from elman.decode.options import DecodeOptions
from elman.decode.sample import sample
from elman.models.decoder import DecoderConfig
from elman.tasks.translation.model import SequenceToSequenceConfig

Make = Callable[..., Any]


def exhaustive(
    model: Any, prompt: list[int], config: DecodeOptions, end_ids: set[int]
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
@settings(max_examples=25)
def test_a_wide_beam_equals_exhaustive_search(
    table_lm: Make, seed: int, penalty: float, ends: set[int]
) -> None:
    model = table_lm(vocab_size=3, seed=seed)
    config = DecodeOptions(max_tokens=4, beam_size=81, num_samples=10, length_penalty=penalty)
    (found,) = beam_search(model, [[2]], config, boundary_id=0, end_ids=ends)
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
    (greedy, _) = sample(model, [[]], DecodeOptions(max_tokens=2, greedy=True), boundary_id=0)
    ((best,),) = beam_search(model, [[]], DecodeOptions(max_tokens=2, beam_size=2), boundary_id=0)
    assert greedy.token == 1
    assert best.tokens == (2, 0)
    assert best.logprob == pytest.approx(math.log(0.45 * 0.9))


def test_a_beam_of_one_is_greedy(table_lm: Make) -> None:
    model = table_lm()
    ((found,),) = beam_search(model, [[3]], DecodeOptions(max_tokens=7), boundary_id=0)
    steps = list(sample(model, [[3]], DecodeOptions(max_tokens=7, greedy=True), boundary_id=0))
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
            [[]],
            DecodeOptions(max_tokens=40, beam_size=1, length_penalty=p),
            boundary_id=0,
            end_ids={1},
        )[0][0]
        for p in (0.2, 1.0)
    )
    assert short.tokens == (1,)
    assert len(long.tokens) == 40
    assert long.finish_reason == "length"
    assert len(model.batch_sizes) == 1 + 39 + 1  # the short one needed a single step


def test_bias_bans_tokens_and_renormalises(table_of: Make) -> None:
    model = table_of(torch.tensor([0.5, 0.25, 0.25]).log().expand(3, 3, 3))
    config = DecodeOptions(max_tokens=2, beam_size=2, logit_bias={0: -100.0})
    ((best,),) = beam_search(model, [[]], config, boundary_id=0)
    assert 0 not in best.tokens
    assert best.logprob == pytest.approx(2 * math.log(0.5))


def test_no_possible_continuation_is_an_error(table_of: Make) -> None:
    model = table_of(torch.full((3, 3, 3), -torch.inf))
    with pytest.raises(ElmanError, match="no token can follow"):
        beam_search(model, [[]], DecodeOptions(beam_size=2), boundary_id=0)


def test_prompts_side_by_side_are_searched_as_each_alone(table_lm: Make) -> None:
    model = table_lm(vocab_size=5, seed=3)
    config = DecodeOptions(max_tokens=9, beam_size=3, num_samples=3, length_penalty=1.0)
    prompts, limits = [[2], [], [4, 3, 1], [3]], [9, 2, 5, 1]
    together = beam_search(model, prompts, config, boundary_id=0, end_ids={1}, limits=limits)
    for prompt, limit, found in zip(prompts, limits, together, strict=True):
        (alone,) = beam_search(model, [prompt], config, boundary_id=0, end_ids={1}, limits=[limit])
        assert [h.tokens for h in found] == [h.tokens for h in alone]
        assert [h.score for h in found] == pytest.approx([h.score for h in alone])
        assert max(len(h.tokens) for h in found) <= limit


def test_coverage_by_hand() -> None:
    attended_BS = torch.tensor([[0.5, 2.0, 0.1], [1.0, 0.0, 1.0]])
    mask_BS = torch.tensor([[True, True, False], [True, True, True]])
    found = coverage(attended_BS, mask_BS)
    assert found.tolist() == pytest.approx([math.log(0.5), math.log(1e-9)])


def test_a_coverage_penalty_needs_attention(table_lm: Make) -> None:
    with pytest.raises(UsageError, match="needs a model with attention"):
        beam_search(table_lm(), [[]], DecodeOptions(coverage_penalty=0.2), boundary_id=0)


def _translator(attention: str) -> Any:
    torch.manual_seed(5)
    decoder = DecoderConfig(hidden_size=8, embedding_size=6, attention=attention)  # type: ignore[arg-type]
    model = SequenceToSequenceConfig(decoder=decoder).build(4)
    for parameter in model.parameters():  # as random as can be: far from uniform
        torch.nn.init.normal_(parameter, std=1.0)
    return model.double().eval()


@pytest.mark.parametrize("attention", ["dot", "additive"])
def test_beams_of_a_translator_equal_enumeration_with_both_penalties(attention: str) -> None:
    """Two sources of different lengths side by side, every target up to four tokens."""
    model = _translator(attention)
    source_BS = torch.tensor([[3, 1, 2, 0], [2, 0, 0, 0]])
    mask_BS = torch.tensor([[True] * 4, [True, True, False, False]])
    config = DecodeOptions(
        max_tokens=4, beam_size=108, num_samples=8, length_penalty=0.8, coverage_penalty=0.7
    )
    with torch.no_grad():
        state = model.condition(source_BS, mask_BS)
        found = beam_search(model, [[], []], config, boundary_id=0, end_ids={0}, state=state)
        for row, length in ((0, 4), (1, 2)):
            alone = model.condition(source_BS[row : row + 1, :length])
            scored = {}
            for size in range(1, 5):
                for tokens in itertools.product(range(4), repeat=size):
                    if 0 in tokens[:-1] or not (tokens[-1] == 0 or size == 4):
                        continue
                    read_BT = torch.tensor([[0, *tokens[:-1]]])
                    logprobs_BT, _ = model.logprobs(read_BT, torch.tensor([tokens]), alone)
                    weights_BTS, _ = model.decoder.weights(read_BT, alone)
                    seen = [min(1.0, a) for a in weights_BTS[0].sum(dim=0).tolist()]
                    scored[tokens] = float(logprobs_BT.sum()) / ((5 + size) / 6) ** 0.8
                    scored[tokens] += 0.7 * math.fsum(map(math.log, seen))
            best = sorted(scored.values(), reverse=True)[:8]
            assert [h.score for h in found[row]] == pytest.approx(best, rel=1e-6)
            for hypothesis in found[row]:
                assert hypothesis.score == pytest.approx(scored[hypothesis.tokens], rel=1e-6)


def test_sampling_goes_on_from_a_condition() -> None:
    """A greedy draw from a given state is the beam of one from it."""
    model = _translator("bilinear")
    state = model.condition(torch.tensor([[3, 1, 2, 0], [2, 2, 1, 0]]))
    config = DecodeOptions(max_tokens=5, greedy=True)
    steps = list(sample(model, [[], []], config, boundary_id=0, end_ids={0}, state=state))
    found = beam_search(
        model, [[], []], DecodeOptions(max_tokens=5), boundary_id=0, end_ids={0}, state=state
    )
    # A beam of one goes on past an end that is not the best yet, so the comparison is of its start.
    for row, (best,) in enumerate(found):
        drawn = [step.token for step in steps if step.row == row]
        assert drawn[: len(best.tokens)] == list(best.tokens[: len(drawn)])


def test_an_unlikely_end_is_no_result(table_of: Make) -> None:
    """Ending at once has probability 0.1, each of two words 0.45: a beam of two takes the words."""
    probabilities_VVV = torch.zeros(4, 4, 4)
    probabilities_VVV[..., 1] = 0.1
    probabilities_VVV[..., 2:] = 0.45
    model = table_of(probabilities_VVV.log())
    config = DecodeOptions(max_tokens=6, beam_size=2, length_penalty=0.0)
    ((best,),) = beam_search(model, [[]], config, boundary_id=0, end_ids={1})
    assert len(best.tokens) == 6
    assert 1 not in best.tokens
    wide = DecodeOptions(max_tokens=6, beam_size=3, length_penalty=0.0)
    ((best,),) = beam_search(model, [[]], wide, boundary_id=0, end_ids={1})
    assert best.tokens == (1,)
