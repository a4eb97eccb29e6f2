"""The application `elman bench`; what its commands measure is imported when they run."""

from __future__ import annotations

from collections.abc import Callable

import typer

from elman.bench.commands.counting import counting, index
from elman.bench.commands.quality import ablations, automatic, elmo, lifts, pictures, regimes
from elman.bench.commands.serving import load, serve, streams
from elman.bench.commands.speed import (
    beams,
    equal_time,
    generate,
    kernels,
    ngram,
    ranks,
    scans,
    sentences,
    step,
)
from elman.bench.faults.command import faults

app = typer.Typer(
    help="Measure speed and quality beside other implementations.", no_args_is_help=True
)
COMMANDS: list[Callable[..., None]] = [
    *(kernels, scans, step, sentences, beams, generate, equal_time, ngram, counting, index),
    *(ranks, serve, streams, load, regimes, pictures, elmo, lifts, ablations, automatic, faults),
]
for command in COMMANDS:
    app.command()(command)
