from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch

from elman.base.errors import ElmanError, UsageError
from elman.decode.options import DecodeOptions
from elman.decode.sample import Step, sample

Make = Callable[..., Any]


def by_row(steps: Any) -> dict[int, list[Step]]:
    rows = defaultdict(list)
    for step in steps:
        rows[step.row].append(step)
    return dict(rows)


def test_greedy_takes_the_most_likely_token_each_time(table_lm: Make) -> None:
    model = table_lm()
    steps = list(sample(model, [[2]], DecodeOptions(max_tokens=5, greedy=True), boundary_id=0))
    before, last = 0, 2
    for step in steps:
        distribution_V = model.logprobs_VVV[before, last]
        assert step.token == int(distribution_V.argmax())
        assert step.logprob == pytest.approx(float(distribution_V.max()))
        before, last = last, step.token
    assert [step.finish_reason for step in steps] == [None] * 4 + ["length"]


def test_a_row_does_not_depend_on_its_neighbours(table_lm: Make) -> None:
    model = table_lm()
    prompts = [[1], [2, 3, 4], [], [5, 1]]
    config = DecodeOptions(max_tokens=12, seed=7, top_p=0.9)
    together = by_row(sample(model, prompts, config, boundary_id=0, end_ids={3}))
    for row, prompt in enumerate(prompts):
        alone_config = DecodeOptions(max_tokens=12, seed=7 + row, top_p=0.9)
        alone = by_row(sample(model, [prompt], alone_config, boundary_id=0, end_ids={3}))[0]
        assert [(s.token, s.finish_reason) for s in alone] == [
            (s.token, s.finish_reason) for s in together[row]
        ]


def test_several_samples_begin_with_those_of_fewer(table_lm: Make) -> None:
    model = table_lm()
    few = by_row(
        sample(model, [[1]], DecodeOptions(num_samples=2, seed=1, max_tokens=8), boundary_id=0)
    )
    many = by_row(
        sample(model, [[1]], DecodeOptions(num_samples=5, seed=1, max_tokens=8), boundary_id=0)
    )
    assert few == {row: many[row] for row in few}
    assert len({tuple(s.token for s in steps) for steps in many.values()}) > 1


def test_without_a_seed_every_call_differs(table_lm: Make) -> None:
    config = DecodeOptions(max_tokens=40)
    drawn = [
        tuple(step.token for step in sample(table_lm(), [[]], config, boundary_id=0))
        for _ in range(2)
    ]
    assert drawn[0] != drawn[1]


def test_rows_that_ended_leave_the_batch(table_lm: Make) -> None:
    model = table_lm()
    config = DecodeOptions(max_tokens=30, num_samples=8, seed=3)
    rows = by_row(sample(model, [[1]], config, boundary_id=0, end_ids={2}))
    for steps in rows.values():
        assert all(step.token != 2 for step in steps[:-1])
        assert steps[-1].finish_reason == ("stop" if steps[-1].token == 2 else "length")
    lengths = [len(steps) for steps in rows.values()]
    stepped = model.batch_sizes[2:]  # after two for the prompt
    assert stepped == [sum(length > n for length in lengths) for n in range(1, len(stepped) + 1)]
    assert len(set(stepped)) > 1


def test_a_reader_can_stop_one_row(table_lm: Make) -> None:
    stopped: set[int] = set()
    config = DecodeOptions(max_tokens=6, num_samples=3, seed=0)
    lengths: Counter[int] = Counter()
    for step in sample(table_lm(), [[1]], config, boundary_id=0, stopped=stopped):
        lengths[step.row] += 1
        if step.row == 1 and lengths[1] == 2:
            stopped.add(1)
    assert lengths == {0: 6, 1: 2, 2: 6}


def test_draws_follow_the_distribution(table_lm: Make) -> None:
    model = table_lm(vocab_size=4)
    number = 4000
    config = DecodeOptions(max_tokens=1, num_samples=number, seed=11)
    counts = Counter(step.token for step in sample(model, [[2]], config, boundary_id=0))
    for token, probability in enumerate(model.logprobs_VVV[0, 2].exp().tolist()):
        deviation = math.sqrt(probability * (1 - probability) / number)
        assert abs(counts[token] / number - probability) < 4.5 * deviation


def test_a_token_that_is_ruled_out_is_never_drawn(table_of: Make) -> None:
    logits_VVV = torch.zeros(4, 4, 4)
    logits_VVV[..., 0] = logits_VVV[..., 3] = -torch.inf
    model = table_of(logits_VVV.log_softmax(dim=-1))
    config = DecodeOptions(max_tokens=1, num_samples=2000, seed=0)
    assert {step.token for step in sample(model, [[]], config, boundary_id=0)} == {1, 2}


def test_penalties_count_generated_tokens_and_not_the_prompt(table_of: Make) -> None:
    model = table_of(torch.tensor([0.4, 0.35, 0.25]).log().expand(3, 3, 3))
    config = DecodeOptions(max_tokens=6, greedy=True, presence_penalty=2.0)
    tokens = [step.token for step in sample(model, [[0, 0]], config, boundary_id=0)]
    assert tokens == [0, 1, 2, 0, 0, 0]
    config = DecodeOptions(max_tokens=6, greedy=True, frequency_penalty=2.0)
    tokens = [step.token for step in sample(model, [[0, 0]], config, boundary_id=0)]
    assert tokens == [0, 1, 2, 0, 1, 2]


def test_logprobs_and_alternatives_are_the_models_own(table_lm: Make) -> None:
    model = table_lm()
    config = DecodeOptions(max_tokens=1, temperature=0.3, top_k=1, logit_bias={4: 100.0})
    (step,) = sample(model, [[2]], config, boundary_id=0, num_alternatives=3)
    distribution_V = model.logprobs_VVV[0, 2]
    assert step.token == 4
    assert step.logprob == pytest.approx(float(distribution_V[4]))
    values, tokens = distribution_V.topk(3)
    assert [token for token, _ in step.alternatives] == tokens.tolist()
    assert [value for _, value in step.alternatives] == pytest.approx(values.tolist())


@pytest.mark.parametrize("logit", [-math.inf, math.nan])
@pytest.mark.parametrize("greedy", [True, False])
def test_no_possible_token_is_an_error_and_not_a_nan(
    table_of: Make, logit: float, greedy: bool
) -> None:
    model = table_of(torch.full((3, 3, 3), logit))
    with pytest.raises(ElmanError, match="no token can follow"):
        list(
            sample(
                model, [[]], DecodeOptions(greedy=greedy, top_p=0.9, temperature=0.5), boundary_id=0
            )
        )


def test_gradients_of_the_caller_stay_on_between_steps(table_lm: Make) -> None:
    for _ in sample(table_lm(), [[1]], DecodeOptions(max_tokens=2), boundary_id=0):
        assert torch.is_grad_enabled()


def test_no_prompts_give_no_steps_and_beams_are_not_sampled(table_lm: Make) -> None:
    assert list(sample(table_lm(), [], DecodeOptions(), boundary_id=0)) == []
    with pytest.raises(UsageError, match="beam"):
        list(sample(table_lm(), [[]], DecodeOptions(beam_size=2), boundary_id=0))
