"""`elman bench ngram`, with a stand-in for KenLM and without."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elman.testing import TOY_TEXT

Elman = Callable[..., Any]
KEYS = {"name", "ours", "peer", "ratio", "unit", "settings"}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TOY_TEXT * 5, encoding="utf-8")
    return path


def test_without_a_peer(
    elman: Elman, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "kenlm", None)
    told = elman("bench", "ngram", text, "--tokens", "2k", "--order", 3, "--repeat", 1, "--json")
    assert told.code == 0, told.err
    assert "not found" in told.err
    rows = [json.loads(line) for line in told.out.splitlines()]
    assert [row["name"] for row in rows][:4] == [
        "text to ARPA",
        "text to queries",
        "memory, text to ARPA",
        "memory, text to queries",
    ]
    for row in rows:
        assert set(row) == KEYS
        assert row["ours"] > 0
        assert row["peer"] is row["ratio"] is None
        assert 2000 <= row["settings"]["tokens"] < 2010
    assert {row["settings"]["scored"] for row in rows[4:]} == {rows[4]["settings"]["scored"]}
    assert 1 < rows[4]["settings"]["perplexity"] < 30


class StandInModule:
    """KenLM's Python module, as far as it is used."""

    class Config:
        show_progress = True
        arpa_complain = 0

    class ARPALoadComplain:
        NONE = 2

    class Model:
        def __init__(self, path: str, config: StandInModule.Config) -> None:
            assert Path(path).read_bytes().startswith(b"\\data\\")
            assert (config.show_progress, config.arpa_complain) == (False, 2)

        def score(self, line: str) -> float:
            return -float(len(line))


def test_beside_the_module_alone_the_rows_say_so(
    elman: Elman, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "kenlm", StandInModule)
    told = elman("bench", "ngram", text, "--tokens", "2k", "--order", 3, "--repeat", 1, "--json")
    assert told.code == 0, told.err
    assert "Python module" in told.err
    rows = [json.loads(line) for line in told.out.splitlines()]
    scoring = [row for row in rows if row["name"].startswith("scoring")]
    assert scoring
    for row in scoring:
        assert row["name"].endswith("beside KenLM's Python module")
        assert row["ratio"] == pytest.approx(row["ours"] / row["peer"])


STAND_IN = """#!{python}
import shutil, sys
name = sys.argv[0].rsplit("/", 1)[-1]
if name == "lmplz":
    assert "--discount_fallback" in sys.argv
    sys.stdout.write("model of " + str(len(sys.stdin.read())))
elif name == "build_binary":
    shutil.copy(sys.argv[2], sys.argv[3])
else:
    assert open(sys.argv[3]).read().startswith("model of")
    sys.stdin.read()
    print("Perplexity including OOVs:\\t12.5")
"""


def test_beside_a_peer(elman: Elman, text: Path, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("lmplz", "build_binary", "query"):
        program = programs / name
        program.write_text(STAND_IN.format(python=sys.executable))
        program.chmod(0o755)
    arguments = ("--tokens", "2k", "--order", 3, "--repeat", 1, "--kenlm", programs)
    told = elman("bench", "ngram", text, *arguments, "--json", "--folder", tmp_path / "work")
    assert told.code == 0, told.err
    rows = [json.loads(line) for line in told.out.splitlines()]
    assert len(rows) >= 5
    for row in rows[:4]:
        assert row["ratio"] == pytest.approx(row["peer"] / row["ours"])
    for row in rows[4:]:
        assert row["ratio"] == pytest.approx(row["ours"] / row["peer"])
        assert row["settings"]["peer_perplexity"] == 12.5
    assert (tmp_path / "work" / "run" / "ngram.safetensors").exists()


def test_layouts(elman: Elman, text: Path, tmp_path: Path) -> None:
    """Beside programs that copy: figures of each layout, and a second run uses the same files."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("lmplz", "build_binary", "query"):
        program = programs / name
        program.write_text(LAYOUT_PROGRAMS.format(python=sys.executable))
        program.chmod(0o755)
    how = ("--tokens", "1k", "--order", 3, "--repeat", 1, "--layouts", "--test", text)
    where = ("--kenlm", programs, "--folder", tmp_path / "work", "--json")
    told = [elman("bench", "ngram", text, *how, *where).ok() for _ in range(2)]
    assert "using the model" in told[1].err
    rows = [json.loads(line) for line in told[1].out.splitlines()]
    names = [row["name"].partition(":")[0] for row in rows]
    assert names == sorted([*names], key=["plain", "compact", "compact, 8 bits"].index)
    assert len(rows) == 9
    found = {row["name"]: row for row in rows}
    assert found["plain: size"]["ours"] > found["compact: size"]["ours"] > 0
    assert found["plain: perplexity"]["ours"] == found["compact: perplexity"]["ours"]
    assert found["plain: perplexity"]["settings"]["sum"] == pytest.approx(1, abs=1e-4)
    assert found["compact, 8 bits: perplexity"]["peer"] == 12.5


LAYOUT_PROGRAMS = """#!{python}
import shutil, sys
if sys.argv[0].endswith("build_binary"):
    shutil.copy(sys.argv[-2], sys.argv[-1])
else:
    sys.stdin.read()
    print("Perplexity including OOVs:\\t12.5")
"""


def test_the_curve(elman: Elman, text: Path) -> None:
    told = elman("bench", "ngram", text, "--curve", "500,1k", "--repeat", 1, "--json")
    assert told.code == 0, told.err
    small, large = (json.loads(line) for line in told.out.splitlines())
    assert small["settings"]["over_n_log_n"] == 1
    assert large["settings"]["tokens"] > small["settings"]["tokens"] >= 500
    assert large["settings"]["over_n_log_n"] > 0
    assert small["unit"] == "μs per token"


def test_threads(elman: Elman, text: Path) -> None:
    how = ("--tokens", "1k", "--order", 3, "--repeat", 1, "--threads", "1,2", "--json")
    rows = [json.loads(line) for line in elman("bench", "ngram", text, *how).ok().out.splitlines()]
    ratios = {row["name"]: row["ratio"] for row in rows}
    assert ratios["text to ARPA, 1 thread"] == ratios["count, 1 thread"] == 1
    assert ratios["text to queries, 2 threads"] > 0
    assert all(row["settings"]["threads"] in (1, 2) for row in rows)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--tokens", "many"), "not a positive number"),
        (("--tokens", "1k,2k"), "takes one number"),
        (("--kenlm", "nowhere"), "no lmplz"),
    ],
)
def test_bad_arguments_are_sentences(elman: Elman, arguments: tuple[str, ...], says: str) -> None:
    told = elman("bench", "ngram", *arguments)
    assert told.code == 2
    assert says in told.error[0]
