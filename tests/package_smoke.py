"""Run in an environment into which Elman was installed, outside of the checkout: try the package.

    python package_smoke.py bare|all

`bare`: commands and Python without extras. `all`: also what the extras add.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from importlib.metadata import version
from pathlib import Path

import elman

TEXT = "the student opened her book .\nthe professor closed the door .\n" * 200


def run(*arguments: object) -> str:
    """Run `elman` as a user would, by the script that pip made."""
    program = Path(sys.executable).with_name("elman")
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, f"elman {arguments}: {done.stderr}"
    return done.stdout


def try_core() -> None:
    assert Path(elman.__file__).is_relative_to(sys.prefix), f"{elman.__file__} is not installed"
    assert version("elman") == elman.__version__
    assert run("--version") == f"elman {elman.__version__}\n"
    assert "char-lstm" in run("recipes")
    assert run("next", "word-lstm", "the", "-k", "3").count("\n") >= 3  # a model of the package
    Path("my.txt").write_text(TEXT, encoding="utf-8")
    sizes = ("--hidden-size", "16", "--embedding-size", "16")
    run("train", "lm", "my.txt", "--steps", "5", *sizes, "--out", "runs/mine", "--overwrite")
    measured = json.loads(run("evaluate", "runs/mine", "my.txt", "--json"))
    assert measured
    lm = elman.load("runs/mine")
    assert lm.perplexity("the student") > 1
    assert lm.generate("the ", max_tokens=5)


def try_extras() -> None:
    import pyarrow
    import pyarrow.parquet

    rows = TEXT.splitlines()
    pyarrow.parquet.write_table(pyarrow.table({"text": rows}), "my.parquet")
    run("train", "ngram", "my.parquet", "--order", "3", "--out", "runs/kn")
    run("convert", "runs/kn", "kn.arpa")
    run("score", "kn.arpa", "my.txt")
    assert "king-james" in run("corpora")
    run("convert", "runs/mine", "hf", "--to", "hf")
    try_server()


def try_server() -> None:
    program = Path(sys.executable).with_name("elman")
    command = [program, "serve", "runs/mine", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            said = server.stderr.readline()
            address = said.split()[-1]
            for path in ("/health", "/v1/models", "/"):
                with urllib.request.urlopen(address + path) as answer:
                    assert answer.status == 200, path
        finally:
            server.terminate()


if __name__ == "__main__":
    try_core()
    if sys.argv[1] == "all":
        try_extras()
    print(f"elman {elman.__version__} on Python {sys.version.split()[0]}: {sys.argv[1]} works")
