"""How many files lie between a command and the arithmetic, counted on the call stack."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from elman.testing import TOY_TEXT

TRACE = """
import json, sys
from pathlib import Path
import elman
ROOT = Path(elman.__file__).parent
found, started = [], []

def watch(frame, event, argument):
    if event != "call" or found:
        return
    code = frame.f_code
    if AFTER and not started:
        if code.co_name == AFTER:
            started.append(True)
        return
    name = str(code.co_filename)
    if not name.startswith(str(ROOT)):
        return
    if [Path(name).relative_to(ROOT).as_posix(), code.co_name] not in GOALS:
        return
    files = []
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(str(ROOT)):
            file = Path(name).relative_to(ROOT).as_posix()
            if file not in files:
                files.append(file)
        frame = frame.f_back
    found.append(files[::-1])

from elman.cli.main import run
sys.setprofile(watch)
code = run(ARGUMENTS)
sys.setprofile(None)
print(json.dumps({"code": code, "files": found[0] if found else []}), file=sys.stderr)
"""


def path_to(goals: list[tuple[str, str]], *arguments: str, after: str = "") -> list[str]:
    """The files entered on the way from the command line to one of the functions `goals`, once a
    function called `after` has begun.
    """
    script = f"GOALS = {[list(goal) for goal in goals]!r}\nAFTER = {after!r}\n"
    script += f"ARGUMENTS = {list(arguments)!r}\n{TRACE}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    result = json.loads(done.stderr.strip().splitlines()[-1])
    assert result["code"] == 0, done.stderr
    files: list[str] = result["files"]
    return files


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("path")
    (folder / "toy.txt").write_text(TOY_TEXT)
    return folder


@pytest.mark.parametrize("kernel", ["reference", "auto"])
def test_train_lm_reaches_the_arithmetic_in_nine_files(run_folder: Path, kernel: str) -> None:
    goals = [("nn/cells.py", "step")]
    if kernel == "auto":  # the functions that call torch's layer or the compiled loops
        goals = [("nn/kernels/torch_rnn.py", "run"), ("nn/kernels/cpu.py", "run")]
    files = path_to(
        goals,
        *("train", "lm", str(run_folder / "toy.txt"), "--steps", "1", "--json"),
        *("--set", f"model.kernel={kernel}", "--out", str(run_folder / kernel)),
        after="_update",  # validation batches go first
    )
    assert files[0] == "cli/main.py"
    assert 0 < len(files) <= 9, files


def test_generate_reaches_the_arithmetic_in_seven_files(run_folder: Path) -> None:
    out = run_folder / "model"
    path_to(
        [],
        *("train", "lm", str(run_folder / "toy.txt"), "--steps", "1", "--json"),
        *("--out", str(out)),
    )
    files = path_to(
        [("nn/kernels/model_step.py", "__call__")],
        *("generate", str(out), "the", "--max-tokens", "2", "--seed", "1"),
        after="choose",  # the first token has been chosen: the prompt is read
    )
    assert files[0] == "cli/main.py"
    assert 0 < len(files) + 1 <= 7, files  # the compiled function's own file is one more


def test_the_readme_lists_the_path_of_training(run_folder: Path) -> None:
    files = path_to(
        [("nn/cells.py", "step")],
        *("train", "lm", str(run_folder / "toy.txt"), "--steps", "1", "--json"),
        *("--set", "model.kernel=reference", "--out", str(run_folder / "listed")),
        after="_update",
    )
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    part = readme.partition("## Reading the code")[2].partition("\n## ")[0]
    places = [part.find(f"src/elman/{file}") for file in files]
    assert -1 not in places, [f for f, place in zip(files, places, strict=True) if place < 0]
    assert places == sorted(places)
