"""What is packaged: the wheel's files, the extras, the container. `test_package.py` installs it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from elman.cli.main import program
from elman.serve.http.app import routes

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


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_all_has_every_feature() -> None:
    extras = project()["optional-dependencies"]
    (every,) = map(Requirement, extras["all"])
    assert every.extras == extras.keys() - {"all", "dev", "gpu"}


def test_the_versions_of_what_is_installed_are_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = [Requirement(line) for line in lines if not line.startswith("#")]
    names = {canonicalize_name(one.name) for one in pinned}
    assert all(str(one.specifier).startswith("==") for one in pinned)
    named = [*project()["dependencies"]]
    named += [one for extra in project()["optional-dependencies"].values() for one in extra]
    for one in map(Requirement, named):
        assert canonicalize_name(one.name) in {*names, "elman"}, one


def instructions() -> list[tuple[str, str]]:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def test_the_container_names_files_options_and_routes_that_exist() -> None:
    """Docker itself is not needed: it does not build the image here."""
    found = instructions()
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    copied = [rest.split() for word, rest in found if word == "COPY" and "--from" not in rest]
    for *sources, _ in copied:
        for source in sources:
            assert (ROOT / source).exists()
            assert f"!{source}" in ignored
    (extras,) = (Requirement(f"elman{e}").extras for e in re.findall(r'"\.(\[.*?\])"', str(found)))
    assert extras < project()["optional-dependencies"].keys()
    users = [rest for word, rest in found if word == "USER"]
    assert users == ["nobody"]
    words = [word for word, _ in found]
    own = words[len(words) - words[::-1].index("FROM") :]  # the last stage, which is what runs
    assert own.index("USER") < own.index("ENTRYPOINT")
    assert not {"RUN", "ADD", "COPY"} & set(own[own.index("USER") :])
    versions = {rest.split()[0] for word, rest in found if word == "FROM"}
    assert versions == {"python:3.12-slim"}
    assert "Programming Language :: Python :: 3.12" in project()["classifiers"]
    given = dict(found)
    elman, serve, *options = json.loads(given["ENTRYPOINT"])
    assert (elman, json.loads(given["CMD"])) == ("elman", ["/runs"])
    commands: Any = program()
    known = {flag for one in commands.commands[serve].params for flag in one.opts}
    assert {option for option in options if option.startswith("-")} <= known
    *_, code = json.loads(given["HEALTHCHECK"].partition("CMD ")[2])
    (path,) = re.findall(r"8000(/\w+)", code)
    assert path in {route.path for route in routes.routes}
