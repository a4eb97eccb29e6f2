"""`elman bench elmo`: options."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from elman.base.errors import UsageError
from elman.bench.shared import Repeat, Threads, note, show
from elman.terminal.options import Device, Json

if TYPE_CHECKING:
    from elman.tasks.elmo.model import ElmoConfig


def elmo(
    file: Annotated[
        str, Argument(metavar="[FILE]", help="Text, a sentence a line. [default: python-docs]")
    ] = "python-docs",
    recipes: Annotated[
        str | None,
        Option(
            metavar="NAME,...",
            help="Recipes to measure. [default: elmo-tiny, on a GPU elmo-small too]",
            show_default=False,
        ),
    ] = None,
    sentences: Annotated[
        int, Option(min=1, metavar="N", help="Read the first N sentences.")
    ] = 1000,
    threads: Threads = None,
    repeat: Repeat = 3,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Measure contextual word vectors: words per second.

    The peer is a plain stack of nn.LSTM over the same sentences, padded, with every token through
    the character convolution: stepped through time, and run over whole sequences. Weights are
    random, without clipping, which torch's layers do not have.
    """
    from elman.bench.elmo import bench
    from elman.bench.recurrent import use_threads
    from elman.runs.machine import machine
    from elman.text.sources import expand, file_lines
    from elman.text.words import split_words

    where = machine(device)
    names = (recipes or ("elmo-tiny,elmo-small" if where.is_gpu else "elmo-tiny")).split(",")
    configs = {name.strip(): _config(name.strip()) for name in names}
    lines = (line for path in expand([file]) for line in file_lines(path))
    texts = list(islice((words for words in map(split_words, lines) if words), sentences))
    if not texts:
        raise UsageError(f"{file} has no words", "name a file with some text in it")
    note(f"{len(texts):,} sentences of {file}, {where.description}")
    with use_threads(threads):
        show(bench(configs, texts, device=where.device, repeat=repeat), json=json)


def _config(recipe: str) -> ElmoConfig:
    from elman.base.config import from_dict
    from elman.recipes import read
    from elman.tasks.elmo.model import ElmoConfig

    model = read(recipe).get("model", {})
    if model.get("kind") != "elmo":
        raise UsageError(f"{recipe} is not an ELMo recipe", "`elman recipes` lists them")
    return replace(from_dict(ElmoConfig, model, "model"), cell_clip=0.0, projection_clip=0.0)
