"""Tasks on torch's threads: every part is done once, whatever the size of the team."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from elman.nn.kernels import mkl, team

pytestmark = pytest.mark.skipif(
    not mkl.available(), reason="numba is missing, or torch has no MKL here"
)


@team.Task
def count(given: team.Given) -> None:
    """Add one to each row of the parts at hand."""
    rows = team.floats(given, 1)
    for part in range(team.thread_number(), team.numbers(given)[0], team.team_size()):
        for row in range(team.edge(given, part), team.edge(given, part + 1)):
            rows[0, row, 0] += np.float32(1.0)


@pytest.mark.parametrize("num_threads", [1, 2, 7])
@pytest.mark.parametrize("num_parts", [1, 3, 17])
def test_every_row_is_worked_on_once(
    num_threads: int, num_parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)
    rows = torch.zeros(17, 1)
    team.share(count, 17, num_parts, [rows])
    assert (rows == 1).all()
