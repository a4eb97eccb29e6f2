"""C12: its rules on made-up rows, and the share of letters that are right."""

from __future__ import annotations

import random

import pytest

from elman.lab.c12_attention import EXPERIMENT, drawn, fall, share_right
from elman.lab.verdicts import answers, joint


def rows(none: float, dot: float, additive: float) -> list[dict[str, object]]:
    """The share that is right at the longest length, by attention; at 3 letters all is right."""
    return [
        {"seed": seed, "attention": attention, "length": length, "share": share}
        for seed in range(5)
        for attention, last in (("none", none), ("dot", dot), ("additive", additive))
        for length, share in ((3, 1.0), (12, last))
    ]


def test_it_holds_and_fails_by_its_rules() -> None:
    assert joint(answers(EXPERIMENT, rows(0.4, 0.95, 0.99))) == "holds"
    assert joint(answers(EXPERIMENT, rows(0.9, 0.95, 0.99))) == "does not hold here"
    assert joint(answers(EXPERIMENT, rows(0.4, 0.50, 0.99))) == "does not hold here"


def test_the_fall_is_from_three_letters_to_the_longest() -> None:
    some = [
        {"attention": "none", "length": length, "share": share}
        for length, share in ((1, 0.9), (3, 0.8), (6, 0.7), (12, 0.3))
    ]
    assert fall(some, "none") == pytest.approx(0.5)


def test_letters_count_where_they_stand() -> None:
    assert share_right(["abc"], ["cba"]) == 1.0
    assert share_right(["abc"], ["cb"]) == pytest.approx(2 / 3)
    assert share_right(["abc"], ["xcba"]) == 0.0
    assert share_right(["ab", "abcd"], ["ba", ""]) == pytest.approx(2 / 6)


def test_a_drawn_string_has_its_length() -> None:
    assert len(drawn(random.Random(1), 7)) == 7
