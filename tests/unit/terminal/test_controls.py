from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from elman.terminal import console
from elman.terminal.console import without_controls

DIRECTIONS = [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]
CONTROLS = {chr(n) for n in (*range(0x20), *range(0x7F, 0xA0), *DIRECTIONS)} - {"\n", "\t"}


def test_each_control_is_visible_and_nothing_else_is_changed() -> None:
    every = [chr(n) for n in range(0x30000) if not 0xD800 <= n < 0xE000]
    changed = {c for c in every if without_controls(c) != c}
    assert changed == CONTROLS
    assert all(without_controls(c).isprintable() for c in CONTROLS)
    assert without_controls("a\x1b[0mb\x9b\u202e\n\t") == "a\\x1b[0mb\\x9b\\u202e\n\t"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("make", [Terminal, io.StringIO])
def test_json_keeps_its_value(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    value = [{"text": "".join(sorted(CONTROLS))}]
    for show in (console.result_json, console.result_json_list):
        monkeypatch.setattr(sys, "stdout", stream := make())
        show(value)
        assert json.loads(stream.getvalue()) == value
        assert stream.getvalue().endswith("\n")
        assert not (make is Terminal and CONTROLS & set(stream.getvalue()))
