"""`elman inside`: tables, JSON, pictures, and sentences for models that have no layers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import PIL.Image
import pytest

import elman as library

Elman = Callable[..., Any]
TEXT = "the $tudent opened"


def test_a_table_and_the_same_as_json(elman: Elman, model: Path) -> None:
    found = elman("inside", model, TEXT, "--part", "f", "--units", "2").ok()
    lines = found.out.splitlines()
    assert lines[0].split()[:3] == ["place", "token", "bits"]
    assert all(name in lines[0] for name in ("f[", "d h, layer 0", "d c, layer 0"))
    about = elman("inside", model, "-", "--json", "--target", 3, stdin=TEXT).ok().json
    assert len(lines) == len(about["tokens"]) + 1
    assert len(about["values"]) == len(about["tokens"]) == len(about["surprisal"])
    assert len(about["gradient"]) == about["target"] == 3
    lm = library.load(model)
    own = lm.inside(TEXT, target=3)
    assert own.gradient == pytest.approx(about["gradient"], rel=1e-5)
    rows = lm.surprisal(TEXT, include_end=False)
    assert own.surprisal[1:] == pytest.approx([row.surprisal for row in rows], rel=1e-4)


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_picture(elman: Elman, words: Path, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"inside.{suffix}"
    elman("inside", words, "the student opened her book", "--plot", path).ok()
    if suffix == "png":
        with PIL.Image.open(path) as picture:
            assert picture.width > 800
    elif suffix == "svg":
        assert "norm of gradient" in path.read_text(encoding="utf-8")
    assert path.stat().st_size > 1000


def test_a_picture_of_nothing_but_the_boundary(elman: Elman, model: Path, tmp_path: Path) -> None:
    elman("inside", model, "", "--plot", tmp_path / "nothing.png").ok()
    assert (tmp_path / "nothing.png").read_bytes().startswith(b"\x89PNG")


def test_wrong_requests_get_a_sentence(elman: Elman, model: Path, tmp_path: Path) -> None:
    for wrong, words in (
        (["--layer", "7"], "no layer 7"),
        (["--part", "r"], "no part 'r'"),
        (["--target", "99"], "no token 99"),
        (["--plot", tmp_path / "x.txt"], "'.txt' is no format of pictures"),
        (["--plot", tmp_path / "x"], "it has no suffix"),
    ):
        refused = elman("inside", model, "the", *wrong)
        assert refused.code == 2
        assert words in refused.error[0]
    mixed = elman("inside", f"0.5*{model}+0.5*{model}", "the")
    assert mixed.code == 2
    assert "mixture" in mixed.error[0]


def test_models_without_layers_get_a_sentence(elman: Elman, toy: Path, tmp_path: Path) -> None:
    out = tmp_path / "kn"
    elman("train", "ngram", toy, "--order", 2, "--out", out).ok()
    refused = elman("inside", out, "the")
    assert refused.code == 2
    assert "has no recurrent layers to look into" in refused.error[0]


def test_a_picture_is_where_it_is_said_to_be(elman: Elman, model: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    drawn = tmp_path / "new" / "inside.svg"
    elman("inside", model, "the", "--plot", drawn).ok()
    assert drawn.read_text(encoding="utf-8").startswith("<?xml")
    refused = elman("inside", model, "the", "--plot", tmp_path / "inside")
    assert (refused.code, refused.error[1]) == (2, "end the name in .png, .svg or .pdf")
    elman("inside", model, "the", "--plot", tmp_path / "inside.xyz")
    refused = elman("evaluate", model, drawn, "--novelty", "--curve", tmp_path / "curve")
    assert "no suffix" in refused.error[0]
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
