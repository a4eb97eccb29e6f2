"""Commands that time a server, and the opening of models."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from elman.base.errors import UsageError
from elman.bench.commands.options import BenchDevice, Curve, Repeat, Sizes, check_cuda
from elman.bench.measuring import work_folder
from elman.bench.rows import show
from elman.bench.sizes import SERVED, parse_count, parse_sizes, parse_threads
from elman.terminal.options import Json, argument, option

UNITS = 512
"""Units of the model that `serve` makes."""


def serve(
    model: Annotated[
        str | None,
        argument(
            "[MODEL]",
            "A language model. [default: one untrained layer of --units over characters]",
        ),
    ] = None,
    units: Annotated[
        int | None, option("N", f"Units of the default model. [default: {UNITS}]", min=1)
    ] = None,
    streams: Annotated[str, option("N,...", "Numbers of concurrent continuations.")] = "1,8,64,256",
    tokens: Annotated[int, option("N", "Tokens of each.", min=1)] = 128,
    threads: Annotated[int, option("N", "Threads of the server; 0: half the cores.", min=0)] = 0,
    workers: Annotated[
        int | None, option("N", "Instead, measure N workers beside one process.", min=1)
    ] = None,
    soak: Annotated[
        float | None, option("M", "Instead, run clients that misbehave for M minutes.")
    ] = None,
    repeat: Repeat = 3,
    json: Json = False,
) -> None:
    """Time concurrent requests beside one request at a time.

    Tokens per second, and milliseconds to the first token, over HTTP. The peer's first token is
    that of the request in the middle of the queue. With --soak, some clients disconnect and some
    read slowly: rows count lost streams and compare memory late and early. With --workers, both
    servers answer the same requests in turns; the peer's memory is that of as many servers.
    """
    if model is not None and units is not None:
        raise UsageError("--units is for the default model", "leave out MODEL or --units")
    if soak is not None and workers is not None:
        raise UsageError("--soak and --workers measure different things", "drop one of them")
    from elman.bench import serving
    from elman.bench.soak import measure_soak

    units = units or UNITS
    name = model or f"1x{units}"
    numbers = [parse_count(number) for number in streams.split(",")]
    with work_folder() as at:
        run = Path(model) if model else serving.train_default(units, at / "run")
        end_ids = [] if soak is not None else serving.end_ids(run)
        if workers is not None:
            with (
                serving.running_server(run, threads, workers) as ours,
                serving.running_server(run, threads) as peer,
            ):
                settings = {"workers": workers, "model": name}
                show(
                    serving.measure_workers(
                        ours, peer, numbers, tokens, repeat, end_ids, **settings
                    ),
                    json=json,
                )
            return
        with serving.running_server(run, threads) as (address, process):
            if soak is not None:
                rows = measure_soak(address, process, soak, model=name)
            else:
                rows = serving.measure(address, numbers, tokens, repeat, end_ids, name)
            show(rows, json=json)


def streams(
    sizes: Sizes = None,
    numbers: Annotated[str, option("N,...", "Numbers of streams.")] = "1,64,1024,4096",
    tokens: Annotated[int, option("N", "Tokens of each stream.", min=1)] = 32,
    prompt: Annotated[int, option("N", "Tokens of each prompt.", min=1)] = 32,
    threads: Curve = None,
    repeat: Repeat = 3,
    device: BenchDevice = "cpu",
    json: Json = False,
) -> None:
    """Time the streams of a server beside steps of nn.LSTM.

    Without HTTP and text: tokens per second of all streams, prompts included, and milliseconds to
    the first token of the stream in the middle. Each stream has a prompt and random numbers of its
    own; the peer reads all prompts at once. On cuda, steps are replayed from CUDA graphs.
    """
    check_cuda(device)
    from elman.bench.recurrent import over_threads
    from elman.bench.streams import measure

    counts = [parse_count(number) for number in numbers.split(",")]
    given = (parse_sizes(sizes, SERVED), counts, tokens, prompt, repeat, device)
    show(over_threads(parse_threads(threads), partial(measure, *given)), json=json)


def load(
    model: Annotated[
        str | None,
        argument("[MODEL]", "A run folder with weights. [default: one layer of --units]"),
    ] = None,
    units: Annotated[
        int | None, option("N", "Units of the default model. [default: 1760: 100 MB]", min=1)
    ] = None,
    repeat: Repeat = 15,
    json: Json = False,
) -> None:
    """Time opening a run folder with and without checksums.

    Milliseconds, with both files in the cache of the operating system. A ratio of 0.98 means that
    verification takes 2 % of the time.
    """
    if model is not None and units is not None:
        raise UsageError("--units is for the default model", "leave out MODEL or --units")
    from elman.bench.loading import measure
    from elman.bench.serving import train_default

    with work_folder() as at:
        run = Path(model) if model else train_default(units or 1760, at / "run")
        show(measure(run, at / "copy", repeat), json=json)
