"""`elman bench serve`: how many streams a server carries.

The server is `elman serve` in its own process; requests go over HTTP. The peer is the same server
asked for the same continuations one at a time, as a server without batching would work.
"""

from __future__ import annotations

import json as json_format
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from typer import Argument, Option

from elman.base.errors import ElmanError, UsageError
from elman.bench.measuring import Row, less_is_better, more_is_better
from elman.bench.shared import Repeat, parse_count, progress, show, work_folder
from elman.terminal.options import Json

if TYPE_CHECKING:
    import asyncio  # slow to import: only where it is used

ALONE = 4
"""Requests made one at a time, to measure how long one takes."""
UNITS = 512


def serve(
    model: Annotated[
        str | None,
        Argument(
            metavar="[MODEL]",
            help="A language model. [default: one untrained layer of --units over characters]",
            show_default=False,
        ),
    ] = None,
    units: Annotated[
        int | None,
        Option(min=1, metavar="N", help=f"Units of the default model. [default: {UNITS}]"),
    ] = None,
    streams: Annotated[
        str, Option(metavar="N,...", help="Numbers of concurrent continuations.")
    ] = "1,8,64,256",
    tokens: Annotated[int, Option(min=1, metavar="N", help="Tokens of each.")] = 128,
    threads: Annotated[
        int, Option(min=0, metavar="N", help="Threads of the server; 0: half the cores.")
    ] = 0,
    soak: Annotated[
        float | None, Option(metavar="M", help="Instead, run clients that misbehave for M minutes.")
    ] = None,
    repeat: Repeat = 3,
    json: Json = False,
) -> None:
    """Measure a server: concurrent continuations beside the same ones one at a time.

    Tokens per second, and milliseconds to the first token, over HTTP. The peer's first token is
    that of the request in the middle of the queue. With --soak, some clients disconnect and some
    read slowly: rows count lost streams and compare memory late and early.
    """
    from elman.api import LM, load, train_model
    from elman.bench.soak import measure_soak

    if model is not None and units is not None:
        raise UsageError("--units is for the default model", "leave out MODEL or --units")
    name = model or f"1x{units or UNITS}"
    with work_folder() as at:
        folder = at / "run" if model is None else Path(model)
        if model is None:
            settings = {
                "tokenizer.kind": "char",
                "model.hidden_size": units or UNITS,
                "model.embedding_size": units or UNITS,
                "model.num_layers": 1,
            }
            train_model(
                "lm", "python-docs", steps=1, seed=1, out=folder, settings=settings, device="cpu"
            )
        end_ids = sorted(load(folder, device="cpu", kind=LM).end_ids())
        with _running_server(folder, threads) as (address, process):
            if soak is not None:
                show(measure_soak(address, process, soak, model=name), json=json)
                return
            numbers = [parse_count(number) for number in streams.split(",")]
            rows = _compare(address, numbers, tokens, repeat, end_ids, name)
            show(progress(rows), json=json)


@contextmanager
def _running_server(folder: Path, threads: int) -> Iterator[tuple[str, int]]:
    """Start a server for a model; yield its address and process id."""
    command = [sys.executable, "-m", "elman.cli", "serve", f"bench={folder}", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--threads", str(threads)], stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        if not line.startswith("serving "):
            raise ElmanError(f"the server did not start: {line.strip()}", "try `elman serve`")
        yield line.split()[-1], process.pid
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate()


async def post_completion(
    address: str, body: dict[str, Any]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request over a connection of its own; the answer is for the caller to read."""
    import asyncio

    where = urlsplit(address)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    data = json_format.dumps(body).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    writer.write(head.encode() + data)
    return reader, writer


@dataclass(frozen=True)
class StreamTiming:
    """One stream, as its client saw it."""

    tokens: int
    first_seconds: float
    """From the request to the first piece of text."""
    seconds: float
    """From the request to the end."""


async def _ask(address: str, body: dict[str, Any]) -> StreamTiming:
    started = time.perf_counter()
    reader, writer = await post_completion(address, body)
    first: float | None = None
    tokens = 0
    async for line in reader:
        if not line.startswith(b"data: "):
            continue
        if first is None:
            first = time.perf_counter()
        if b'"completion_tokens"' in line:
            tokens = json_format.loads(line[6:])["usage"]["completion_tokens"]
        if line.startswith(b"data: [DONE]"):
            break
    ended = time.perf_counter()
    writer.close()
    await writer.wait_closed()
    if first is None or not tokens:
        raise ElmanError("the server did not answer a request", "look at its output")
    return StreamTiming(tokens, first - started, ended - started)


async def _ask_all(
    address: str, bodies: Sequence[dict[str, Any]], *, together: bool
) -> tuple[float, list[StreamTiming]]:
    """Tokens per second of all requests, and the timing of each."""
    import asyncio

    started = time.perf_counter()
    if together:
        timings = await asyncio.gather(*(_ask(address, body) for body in bodies))
    else:
        timings = [await _ask(address, body) for body in bodies]
    seconds = time.perf_counter() - started
    return sum(timing.tokens for timing in timings) / seconds, timings


def _compare(
    address: str,
    streams: Sequence[int],
    num_tokens: int,
    repeat: int,
    end_ids: Sequence[int],
    model: str,
) -> Iterator[Row]:
    """Two rows for each number of streams."""
    import asyncio

    def ask(number: int, *, together: bool) -> tuple[float, list[StreamTiming]]:
        bodies = [
            {
                "prompt": "The ",
                "max_tokens": num_tokens,
                "seed": seed,
                "stream": True,
                "stream_options": {"include_usage": True},
                "logit_bias": {str(token): -100 for token in end_ids},  # all have full length
            }
            for seed in range(number)
        ]
        return asyncio.run(_ask_all(address, bodies, together=together))

    ask(2, together=True)  # warm up
    alone: list[tuple[float, list[StreamTiming]]] = []
    found: dict[int, list[tuple[float, list[StreamTiming]]]] = {number: [] for number in streams}
    for _ in range(repeat):
        alone.append(ask(ALONE, together=False))
        for number in streams:
            found[number].append(ask(number, together=True))
    rate_alone = median(rate for rate, _ in alone)
    timings_alone = [timing for _, timings in alone for timing in timings]
    first_alone = median(timing.first_seconds for timing in timings_alone)
    seconds_alone = median(timing.seconds for timing in timings_alone)
    for number in streams:
        rate = median(rate for rate, _ in found[number])
        firsts = [timing.first_seconds for _, timings in found[number] for timing in timings]
        settings = {"streams": number, "tokens": num_tokens, "repeat": repeat, "model": model}
        yield more_is_better(f"{number} streams", rate, rate_alone, "tokens/s", **settings)
        # In a queue, the request in the middle waits for half of the others.
        queued = first_alone + (number - 1) / 2 * seconds_alone
        settings |= {"slowest_ms": round(1000 * max(firsts), 1)}
        name = f"{number} streams, first token"
        yield less_is_better(name, 1000 * median(firsts), 1000 * queued, "ms", **settings)
