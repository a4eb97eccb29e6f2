"""The wheel and the sdist install and work outside of the checkout, on each version of Python.

`make package` runs this: minutes, and gigabytes of downloads where pip finds no small torch.
ELMAN_PYTHONS lists the interpreters, separated by spaces; else those of the supported versions that
are on the path are taken.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

ROOT = Path(__file__).parents[2]
PACKED = ("src", "docs", "examples", "tests")
SUPPORTED = [
    name.rpartition(" ")[2]
    for name in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    if name.startswith("Programming Language :: Python :: 3.")
]
PYTHONS = os.environ.get("ELMAN_PYTHONS", "").split() or [f"python{v}" for v in SUPPORTED]

pytestmark = pytest.mark.slow


def run(*command: object, cwd: Path) -> str:
    """Run a program, without what this process's environment says about Python."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(map(str, command), cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("packages")
    made = shutil.ignore_patterns("__pycache__", "*.egg-info", "node_modules")
    for name in PACKED:
        shutil.copytree(ROOT / name, folder / "elman" / name, ignore=made)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, folder / "elman")
    run(sys.executable, "-m", "build", "--outdir", folder, folder / "elman", cwd=folder)
    return folder


@pytest.fixture(params=PYTHONS)
def python(request: pytest.FixtureRequest) -> Iterator[Path]:
    """The interpreter of a new environment."""
    found = shutil.which(request.param)
    if found is None or subprocess.run([found, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"there is no {request.param} on this machine")
    with TemporaryDirectory() as name:  # deleted at once: it may hold gigabytes
        run(sys.executable, "-m", "virtualenv", "-q", "-p", found, "venv", cwd=Path(name))
        yield Path(name) / "venv" / "bin" / "python"


def test_the_packages_work_in_a_new_environment(
    packages: Path, python: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (wheel,), (sdist,) = packages.glob("*.whl"), packages.glob("*.tar.gz")
    place = python.parents[2]
    smoke = shutil.copy(ROOT / "tests" / "package_smoke.py", place)
    pip = (python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt")
    said = []
    run(*pip, wheel, cwd=place)
    said.append(run(python, smoke, "bare", cwd=place))
    run(*pip, f"{wheel}[all]", cwd=place)
    run(python, "-m", "pip", "check", cwd=place)
    said.append(run(python, smoke, "all", cwd=place))
    run(python, "-m", "pip", "uninstall", "-q", "-y", "elman", cwd=place)
    run(*pip, "--no-deps", sdist, cwd=place)
    said.append(run(python, smoke, "bare", cwd=place))
    with capsys.disabled():
        print("", *said, sep="\n", end="")
