"""Timing programs and putting figures side by side."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from elman.base.errors import ElmanError
from elman.bench.measuring import Cost, in_turns, median, run_program
from elman.bench.rows import less_is_better, more_is_better

MIB = 1 << 20


def test_a_program_is_timed_by_itself(tmp_path: Path) -> None:
    here = bytearray(300 * MIB)  # this process is large, which must not show in the other
    here[::4096] = b"x" * len(here[::4096])
    source, sink = tmp_path / "in", tmp_path / "out"
    source.write_text("abc")
    program = "import sys; b = b'x' * (60 << 20); print(sys.stdin.read())"
    cost = run_program([sys.executable, "-c", program], stdin=source, stdout=sink)
    assert sink.read_text() == "abc\n"
    assert 60 * MIB < cost.peak_bytes < 250 * MIB
    assert cost.cpu_seconds > 0
    assert cost.seconds > 0
    del here


def test_a_program_that_fails_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ElmanError, match="failed: out of luck"):
        run_program([sys.executable, "-c", "import sys; sys.exit('out of luck')"])
    with pytest.raises(ElmanError, match="nowhere failed"):
        run_program([tmp_path / "nowhere"])


def test_works_take_turns() -> None:
    order: list[str] = []

    def work(name: str) -> Cost:
        order.append(name)
        return Cost(len(order), 1.0, 10 * len(order))

    costs = in_turns({name: lambda name=name: work(name) for name in "ab"}, 3)
    assert "".join(order) == "ababab"
    assert costs["a"] == median([Cost(n, 1.0, 10 * n) for n in (1, 3, 5)]) == Cost(3, 1.0, 30)
    assert costs["a"] + costs["b"] == Cost(7, 2.0, 40)


def test_work_in_this_process_is_timed() -> None:
    cost = in_turns({"sum": lambda: sum(range(100_000))}, 1)["sum"]
    assert cost.seconds > 0
    assert cost.cpu_seconds > 0


def test_a_ratio_above_one_is_in_our_favour() -> None:
    assert less_is_better("time", 2.0, 6.0, "s", tokens=5).ratio == 3
    assert more_is_better("speed", 6.0, 2.0, "tokens/s").ratio == 3
    row = more_is_better("speed", 6.0, None, "tokens/s", tokens=5)
    assert row.ratio is None
    assert row.settings == {"tokens": 5}
