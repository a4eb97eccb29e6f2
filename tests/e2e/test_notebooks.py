"""The notebooks of the tour run from their first cell to their last, without Jupyter.

The code cells of a notebook are executed in order in one namespace, in a process of its own, from
an empty folder. `STEPS = N` in the first code cell is the length, which is shortened here.
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
import json, sys
names = {"__name__": "__main__"}
for number, source in enumerate(json.load(sys.stdin), start=1):
    exec(compile(source, f"cell {number}", "exec"), names)
print(json.dumps({name: v for name, v in names.items() if isinstance(v, float)}))
"""


def read(notebook: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(notebook.read_text(encoding="utf-8"))
    return document


def code_cells(notebook: Path) -> list[str]:
    return ["".join(c["source"]) for c in read(notebook)["cells"] if c["cell_type"] == "code"]


def run(notebook: Path, folder: Path) -> dict[str, float]:
    """Run the cells; return the numbers that they leave behind."""
    cells = code_cells(notebook)
    short = f"STEPS = {STEPS.get(notebook.stem, 30)}"
    cells[0], changed = re.subn(r"^STEPS = \d+$", short, cells[0], flags=re.M)
    assert changed == 1
    done = subprocess.run(
        [sys.executable, "-W", "error::FutureWarning", "-c", RUNNER],
        input=json.dumps(cells),
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"MPLBACKEND": "agg", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    numbers: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return numbers


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    if notebook.stem == "4-surnames":
        pytest.importorskip("faker")
    numbers = run(notebook, tmp_path)
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
