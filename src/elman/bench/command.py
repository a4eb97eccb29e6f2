"""The commands of `elman bench`."""

from __future__ import annotations

from collections.abc import Callable

import typer

from elman.bench.elmo_command import elmo
from elman.bench.equal_time import equal_time
from elman.bench.lifts import lifts
from elman.bench.ngram import ngram
from elman.bench.pictures import pictures
from elman.bench.recurrent_command import generate, kernels, step
from elman.bench.regimes import regimes
from elman.bench.serving import serve

app = typer.Typer(help="Measure side by side with peers.", no_args_is_help=True)
COMMANDS: list[Callable[..., None]] = [
    *(kernels, step, generate, equal_time, ngram),
    *(serve, regimes, pictures, elmo, lifts),
]
for command in COMMANDS:
    app.command()(command)
