"""Run one `elman bench` on two source trees in turns, and compare what they measured.

    python docs/log/before_and_after.py OLD/src NEW/src ROUNDS step --cells lstm --threads 2

For each row: the median of our figure in either tree, and the median over the rounds of how much
faster the new tree was (above 1: faster). Rows are printed as JSON lines.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from typing import Any


def rows_of(tree: str, arguments: list[str]) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "elman.cli", "bench", *arguments, "--json"]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": tree},
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def key_of(row: dict[str, Any]) -> str:
    names = ("num_layers", "hidden_size", "batch_size", "num_steps", "vocab_size", "streams")
    settings = row.get("settings") or {}
    return json.dumps([row["name"], *(settings.get(name) for name in names)])


def main(old: str, new: str, rounds: str, *arguments: str) -> None:
    """Measure, alternating which tree goes first."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    units = {}
    for number in range(int(rounds)):
        trees = [("old", old), ("new", new)]
        for name, tree in trees if number % 2 == 0 else reversed(trees):
            for row in rows_of(tree, list(arguments)):
                found[key_of(row)][name].append(row["ours"])
                units[key_of(row)] = row["unit"]
    for key, figures in found.items():
        if len(figures) < 2:
            continue
        more_is_faster = units[key].endswith("/s")
        ratios = [
            after / before if more_is_faster else before / after
            for before, after in zip(figures["old"], figures["new"], strict=True)
        ]
        medians = {name: statistics.median(values) for name, values in figures.items()}
        row = {"row": json.loads(key), "unit": units[key], **medians}
        print(json.dumps(row | {"faster": round(statistics.median(ratios), 3)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
