"""`elman bench kernels`, `step` and `generate`: options, and the sizes that are measured."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, cast

from typer import Option

from elman.base.errors import UsageError, nearest
from elman.bench.shared import Repeat, Threads, progress, show
from elman.terminal.console import talk
from elman.terminal.options import Json

CellName = Literal["lstm", "gru", "mingru", "minlstm", "sru"]
CELLS: tuple[CellName, ...] = ("lstm", "gru", "mingru", "minlstm", "sru")
ALL_CELLS = ",".join(CELLS)
DEFAULT_CELLS = "lstm,gru,mingru"


@dataclass(frozen=True)
class Size:
    """The sizes of one measurement."""

    hidden_size: int
    batch_size: int
    num_steps: int
    num_layers: int = 1
    vocab_size: int = 65
    embedding_size: int = 64


LAYERS = [
    *(Size(hidden, 32, 128) for hidden in (64, 128, 256, 512)),
    *(Size(256, batch, 128) for batch in (1, 8, 64)),
    *(Size(256, 32, steps) for steps in (16, 512)),
]
"""Single layers: over hidden size, batch size and length."""
STEPS = [
    *(Size(256, batch, 128) for batch in (32, 64)),
    *(Size(512, batch, 128, num_layers=2) for batch in (32, 64)),
    *(Size(width, 20, 35, 2, 10_000, embedding_size=width) for width in (200, 650)),
]
"""Training steps: characters, then words."""
STREAMS = [
    Size(256, 1, 100),
    Size(512, 1, 100, num_layers=2),
    Size(200, 1, 100, 2, 10_000, embedding_size=200),
    Size(650, 1, 50, 2, 10_000, embedding_size=650),
]
"""Generation of one stream: characters, then words."""
GPU_LAYERS = [
    *(Size(hidden, batch, 128) for hidden, batch in ((256, 64), (512, 64), (512, 16))),
    *(Size(1024, batch, steps) for batch, steps in ((20, 70), (32, 70), (64, 128))),
    *(Size(1152, batch, 70) for batch in (20, 80)),
    *(Size(1536, 20, 35), Size(2048, 128, 20)),
]
GPU_STEPS = [Size(1150, batch, 70, 3, 10_000, embedding_size=400) for batch in (20, 80)]
"""AWD-LSTM's size (Merity, Keskar and Socher 2018)."""

Cells = Annotated[str, Option(metavar="NAME,...", help=f"Cells, of {ALL_CELLS}.")]
Sizes = Annotated[
    str | None,
    Option(
        metavar="LxHxB[xV],...",
        help="Layers, hidden units, batch and vocabulary, as in 1x256x32,2x200x20x10000.",
    ),
]
BenchDevice = Annotated[
    Literal["cpu", "cuda"], Option(metavar="cpu|cuda", help="Where to measure.")
]


def kernels(
    cells: Cells = DEFAULT_CELLS,
    sizes: Sizes = None,
    threads: Threads = None,
    repeat: Repeat = 7,
    plot: Annotated[
        Path | None, Option(metavar="FILE", help="Draw it over units, batch and length.")
    ] = None,
    device: BenchDevice = "cpu",
    dtype: Annotated[
        Literal["bfloat16", "float16", "float32"] | None,
        Option(metavar="bfloat16|float16|float32", help="Precision on cuda. [default: bfloat16]"),
    ] = None,
    json: Json = False,
) -> None:
    """Measure one recurrent layer, forward and backward, beside torch's.

    Microseconds per time step. Errors are relative distances from the same computation in float64.
    The peer of minGRU, minLSTM and SRU is the papers' scan in log space. On cuda: lstm and gru,
    called one by one and replayed from a CUDA graph.
    """
    chosen = parse_cells(cells)
    if device == "cpu" and dtype not in (None, "float32"):
        raise UsageError("--dtype needs --device cuda", "on the CPU layers compute in float32")
    _check_cuda(device)
    from elman.bench import kernels as bench
    from elman.bench.recurrent import use_threads

    with use_threads(threads):
        if device == "cuda":
            chosen = [cell for cell in chosen if cell in ("lstm", "gru")]
            if not chosen:
                raise UsageError("only lstm and gru are measured on cuda", "leave out --cells")
            found = bench.on_gpu(chosen, _sizes(sizes, GPU_LAYERS), repeat, dtype or "bfloat16")
        else:
            found = bench.on_cpu(chosen, _sizes(sizes, LAYERS), repeat)
        rows = list(progress(found))
    show(rows, json=json)
    if plot is not None:
        from elman.bench.plot import draw

        draw(rows, plot)
        talk(f"wrote {plot}")


def step(
    cells: Cells = DEFAULT_CELLS,
    sizes: Sizes = None,
    threads: Threads = None,
    repeat: Repeat = 5,
    device: BenchDevice = "cpu",
    json: Json = False,
) -> None:
    """Measure whole training steps beside the same model in plain torch.

    Embedding, layers, output layer, gradients, clipping and Adam: tokens per second. The peer of
    cells that torch does not have is its LSTM of the same width. On cuda: an AWD-LSTM in bfloat16
    with all its dropouts, beside the same model on torch's layers.
    """
    chosen = parse_cells(cells)
    if device == "cuda" and cells not in (DEFAULT_CELLS, "lstm"):
        raise UsageError("only lstm is measured on cuda", "leave out --cells")
    _check_cuda(device)
    from elman.bench import step as bench
    from elman.bench.recurrent import use_threads

    with use_threads(threads):
        if device == "cuda":
            rows = bench.on_gpu(_sizes(sizes, GPU_STEPS), repeat)
        else:
            rows = bench.on_cpu(chosen, _sizes(sizes, STEPS), repeat)
        show(progress(rows), json=json)


def generate(
    cells: Cells = DEFAULT_CELLS,
    sizes: Sizes = None,
    threads: Threads = None,
    repeat: Repeat = 5,
    json: Json = False,
) -> None:
    """Measure the generation of one stream beside a loop over torch's layers.

    Tokens per second, in float32 and with int8 weights.
    """
    from elman.bench.generate import measure
    from elman.bench.recurrent import use_threads

    with use_threads(threads):
        rows = measure(parse_cells(cells), _sizes(sizes, STREAMS), repeat)
        show(progress(rows), json=json)


def parse_cells(text: str) -> list[CellName]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in CELLS:
            raise UsageError(f"there is no cell '{name}' to measure", nearest(name, CELLS))
    return cast(list[CellName], names)


def _sizes(text: str | None, usual: Sequence[Size]) -> list[Size]:
    """The usual sizes, or those in `text`; what `text` leaves out is taken from a usual one."""
    if text is None:
        return list(usual)
    sizes = []
    for part in text.split(","):
        found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)x([1-9]\d*)(?:x([1-9]\d*))?", part.strip())
        if found is None:
            raise UsageError(f"'{part}' is not a size", "write it as 2x512x64, or 2x200x20x10000")
        layers, hidden, batch = map(int, found.groups()[:3])
        words = int(found[4] or usual[0].vocab_size)
        like = next((size for size in usual if size.vocab_size == words), usual[0])
        size = replace(like, num_layers=layers, hidden_size=hidden, batch_size=batch)
        embedding = hidden if found[4] else like.embedding_size
        sizes.append(replace(size, vocab_size=words, embedding_size=embedding))
    return sizes


def _check_cuda(device: str) -> None:
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise UsageError("there is no CUDA device here", "leave out --device")
