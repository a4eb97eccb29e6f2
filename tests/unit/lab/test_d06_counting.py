"""D6: its rules on made-up surprisals, and counts by hand."""

from __future__ import annotations

import math

import pytest
import torch

from elman.lab.d06_counting import EXPERIMENT, MIN_COUNTS, countings, sentences
from elman.lab.verdicts import answers, joint


def rows(end: float = 0.5, unknown: float = 9.0, fall: float = 1.0) -> list[dict[str, object]]:
    """Ten words of 5 nats, an end and an unknown word."""
    surprisals_N = torch.tensor([5.0] * 10 + [end, unknown])
    places_N = torch.arange(12)
    found = countings(surprisals_N, places_N == 10, places_N == 11)
    return [
        {"seed": seed, "min_count": min_count, "counting": name, "nats": nats - less}
        for seed in range(5)
        for min_count, less in ((MIN_COUNTS[0], 0.0), (MIN_COUNTS[-1], fall))
        for name, nats in found.items()
    ]


def test_it_holds_and_fails_by_its_rules() -> None:
    assert joint(answers(EXPERIMENT, rows())) == "holds"
    assert joint(answers(EXPERIMENT, rows(unknown=5.0))) == "does not hold here"
    assert joint(answers(EXPERIMENT, rows(fall=0.0))) == "does not hold here"
    every_token_an_end = [{**row, "nats": 5.0} for row in rows()]
    assert answers(EXPERIMENT, every_token_an_end)[0].verdict == "does not hold here"


def test_the_countings_by_hand() -> None:
    found = countings(
        torch.tensor([1.0, 2.0, 3.0, 6.0]),
        torch.tensor([False, True, False, False]),
        torch.tensor([False, False, False, True]),
    )
    assert list(found.values()) == pytest.approx([3.0, 10 / 3, 4.0, 2.0, 2.0])


def test_the_factor_is_of_perplexities() -> None:
    assert answers(EXPERIMENT, rows(fall=1.0))[2].mean == pytest.approx(math.e)


def test_sentences_end_before_capitals() -> None:
    assert sentences(["It is so. But e.g. this: No."]) == ["It is so.", "But e.g. this:", "No."]
