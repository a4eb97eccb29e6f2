"""Options that several commands of `elman bench` have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from elman.base.errors import UsageError
from elman.bench.sizes import ALL_CELLS
from elman.terminal.options import option, threads_here

Repeat = Annotated[int, option("N", "Rounds; peers take turns.", min=1)]
Threads = Annotated[
    int | None, option("N", "Threads. [default: one per core]", min=1, callback=threads_here)
]
Curve = Annotated[
    str | None,
    option("N,...", "Threads, or several numbers for a curve. [default: one per core]"),
]
Cells = Annotated[str, option("NAME,...", f"Cells, of {ALL_CELLS}.")]
Sizes = Annotated[
    str | None,
    option(
        "LxHxB[xV],...",
        "Layers, hidden units, batch and vocabulary, as in 1x256x32,2x200x20x10000.",
    ),
]
BySpeed = Annotated[
    bool,
    option(
        None,
        "Measure the speed of each run for seconds, by processor time, then train the updates that "
        "it makes in the minutes, so that other programs do not disturb.",
        "--by-speed",
    ),
]
Within = Annotated[
    float | None, option("M", "Start no run that would end later than in M minutes.")
]
Kept = Annotated[
    Path | None,
    option("DIR", "Keep the figures here; finished runs are reused. [default: a temporary folder]"),
]
BenchDevice = Annotated[Literal["cpu", "cuda"], option("cpu|cuda", "Where to measure.")]


def check_cuda(device: str | None, name: str = "--device") -> None:
    """Raise an error if a GPU is asked for, by the option `name`, and there is none."""
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise UsageError("there is no CUDA device here", f"leave out {name}")
