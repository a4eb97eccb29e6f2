"""The wheel has every file of the package: recipes, studio, pre-trained models, types."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "elman"


def test_the_wheel_has_every_file_of_the_package(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    copy = tmp_path / "elman"
    shutil.copytree(SOURCES, copy / "src" / "elman", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    options = (
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--quiet",
        "--wheel-dir",
        tmp_path,
    )
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, copy], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("elman-*.whl")
    packed = {name for name in ZipFile(wheel).namelist() if name.startswith("elman/")}
    files = {path for path in (copy / "src" / "elman").rglob("*") if path.is_file()}
    assert {path.relative_to(copy / "src").as_posix() for path in files} == packed
    for name in ("recipes/awd-lstm.toml", "studio/index.html", "__init__.pyi", "py.typed"):
        assert f"elman/{name}" in packed
    assert any(name.startswith("elman/pretrained/") for name in packed)
