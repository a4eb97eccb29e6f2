"""`elman bench load`: the time to open a run folder, beside the same one without checksums."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load_file, save_file

from elman.api import load
from elman.bench.measuring import in_turns
from elman.bench.rows import Row, less_is_better
from elman.runs.run_folder import MODEL_FILE


def measure(run: Path, folder: Path, repeat: int) -> Iterator[Row]:
    """Open `run` and a copy of it in `folder`, whose weights have no checksums."""
    shutil.copytree(run, folder)
    without_checksums(folder / MODEL_FILE)
    works = {"ours": partial(load, run, device="cpu"), "peer": partial(load, folder, device="cpu")}
    in_turns(works, 1)  # read both from the disk once
    costs = in_turns(works, repeat)
    for name, unit in (("wall time", "seconds"), ("CPU time", "cpu_seconds")):
        ours, peer = (1e3 * getattr(costs[each], unit) for each in works)
        about = {"megabytes": round((run / MODEL_FILE).stat().st_size / 1e6, 1)}
        yield less_is_better(f"open with checksums, {name}", ours, peer, "ms", **about)


def without_checksums(path: Path) -> None:
    """Write a file of weights again as other programs do."""
    with safe_open(path, "pt") as file:
        header = json.loads(file.metadata()["elman"])
    header.pop("checksums")
    save_file(load_file(path), path, {"elman": json.dumps(header)})
