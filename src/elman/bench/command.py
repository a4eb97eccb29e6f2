"""`elman bench`: side-by-side measurements against peers."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from elman.base.errors import UsageError, nearest
from elman.bench.elmo_command import elmo
from elman.bench.lifts_command import lifts
from elman.terminal.console import number, result, result_json, table, talk
from elman.terminal.options import Device, Json, Settings

if TYPE_CHECKING:
    from elman.bench.measuring import Row

app = typer.Typer(help="Measure side by side with peers.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass


app.command()(lifts)
app.command()(elmo)


@app.command()
def ngram(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE...]",
            help="Text to measure on, words between spaces; none: sampled from built-in corpora.",
            show_default=False,
        ),
    ] = None,
    tokens: Annotated[str, typer.Option(metavar="N", help="How many tokens to count.")] = "1M",
    order: Annotated[int, typer.Option(metavar="N", min=2, help="Length of the n-grams.")] = 5,
    repeat: Annotated[int, typer.Option(metavar="N", min=1, help="How often, in turns.")] = 3,
    kenlm: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where KenLM's programs are. [default: PATH]"),
    ] = None,
    lmplz_memory: Annotated[
        str, typer.Option(metavar="SIZE", help="What lmplz may use (-S); its own default is 80%.")
    ] = "1G",
    curve: Annotated[
        str | None,
        typer.Option(metavar="N,N...", help="Instead: the cost of a token at sizes 1M,3M,10M."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Work here, and leave it all there. [default: nowhere]"),
    ] = None,
    json: Json = False,
) -> None:
    """Estimate and score n-gram models beside KenLM.

    From text to an ARPA file, to a file that answers queries, and how quickly it answers them. A
    ratio above 1 says that Elman is quicker, or uses less.
    """
    from elman.bench import ngram as bench_ngram

    def note(text: str) -> None:
        talk(f"· {text}")

    sizes = [_number(size) for size in (curve or tokens).split(",")]
    if len(sizes) > 1 and not curve:
        raise UsageError("--tokens is one number", "give several to --curve")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    place = nullcontext(folder) if folder else tempfile.TemporaryDirectory(prefix="elman-bench-")
    with place as at:
        if curve:
            rows = bench_ngram.curve(
                files or (), Path(at), sizes, order=order, repeat=repeat, note=note
            )
        else:
            found = bench_ngram.KenLM.find(kenlm)
            if found.missing:
                note(found.missing)
            rows = bench_ngram.bench(
                files or (),
                Path(at),
                num_tokens=sizes[0],
                order=order,
                repeat=repeat,
                kenlm=found,
                lmplz_memory=lmplz_memory,
                note=note,
            )
        show(rows, json=json)


Cells = Annotated[
    str, typer.Option(metavar="NAME,...", help="Cells to measure, of lstm,gru,mingru,minlstm,sru.")
]
Sizes = Annotated[
    str | None,
    typer.Option(
        metavar="LxHxB[xV],...",
        help="Layers, units, batch and words, as in 1x256x32,2x200x20x10000.",
    ),
]
Threads = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Threads. [default: one per core]")
]
Repeat = Annotated[int, typer.Option(min=1, metavar="N", help="How often, in turns.")]


BenchDevice = Annotated[
    Literal["cpu", "cuda"], typer.Option(metavar="cpu|cuda", help="Where to measure.")
]


@app.command()
def kernels(
    cells: Cells = "lstm,gru,mingru",
    sizes: Sizes = None,
    threads: Threads = None,
    repeat: Repeat = 7,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw it: over units, batch and length.")
    ] = None,
    device: BenchDevice = "cpu",
    dtype: Annotated[
        Literal["bfloat16", "float16", "float32"],
        typer.Option(metavar="bfloat16|float16|float32", help="Numbers, on cuda."),
    ] = "bfloat16",
    json: Json = False,
) -> None:
    """Measure one recurrent layer, forward and backward, beside torch's.

    Microseconds per time step. The errors are relative distances from the same computation in
    float64. minGRU, minLSTM and SRU are measured beside the papers' scan in log space. On cuda,
    lstm and gru, each as a program calls it and replayed from a CUDA graph.
    """
    from elman.bench import speed as bench_speed

    if device == "cuda":
        torch, bench_cuda = _cuda()
        chosen = [cell for cell in _cells(cells) if cell in ("lstm", "gru")]
        if not chosen:
            raise UsageError("on cuda only lstm and gru are measured", "leave out --cells")
        given = _sizes(sizes, bench_cuda.LAYERS)
        show(_told(bench_cuda.kernels(chosen, given, repeat, getattr(torch, dtype))), json=json)
        return
    with bench_speed.threads(threads):
        measured = bench_speed.kernels(_cells(cells), _sizes(sizes, bench_speed.LAYERS), repeat)
        rows = list(_told(measured))
    show(rows, json=json)
    if plot is not None:
        from elman.bench.plot import draw

        draw(rows, plot)
        talk(f"drawn: {plot}")


@app.command()
def step(
    cells: Cells = "lstm,gru,mingru",
    sizes: Sizes = None,
    threads: Threads = None,
    repeat: Repeat = 5,
    device: BenchDevice = "cpu",
    json: Json = False,
) -> None:
    """Measure whole training steps beside the same model in plain torch.

    Embedding, layers, output layer, gradients, clipping and Adam: tokens per second. Cells that
    torch does not have are measured beside its LSTM of the same width. On cuda, an AWD-LSTM in
    bfloat16 with all its dropouts, beside the same model on torch's layers.
    """
    from elman.bench import speed as bench_speed

    if device == "cuda":
        _, bench_cuda = _cuda()
        show(_told(bench_cuda.steps(_sizes(sizes, bench_cuda.STEPS), repeat)), json=json)
        return
    with bench_speed.threads(threads):
        rows = bench_speed.steps(_cells(cells), _sizes(sizes, bench_speed.STEPS), repeat)
        show(_told(rows), json=json)


@app.command("generate")
def generate_(
    cells: Cells = "lstm,gru,mingru",
    sizes: Sizes = None,
    threads: Threads = None,
    repeat: Repeat = 5,
    json: Json = False,
) -> None:
    """Measure the generation of one stream beside a loop over torch's layers.

    Tokens per second, in float32 and with weights of one byte.
    """
    from elman.bench import speed as bench_speed

    with bench_speed.threads(threads):
        rows = bench_speed.generation(_cells(cells), _sizes(sizes, bench_speed.STREAMS), repeat)
        show(_told(rows), json=json)


@app.command("serve")
def serve_(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            help="A language model; none: one layer of --units over characters, hardly trained.",
            show_default=False,
        ),
    ] = None,
    units: Annotated[int, typer.Option(min=1, metavar="N", help="Units of that model.")] = 512,
    streams: Annotated[
        str, typer.Option(metavar="N,...", help="How many continuations at once.")
    ] = "1,8,64,256",
    tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens of each.")] = 128,
    threads: Annotated[
        int, typer.Option(min=0, metavar="N", help="Threads of the server; 0: half the cores.")
    ] = 0,
    soak: Annotated[
        float | None,
        typer.Option(metavar="M", help="Instead: for so many minutes, clients of all manners."),
    ] = None,
    repeat: Repeat = 3,
    json: Json = False,
) -> None:
    """Measure a server: many continuations at once beside the same ones one at a time.

    Tokens per second, and milliseconds to the first token, over HTTP. The first token of the peer
    is that of the one in the middle of the queue. With --soak, clients that stay, vanish and
    dawdle: are streams lost, does memory grow?
    """
    from elman.api import LM, load, train_lm
    from elman.bench import serving as bench
    from elman.bench.soak import soak as soaked

    with tempfile.TemporaryDirectory(prefix="elman-bench-") as at:
        folder = Path(model) if model is not None else Path(at) / "run"
        if model is None:
            settings = {
                "tokenizer.kind": "char",
                "model.hidden_size": units,
                "model.embedding_size": units,
                "model.num_layers": 1,
            }
            train_lm("python-docs", steps=1, seed=1, out=folder, settings=settings, device="cpu")
        ends = sorted(load(folder, device="cpu", kind=LM).end_ids())
        with bench.served(folder, threads) as (address, process):
            if soak is not None:
                show(soaked(address, process, soak, model=model or f"1x{units}"), json=json)
                return
            rows = bench.bench(
                address,
                num_tokens=tokens,
                streams=[_number(number) for number in streams.split(",")],
                repeat=repeat,
                banned=ends,
                model=model or f"1x{units}",
            )
            show(_told(rows), json=json)


@app.command("equal-time")
def equal_time(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Text to train on.", show_default=False)
    ],
    minutes: Annotated[float, typer.Option(metavar="M", help="Minutes for each.")] = 2.0,
    steps: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Instead: the same number of updates for each."),
    ] = None,
    cells: Cells = "lstm,gru,mingru,minlstm,sru",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of all of them."),
    ] = None,
    json: Json = False,
) -> None:
    """Train the same model with different cells, each for as long: who is better by then?

    The first cell is the peer of the others. Settings are the automatic ones for the text, and two
    layers, which cells that train in parallel over time need.
    """
    from elman.bench.compare import equal_time as compare

    with tempfile.TemporaryDirectory(prefix="elman-bench-") as folder:
        rows = compare(
            file,
            _cells(cells),
            settings or (),
            Path(folder),
            minutes=None if steps else minutes,
            steps=steps,
        )
        show(_told(rows), json=json)


@app.command()
def regimes(
    data: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SOURCE TARGET]",
            help="Two text files, line by line; none: the built-in kjv-asv.",
            show_default=False,
        ),
    ] = None,
    valid: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="SOURCE TARGET", help="Two files to validate on; else held out."),
    ] = None,
    first_steps: Annotated[
        int, typer.Option(min=1, metavar="N", help="Updates by teacher forcing before.")
    ] = 4000,
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="Updates of each regime.")] = 1000,
    only: Annotated[
        str | None,
        typer.Option(metavar="NAME,...", help="These regimes alone, beside the first of them."),
    ] = None,
    settings: Settings = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Train a translator under each training regime: what does an update cost, what does it change?

    All go on from the same model, trained by teacher forcing, which goes on too and is the peer of
    the others. A ratio above 1 says that a regime is quicker, or better, than that.
    """
    from elman.bench.compare import REGIMES
    from elman.bench.compare import regimes as compare

    names = list(REGIMES) if only is None else [name.strip() for name in only.split(",")]
    for name in names:
        if name not in REGIMES:
            raise UsageError(f"there is no regime '{name}' to measure", nearest(name, REGIMES))
    with tempfile.TemporaryDirectory(prefix="elman-bench-") as folder:
        rows = compare(
            data or (),
            valid or (),
            names,
            settings or (),
            Path(folder),
            first_steps=first_steps,
            steps=steps,
            device=device,
        )
        show(_told(rows), json=json)


@app.command()
def pictures(
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="Images and sentences.", show_default=False)
    ],
    test: Annotated[str, typer.Option(metavar="TABLE", help="Others, to judge the models on.")],
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="How often each is trained.")] = 3,
    attempts: Annotated[
        list[str] | None,
        typer.Option(
            "--try",
            metavar="KEY=VALUE",
            help="Also with this setting, for each of the two the better one; may be repeated.",
        ),
    ] = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Train a captioner, and the same one blind to the pictures: what is seeing worth?

    Means over seeds of surprisal, CIDEr and BLEU. Which of several settings is better is decided on
    sentences that are held out of TABLE, for each of the two by itself; --test has no say in it.
    """
    from elman.bench.compare import pictures as compare

    with tempfile.TemporaryDirectory(prefix="elman-bench-") as folder:
        rows = compare(table, test, attempts or (), settings or (), Path(folder), num_seeds=seeds)
        show(_told(rows), json=json)


def show(rows: Iterable[Row], *, json: bool) -> None:
    """Print the rows of a bench: as a table, or as JSON a line each as they come."""
    if json:
        for row in rows:
            unknown = {"error", "peer_error"} if row.error is None else set()
            result_json({key: value for key, value in asdict(row).items() if key not in unknown})
        return
    rows = list(rows)
    exact = any(row.error is not None for row in rows)
    lines = [
        (
            row.name + _told_size(row.settings),
            number(row.ours),
            "" if row.peer is None else number(row.peer),
            "" if row.ratio is None else f"{row.ratio:.2f}",
            row.unit,
            *((_error(row.error), _error(row.peer_error)) if exact else ()),
        )
        for row in rows
    ]
    header = ("what", "ours", "peer", "ratio", "unit")
    result(table(lines, header=(*header, "error", "peer's") if exact else header))


def _cuda() -> tuple[Any, Any]:
    """torch and the measurements on CUDA, where there is a device."""
    import torch

    from elman.bench import cuda as bench_cuda

    if not torch.cuda.is_available():
        raise UsageError("there is no CUDA device here", "leave out --device")
    return torch, bench_cuda


def _error(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


def _told_size(settings: dict[str, Any]) -> str:
    """`2x512, batch 64, 128 steps`, where a row is about a recurrent network."""
    if "hidden_size" not in settings:
        return ""
    names = ("num_layers", "hidden_size", "batch_size", "num_steps")
    layers, hidden, batch, steps = (settings[name] for name in names)
    return f" {layers}x{hidden}, batch {batch}, {steps} steps"


def _told(rows: Iterable[Row]) -> Iterator[Row]:
    """Say how far it is, as rows come."""
    for row in rows:
        ratio = "" if row.ratio is None else f": {row.ratio:.2f}"
        talk(f"· {row.name}{_told_size(row.settings)}{ratio}")
        yield row


def _cells(text: str) -> list[Any]:
    known = ("lstm", "gru", "mingru", "minlstm", "sru")
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise UsageError(f"there is no cell '{name}' to measure", nearest(name, known))
    return names


def _sizes(text: str | None, usual: Sequence[Any]) -> list[Any]:
    """The usual sizes, or those given; what is not given is as in a usual one."""
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


def _number(text: str) -> int:
    """A number such as 1000000, 1M or 300k."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM]?)", text.strip())
    if found is None or not float(found[1]):
        raise UsageError(f"'{text}' is not a number of tokens", "write it as 300k or 10M")
    return int(float(found[1]) * {"": 1, "k": 10**3, "m": 10**6}[found[2].lower()])
