"""The numbers of many streams are those that Python's generator gives each of them alone."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elman.decode import random_numbers
from elman.decode.random_numbers import NUMBERS, Generator, Numbers, next_numbers
from elman.nn.kernels.mersenne import AT_ONCE

SEEDS = [0, 1, 2, -7, 99, 2**32 - 1, 2**32, 2**32 + 1, 2**63, 2**64 - 1, *range(1000, 1020)]


def alone(seed: int, number: int) -> list[float]:
    generator = random.Random(seed)
    return [generator.random() for _ in range(number)]


@pytest.mark.parametrize("more", [[], [2**64, 2**200]])
def test_the_first_numbers_and_the_next(more: list[int]) -> None:
    seeds = [*SEEDS, *more]
    generators = [Generator(seed) for seed in seeds]
    found = np.concatenate([next_numbers(generators, AT_ONCE), next_numbers(generators, 3)], axis=1)
    assert found.tolist() == [alone(seed, AT_ONCE + 3) for seed in seeds]


@given(st.lists(st.tuples(st.integers(1, 8), st.randoms(use_true_random=False)), max_size=40))
@settings(max_examples=20)
def test_rows_come_go_and_return(turns: list[tuple[int, random.Random]]) -> None:
    numbers = Numbers()
    rows = [Generator(seed) for seed in range(20)]
    drawn: dict[Generator, list[float]] = {row: [] for row in rows}
    away: list[Generator] = []
    numbers.add(rows)
    for num_steps, chance in turns:
        coming = numbers.coming(num_steps)
        used = [chance.randint(0, num_steps) for _ in rows]
        for row, generator in enumerate(rows):
            drawn[generator] += (1.0 - coming[: used[row], row]).tolist()
        numbers.use(np.array(used, np.int64))
        left = [row for row in range(len(rows)) if chance.random() < 0.9]
        for row in set(range(len(rows))) - set(left):
            numbers.take_back(row)
            away.append(rows[row])
        rows = [rows[row] for row in left]
        numbers.keep(left)
        if away and chance.random() < 0.5:
            rows.append(away.pop())
            numbers.add(rows[-1:])
    for generator, mine in drawn.items():
        assert mine == alone(generator.seed, len(mine))


def test_without_a_compiler_the_numbers_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_numbers, "numba", None)
    found = next_numbers([Generator(seed) for seed in SEEDS], NUMBERS)
    assert found.tolist() == [alone(seed, NUMBERS) for seed in SEEDS]


def test_without_a_seed_every_stream_differs() -> None:
    many: Callable[[], Generator] = lambda: Generator(None)  # noqa: E731
    assert len(set(next_numbers([many() for _ in range(100)], 1)[:, 0].tolist())) == 100
