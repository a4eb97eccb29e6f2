from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from elman.base.config import to_dict
from elman.cli.show_config import show
from elman.recipes.resolve import resolve
from elman.recipes.writing import toml_lines
from elman.testing import TOY_TEXT


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


def test_what_follows_from_the_corpus_is_marked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """And the output is the same recipe."""
    show("awd-lstm")
    written = capsys.readouterr().out
    assert 'hidden_size = "corpus"  # follows from the corpus\n' in written
    assert 'epochs = "corpus"  # follows' in written
    assert "num_layers = 3\n" in written
    own, text = tmp_path / "own.toml", tmp_path / "text.txt"
    own.write_text(written)
    text.write_text(TOY_TEXT)
    ours, theirs = (resolve("lm", [str(text)], recipe=r).config for r in (str(own), "awd-lstm"))
    assert replace(ours, recipe="awd-lstm") == theirs
    show("awd-lstm", json=True)
    assert '"hidden_size": "corpus"' in capsys.readouterr().out
