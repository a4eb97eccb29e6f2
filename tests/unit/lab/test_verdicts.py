"""Intervals and rules on made-up effects."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elman.lab.claims import experiments
from elman.lab.experiment import Question
from elman.lab.verdicts import FAILS, HOLDS, UNKNOWN, answer, interval, joint, verdict

effects = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40)


@given(effects)
def test_the_interval_contains_the_mean(found: list[float]) -> None:
    mean, low, high = interval(found)
    assert low <= mean <= high or mean == pytest.approx(low) or mean == pytest.approx(high)


def test_the_interval_is_students() -> None:
    mean, low, high = interval([1.0, 2.0, 3.0])
    half = 4.303 * 1.0 / math.sqrt(3)
    assert (mean, low, high) == pytest.approx((2.0, 2.0 - half, 2.0 + half))


def test_one_seed_cannot_tell() -> None:
    assert verdict(*interval([5.0])[1:], minimum=1.0, rule="above") == UNKNOWN


def test_seeds_without_an_effect_cannot_tell() -> None:
    assert verdict(*interval([5.0, math.nan])[1:], minimum=1.0, rule="above") == UNKNOWN


def test_an_infinite_effect_holds() -> None:
    assert verdict(*interval([math.inf, math.inf])[1:], minimum=1.0, rule="above") == HOLDS


@pytest.mark.parametrize(
    ("rule", "low", "high", "expected"),
    [
        ("above", 1.1, 2.0, HOLDS),
        ("above", 0.5, 2.0, UNKNOWN),
        ("above", 0.1, 0.9, FAILS),
        ("below", 0.1, 0.9, HOLDS),
        ("below", 0.5, 2.0, UNKNOWN),
        ("below", 1.1, 2.0, FAILS),
        ("within", -0.9, 0.9, HOLDS),
        ("within", 0.5, 2.0, UNKNOWN),
        ("within", -3.0, -1.1, FAILS),
    ],
)
def test_rules(rule: str, low: float, high: float, expected: str) -> None:
    assert verdict(low, high, 1.0, rule) == expected  # type: ignore[arg-type]


ALL_QUESTIONS = [
    (experiment.id, question) for experiment in experiments() for question in experiment.questions
]


@pytest.mark.parametrize(("id", "question"), ALL_QUESTIONS)
def test_each_question_can_come_out_each_way(id: str, question: Question) -> None:
    size = abs(question.minimum) + 1.0
    far = {"above": size, "below": -size, "within": 0.0}[question.rule]
    other = {"above": -size, "below": size, "within": 3 * size}[question.rule]
    asked = replace(question, effect=lambda rows: rows[0]["effect"])
    for values, expected in (
        ([far] * 5, HOLDS),
        ([other] * 5, FAILS),
        ([far, other, far, other, far], UNKNOWN),
    ):
        rows = {seed: [{"effect": value}] for seed, value in enumerate(values)}
        assert answer(asked, rows).verdict == expected, id


def test_a_claim_holds_if_all_parts_do() -> None:
    parts = {each: [{"effect": each}] for each in range(3)}
    question = Question(
        name="", unit="", prediction=1, minimum=1, effect=lambda rows: float(rows[0]["effect"])
    )
    unknown = answer(question, parts)
    holds = replace(unknown, verdict=HOLDS)
    assert joint([holds, holds]) == HOLDS
    assert joint([holds, unknown]) == UNKNOWN
    assert joint([unknown, replace(unknown, verdict=FAILS)]) == FAILS
