"""One thing is not several."""

from __future__ import annotations

import pytest

from elman.base.counting import counted


@pytest.mark.parametrize(
    ("number", "told"),
    [(0, "0 updates"), (1, "1 update"), (2000, "2,000 updates"), (1.0, "1 update"),
     (0.5, "0.5 updates")],
)  # fmt: skip
def test_a_number_of_things(number: float, told: str) -> None:
    assert counted(number, "update") == told
