"""D1: its rules on made-up shares, and the text."""

from __future__ import annotations

import random

import pytest

from elman.lab.d01_truncation import EXPERIMENT, LONGEST, MARKS, TRUNCATED, WINDOW, T, line, text
from elman.lab.verdicts import answers, joint


def rows(truncated: float = 0.97, window: float = 0.5) -> list[dict[str, object]]:
    return [
        {"seed": seed, "model": model, "distance": distance, "share": share}
        for seed in range(5)
        for model, far in ((TRUNCATED, truncated), (WINDOW, window))
        for distance, share in ((T, 1.0), (T + 1, far), (LONGEST, far))
    ]


def test_it_holds_and_fails_by_its_rules() -> None:
    assert joint(answers(EXPERIMENT, rows())) == "holds"
    assert joint(answers(EXPERIMENT, rows(truncated=0.6))) == "does not hold here"
    assert joint(answers(EXPERIMENT, rows(window=0.9))) == "does not hold here"


def test_only_distances_beyond_t_count() -> None:
    assert answers(EXPERIMENT, rows(truncated=0.7))[0].mean == pytest.approx(0.7)


@pytest.mark.parametrize("distance", [2, 5, 30])
def test_the_mark_comes_again_at_its_distance(distance: int) -> None:
    words = line(random.Random(1), "red", distance).split()
    assert [i for i, word in enumerate(words) if word == "red"] == [0, distance]


def test_the_text_has_no_shorter_distances() -> None:
    for each in text(1, 10, 50):
        words = each.split()
        assert words[0] == words[-1]
        assert words[0] in MARKS
        assert 10 <= len(words) - 1 <= LONGEST
