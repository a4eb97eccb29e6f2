from __future__ import annotations

import tomllib
from dataclasses import dataclass, field

from elman.base.config import to_dict
from elman.cli.show_config import toml_lines


@dataclass(frozen=True, kw_only=True)
class Inner:
    size: int = 3
    """How large."""
    names: tuple[str, ...] = ('say "a"', "b\\n", "字")
    """What they are called."""
    nothing: int | None = None
    """Not given."""


@dataclass(frozen=True, kw_only=True)
class Outer:
    rate: float = 1e-06
    """How fast."""
    inner: Inner = field(default_factory=Inner)
    """What is inside."""
    on: bool = True
    """Whether it is."""


def test_toml_says_what_the_config_says() -> None:
    read = tomllib.loads("\n".join(toml_lines(Outer())))
    expected = to_dict(Outer())
    del expected["inner"]["nothing"]
    assert read == expected


def test_the_prose_can_stand_above() -> None:
    lines = list(toml_lines(Outer(), explain=True))
    assert lines[:2] == ["# How fast.", "rate = 1e-06"]
    assert lines[-6:-4] == ["# What is inside.", "[inner]"]
