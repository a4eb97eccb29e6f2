"""The notebooks of the tour run from their first cell to their last, without Jupyter.

The code cells of a notebook are executed in order in one namespace, in a process of its own, from
an empty folder. `STEPS = N` in the first code cell is the length, which is shortened here. The
processes are forks of one, which has imported what takes long.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "tour" / "notebooks").glob("*.ipynb"))
STEPS = {"1-pytorch-essentials": 20, "2-maximum-likelihood": 400, "4-surnames": 64}
"""Length of each notebook here; 30 of the others."""

RUNNER = """
import json, os, sys, traceback
import matplotlib.pyplot, torch, torch._dynamo
for folder, cells in json.load(sys.stdin):
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        continue
    try:
        os.chdir(folder)
        sys.stdout = open("printed", "w")
        names = {"__name__": "__main__"}
        for number, source in enumerate(cells, start=1):
            exec(compile(source, f"cell {number}", "exec"), names)
        found = {name: v for name, v in names.items() if isinstance(v, float)}
    except BaseException:
        found = traceback.format_exc()
    with open("found.json", "w") as file:
        json.dump(found, file)
    os._exit(0)
"""


def read(notebook: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(notebook.read_text(encoding="utf-8"))
    return document


def code_cells(notebook: Path) -> list[str]:
    return ["".join(c["source"]) for c in read(notebook)["cells"] if c["cell_type"] == "code"]


def short_cells(notebook: Path) -> list[str]:
    cells = code_cells(notebook)
    short = f"STEPS = {STEPS.get(notebook.stem, 30)}"
    cells[0], changed = re.subn(r"^STEPS = \d+$", short, cells[0], flags=re.M)
    assert changed == 1
    return cells


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The numbers that the cells of each notebook leave behind, or their traceback."""
    folders = {notebook: tmp_path_factory.mktemp("notebook") for notebook in NOTEBOOKS}
    jobs = [(str(folder), short_cells(notebook)) for notebook, folder in folders.items()]
    done = subprocess.run(
        [sys.executable, "-W", "error::FutureWarning", "-c", RUNNER],
        input=json.dumps(jobs),
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"MPLBACKEND": "agg", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return {
        notebook.stem: json.loads((folder / "found.json").read_text())
        for notebook, folder in folders.items()
    }


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_runs(notebook: Path, found: dict[str, Any]) -> None:
    if notebook.stem == "4-surnames":
        pytest.importorskip("faker")
    numbers = found[notebook.stem]
    assert isinstance(numbers, dict), numbers
    if notebook.stem == "2-maximum-likelihood":  # descent finds what counting finds
        assert max(numbers["normal_gap"], numbers["word_gap"]) < 0.001
    if notebook.stem == "4-surnames":  # it learns at all
        assert numbers["last"] < numbers["first"]


def test_notebooks_are_plain() -> None:
    """No outputs, no counters: a change of a notebook is a change of its text."""
    assert len(NOTEBOOKS) == 4
    for notebook in NOTEBOOKS:
        document = read(notebook)
        assert document["nbformat"] == 4
        ids = [cell["id"] for cell in document["cells"]]
        assert len(set(ids)) == len(ids)
        for cell in document["cells"]:
            assert cell["cell_type"] in ("code", "markdown")
            assert not cell.get("outputs")
            assert cell.get("execution_count") is None
            if cell["cell_type"] == "markdown":
                for link in re.findall(r"\]\(([^)#]+)\)", "".join(cell["source"])):
                    assert (notebook.parent / link).exists(), link
