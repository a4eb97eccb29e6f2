"""Loops on torch's threads: every part is done once, and arguments are checked by name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
import torch

from elman.nn.kernels import mkl
from elman.nn.kernels.team import (
    Floats2,
    Int64s,
    Records,
    barrier,
    pooled_loop,
    team_size,
    thread_number,
)

pytestmark = pytest.mark.skipif(
    not mkl.available(), reason="numba is missing, or torch has no MKL here"
)


@pooled_loop
def count(rows: Floats2, added: int, first: int, last: int) -> None:
    for row in range(first, last):
        rows[row, 0] += np.float32(added)


POINTS = Records("x", "y")


@pooled_loop
def add_up(points: Annotated[Any, POINTS], sums: Int64s, total: Int64s) -> None:
    """Without `first` and `last`: called once by each thread."""
    for i in range(thread_number(), len(points), team_size()):
        sums[i] = points[i].x * points[i].y
    barrier()
    if thread_number() == 0:
        for i in range(len(sums)):
            total[0] += sums[i]


@pytest.mark.parametrize("num_threads", [1, 2, 7])
@pytest.mark.parametrize("num_parts", [1, 3, 17])
def test_every_row_is_worked_on_once(num_threads: int, num_parts: int) -> None:
    rows = torch.zeros(17, 1)
    count(num_rows=17, num_parts=num_parts, num_threads=num_threads, rows=rows, added=2)
    assert (rows == 2).all()


@pytest.mark.parametrize("num_threads", [1, 3])
def test_threads_meet_and_records_have_names(num_threads: int) -> None:
    points = np.array([(i, i + 1) for i in range(9)], POINTS.dtype)
    sums, total = torch.zeros(9, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    arguments = {"points": points, "sums": sums, "total": total}
    add_up(num_rows=3, num_parts=3, num_threads=num_threads, **arguments)
    assert total.item() == sum(i * (i + 1) for i in range(9))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": torch.zeros(3, 1)}, "the loop count needs added"),
        ({"rows": torch.zeros(3, 1), "added": 1, "row": 2}, "the loop count takes no 'row'"),
        ({"rows": torch.zeros(3), "added": 1}, "of 2 axes and float32, not \\(3,\\) of float32"),
        ({"rows": torch.zeros(3, 1).double(), "added": 1}, "not \\(3, 1\\) of float64"),
        ({"rows": torch.zeros(2, 3).t(), "added": 1}, "with gaps"),
    ],
)
def test_wrong_arguments_raise_before_anything_runs(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        count(num_rows=3, num_parts=1, **arguments)
    assert not arguments["rows"].any()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the system does not list threads")
def test_fewer_parts_than_threads_end_no_thread() -> None:
    """GOMP ends the threads that a smaller team leaves out, and starts new ones for the next."""
    rows, before = torch.zeros(8, 1), torch.get_num_threads()
    torch.set_num_threads(5)
    try:
        found = []
        for num_parts in (5, 3, 1, 5):
            count(num_rows=8, num_parts=num_parts, rows=rows, added=1)
            found.append({path.name for path in Path("/proc/self/task").iterdir()})
        assert found[1:] == found[:1] * 3
        assert (rows == 4).all()
    finally:
        torch.set_num_threads(before)
