"""From effects to verdicts: the mean over seeds, its 95 % interval, and the rule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from elman.base.intervals import interval as interval
from elman.lab.experiment import Experiment, Question, Row, Rule

Verdict = Literal["holds", "does not hold here", "cannot tell"]
HOLDS: Verdict = "holds"
FAILS: Verdict = "does not hold here"
UNKNOWN: Verdict = "cannot tell"


@dataclass(frozen=True)
class Finding:
    """The answer to one question."""

    question: str
    unit: str
    rule: str
    prediction: float
    effects: tuple[float, ...]
    """One for each seed."""
    mean: float
    low: float
    high: float
    verdict: Verdict


def verdict(low: float, high: float, minimum: float, rule: Rule) -> Verdict:
    """Compare an interval with the smallest effect that counts."""
    if math.isnan(low) or math.isnan(high):
        return UNKNOWN
    if rule == "within":
        if -minimum < low and high < minimum:
            return HOLDS
        return FAILS if low > minimum or high < -minimum else UNKNOWN
    if rule == "below":
        low, high, minimum = -high, -low, -minimum
    if low > minimum:
        return HOLDS
    return FAILS if high < minimum else UNKNOWN


def answer(question: Question, rows_by_seed: dict[int, list[Row]]) -> Finding:
    """Decide one question."""
    effects = tuple(question.effect(rows) for _, rows in sorted(rows_by_seed.items()))
    mean, low, high = interval(effects)
    decided = verdict(low, high, question.minimum, question.rule)
    return Finding(
        question=question.name,
        unit=question.unit,
        rule=question.says(),
        prediction=question.prediction,
        effects=effects,
        mean=mean,
        low=low,
        high=high,
        verdict=decided,
    )


def answers(experiment: Experiment, rows: Sequence[Row]) -> list[Finding]:
    """Decide all questions."""
    by_seed = experiment.rows_by_seed(rows)
    return [answer(question, by_seed) for question in experiment.questions]


def joint(findings: Sequence[Finding]) -> Verdict:
    """The verdict on the claim: it holds if all its parts do, and fails if one does."""
    found = {finding.verdict for finding in findings}
    return HOLDS if found == {HOLDS} else FAILS if FAILS in found else UNKNOWN
