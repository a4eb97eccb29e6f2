from __future__ import annotations

import json

import pytest

from elman.terminal.console import duration, number, result_json, result_json_list, size, table


def test_numbers_lean_right_and_words_left() -> None:
    assert table([("a", 1), ("long", 12345.0)], ("name", "n")).split("\n") == [
        "name       n",
        "a          1",
        "long  12,345",
    ]


def test_a_table_of_nothing_is_its_header() -> None:
    assert table([], ("name", "n")) == "name  n"


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (245, "4 min 05 s"), (7800, "2 h 10 min")],
)
def test_durations(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


@pytest.mark.parametrize(
    ("value", "expected"), [(1234567, "1,234,567"), (141.23456, "141.2"), (12345.6, "12,346")]
)
def test_numbers(value: float, expected: str) -> None:
    assert number(value) == expected


@pytest.mark.parametrize(
    ("num_bytes", "expected"),
    [(0, "0 bytes"), (999, "999 bytes"), (60_000, "60.0 kB"), (2_000_000_000, "2.0 GB")],
)
def test_sizes(num_bytes: int, expected: str) -> None:
    assert size(num_bytes) == expected


def test_json_has_no_infinity(capsys: pytest.CaptureFixture[str]) -> None:
    result_json({"a": float("inf"), "b": [float("nan"), 1.5], "é": "字"})
    printed = capsys.readouterr().out
    assert json.loads(printed) == {"a": None, "b": [None, 1.5], "é": "字"}
    assert "字" in printed


def test_a_list_comes_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    result_json_list(iter([1, {"a": 2}]))
    assert capsys.readouterr().out == '[1,\n{"a": 2}]\n'
    result_json_list(iter([]))
    assert capsys.readouterr().out == "[]\n"
