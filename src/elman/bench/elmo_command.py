"""`elman bench elmo`: how fast words in context become vectors."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Annotated, Any

import typer

from elman.base.errors import UsageError
from elman.terminal.console import talk
from elman.terminal.options import Device, Json

DEFAULT_TEXT = "python-docs"


def elmo(
    file: Annotated[
        str,
        typer.Argument(metavar="[FILE]", help="Text, a sentence a line. [default: python-docs]"),
    ] = DEFAULT_TEXT,
    recipes: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help="Recipes whose models are measured. [default: elmo-tiny, on a GPU elmo-small too]",
            show_default=False,
        ),
    ] = None,
    sentences: Annotated[
        int, typer.Option(min=1, metavar="N", help="How many sentences, from the first on.")
    ] = 1000,
    threads: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Threads. [default: one per core]")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, metavar="N", help="How often, in turns.")] = 3,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Measure how many words a second become vectors in context.

    Beside a plain stack of nn.LSTM over the same sentences, padded, every token through the
    character convolution: stepped through time, and run over whole sequences. Clipping is left out,
    which torch's layers have not; the weights are random.
    """
    from elman.bench.command import show
    from elman.bench.elmo import bench
    from elman.bench.speed import threads as with_threads
    from elman.runs.machine import machine
    from elman.text.sources import expand, file_lines
    from elman.text.words import split_words

    where = machine(device)
    names = (recipes or ("elmo-tiny,elmo-small" if where.is_gpu else "elmo-tiny")).split(",")
    configs = {name.strip(): _config(name.strip()) for name in names}
    lines = (line for path in expand([file]) for line in file_lines(path))
    words = (split for split in map(split_words, lines) if split)
    texts = list(islice(words, sentences))
    if not texts:
        raise UsageError(f"{file} has no words", "name a file with some text in it")
    talk(f"· {len(texts):,} sentences of {file}, {where.description}")
    with with_threads(threads):
        show(bench(configs, texts, device=where.device, repeat=repeat), json=json)


def _config(recipe: str) -> Any:
    """The model of a recipe, without clipping."""
    from elman.base.config import from_dict
    from elman.recipes import read
    from elman.tasks.elmo.model import ElmoConfig

    model = read(recipe).get("model", {})
    if model.get("kind") != "elmo":
        raise UsageError(f"{recipe} is not a recipe of ELMo", "`elman recipes` lists them")
    return replace(from_dict(ElmoConfig, model, "model"), cell_clip=0.0, projection_clip=0.0)
