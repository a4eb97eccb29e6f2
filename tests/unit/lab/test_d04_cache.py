"""D4: its rules on made-up rows, and sums by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elman.lab.d04_cache import EXPERIMENT, Cache, ways
from elman.lab.verdicts import answers, joint


def rows(
    off_one: float = 1e-9, flattery: float = 0.2, added: float = 0.1, mixed: float = -0.1
) -> list[dict[str, object]]:
    found = []
    for cache, gain in (("own", {"mixed": 0.3, "added": 0.4}), ("other", {})):
        gain = gain or {"mixed": mixed, "added": added}
        for way, off, flattered in (
            ("no cache", 0.0, 0.0), ("mixed", off_one, 0.0), ("added", 0.2, flattery)
        ):  # fmt: skip
            reported = 5.0 - gain.get(way, 0.0)
            row = {"cache": cache, "way": way, "reported": reported, "off_one": off}
            found.append({**row, "true": reported + flattered})
    return [{"seed": seed, **row} for seed in range(5) for row in found]


def test_it_holds_and_fails_by_its_rules() -> None:
    assert joint(answers(EXPERIMENT, rows())) == "holds"
    assert joint(answers(EXPERIMENT, rows(off_one=0.2))) == "does not hold here"
    assert joint(answers(EXPERIMENT, rows(flattery=0.0))) == "does not hold here"
    assert joint(answers(EXPERIMENT, rows(added=-0.1))) == "does not hold here"
    assert joint(answers(EXPERIMENT, rows(mixed=0.1))) == "does not hold here"


def test_the_effects_by_hand() -> None:
    effects = [finding.mean for finding in answers(EXPERIMENT, rows())]
    assert effects == pytest.approx([1e-9, 0.2, 0.1, -0.1])


@given(st.floats(0.0, 1.0), st.lists(st.integers(0, 4), min_size=1, max_size=12))
def test_only_the_mixture_sums_to_one(weight: float, words: list[int]) -> None:
    cache = Cache(5, size=3)
    for word in words:
        cache.add(word)
    found = ways(torch.full((5,), 0.2, dtype=torch.float64), cache.probabilities(), weight)
    assert float(found["mixed"].sum()) == pytest.approx(1.0)
    assert float(found["added"].sum()) == pytest.approx(1.0 + weight)


def test_a_cache_forgets() -> None:
    cache = Cache(3, size=2)
    for word in (0, 1, 1):
        cache.add(word)
    assert cache.probabilities().tolist() == [0.0, 1.0, 0.0]
    assert math.log(1.2) == pytest.approx(EXPERIMENT.questions[1].prediction)
