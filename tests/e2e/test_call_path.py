"""How many files lie between a command and the arithmetic, counted on the call stack."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import elman as library

Elman = Callable[..., Any]
ROOT = Path(library.__file__).parent


def path_to(
    goals: list[tuple[str, str]], elman: Elman, *arguments: object, after: str
) -> list[str]:
    """The files on the stack, outermost first, when a command calls one of the functions `goals`
    for the first time since a function called `after` has begun.
    """
    wanted = {(str(ROOT / file), name) for file, name in goals}
    files: dict[str, None] = {}
    started = False

    def watch(frame: FrameType | None, event: str, _: object) -> None:
        nonlocal started
        assert frame is not None
        if event != "call":
            return
        started = started or frame.f_code.co_name == after
        if not started or (frame.f_code.co_filename, frame.f_code.co_name) not in wanted:
            return
        sys.setprofile(None)
        while frame is not None:
            file = Path(frame.f_code.co_filename)
            if file.is_relative_to(ROOT):
                files[file.relative_to(ROOT).as_posix()] = None
            frame = frame.f_back

    sys.setprofile(watch)
    try:
        result = elman(*arguments)
    finally:
        sys.setprofile(None)
    assert result.code == 0, result.err
    return list(files)[::-1]


@pytest.mark.parametrize("kernel", ["reference", "auto"])
def test_train_lm_reaches_the_arithmetic_in_ten_files(
    kernel: str, elman: Elman, toy: Path, small: tuple[str, ...], tmp_path: Path
) -> None:
    goals = [("nn/cells.py", "step")]
    if kernel == "auto":  # the functions that call torch's layer or the compiled loops
        goals = [("nn/kernels/torch_rnn.py", "run"), ("nn/kernels/cpu.py", "run")]
    length = ("--set", f"model.kernel={kernel}", "--steps", 1, "--out", tmp_path / "run")
    # Validation batches go before the first update.
    files = path_to(goals, elman, "train", "lm", toy, *small, *length, "--json", after="_update")
    assert files[0] == "cli/main.py"
    assert 0 < len(files) <= 10, files
    if kernel == "reference":
        assert_the_readme_lists(files)


def assert_the_readme_lists(files: list[str]) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    part = readme.partition("## Reading the code")[2].partition("\n## ")[0]
    places = [part.find(f"src/elman/{file}") for file in files]
    assert -1 not in places, [f for f, place in zip(files, places, strict=True) if place < 0]
    assert places == sorted(places)


def test_generate_reaches_the_arithmetic_in_seven_files(elman: Elman, model: Path) -> None:
    files = path_to(
        [("nn/kernels/model_step.py", "__call__")],
        *(elman, "generate", model, "the", "--max-tokens", 2, "--seed", 1),
        after="choose",  # the prompt is read, and the first token has been chosen
    )
    assert files[0] == "cli/main.py"
    assert 0 < len(files) + 1 <= 7, files  # the compiled function's own file is one more
