"""From effects to verdicts: the mean over seeds, its 95 % interval, and the rule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from elman.lab.experiment import Experiment, Question, Row, Rule

Verdict = Literal["holds", "does not hold here", "cannot tell"]
HOLDS: Verdict = "holds"
FAILS: Verdict = "does not hold here"
UNKNOWN: Verdict = "cannot tell"

# Student's t: the 97.5 % points for 1, 2, 3, ... degrees of freedom.
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


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


def interval(effects: Sequence[float]) -> tuple[float, float, float]:
    """The mean and its 95 % interval; one effect alone has an infinite one."""
    number = len(effects)
    if not number or any(map(math.isnan, effects)):
        return math.nan, math.nan, math.nan
    if len(set(effects)) == 1 and number > 1:
        return effects[0], effects[0], effects[0]  # infinity, too
    mean = sum(effects) / number
    if number == 1 or not math.isfinite(mean):
        return mean, -math.inf, math.inf
    variance = sum((effect - mean) ** 2 for effect in effects) / (number - 1)
    half = (_T[number - 2] if number - 2 < len(_T) else 1.96) * math.sqrt(variance / number)
    return mean, mean - half, mean + half


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
