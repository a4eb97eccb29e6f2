"""`elman bench serve`: how many streams a server carries.

The server is `elman serve` in its own process; requests go over HTTP. The peer is the same server
asked for the same continuations one at a time, as a server without batching would work.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from elman.api import LM, load, train_model
from elman.base.errors import ElmanError
from elman.bench.rows import Row, less_is_better, more_is_better

ALONE = 4
"""Requests made one at a time, to measure how long one takes."""


def train_default(units: int, folder: Path) -> Path:
    """An untrained layer of `units` over characters, in a run folder."""
    settings = {
        "tokenizer.kind": "char",
        "model.hidden_size": units,
        "model.embedding_size": units,
        "model.num_layers": 1,
    }
    train_model("lm", "python-docs", steps=1, seed=1, out=folder, settings=settings, device="cpu")
    return folder


def end_ids(folder: Path) -> list[int]:
    return sorted(load(folder, device="cpu", kind=LM).end_ids())


@contextmanager
def running_server(
    folder: Path, threads: int, workers: int | None = None
) -> Iterator[tuple[str, int]]:
    """Start a server for a model; yield its address and process id."""
    command = [sys.executable, "-m", "elman.cli", "serve", f"bench={folder}", "--port", "0"]
    command += ["--threads", str(threads)]
    command += [] if workers is None else ["--workers", str(workers)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
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
    where = urlsplit(address)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    data = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {where.netloc}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
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
            tokens = json.loads(line[6:])["usage"]["completion_tokens"]
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
    started = time.perf_counter()
    if together:
        timings = await asyncio.gather(*(_ask(address, body) for body in bodies))
    else:
        timings = [await _ask(address, body) for body in bodies]
    seconds = time.perf_counter() - started
    return sum(timing.tokens for timing in timings) / seconds, timings


def _bodies(number: int, num_tokens: int, end_ids: Sequence[int]) -> list[dict[str, Any]]:
    """Requests for streams of full length."""
    return [
        {
            "prompt": "The ",
            "max_tokens": num_tokens,
            "seed": seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            "logit_bias": {str(token): -100 for token in end_ids},
        }
        for seed in range(number)
    ]


def measure_workers(
    ours: tuple[str, int],
    peer: tuple[str, int],
    streams: Sequence[int],
    num_tokens: int,
    repeat: int,
    end_ids: Sequence[int],
    **settings: Any,
) -> Iterator[Row]:
    """Rows for a server with workers beside one of a single process, each given as address and
    process id, which take turns. Last their memory: the peer's times the number of workers."""

    def ask(address: str, number: int) -> tuple[float, list[StreamTiming]]:
        bodies = _bodies(number, num_tokens, end_ids)
        return asyncio.run(_ask_all(address, bodies, together=True))

    names = f"{settings['workers']} workers"
    for number in streams:
        found: dict[str, list[tuple[float, list[StreamTiming]]]] = {}
        for _ in range(repeat + 1):
            for address, _ in (ours, peer):
                found.setdefault(address, []).append(ask(address, number))
        details = {"streams": number, "tokens": num_tokens, "repeat": repeat, **settings}
        (rate, first), (peer_rate, peer_first) = (
            _medians(found[address][1:])  # the first round warms up
            for address, _ in (ours, peer)
        )
        name = f"{number} streams, {names}"
        yield more_is_better(name, rate, peer_rate, "tokens/s", **details)
        name = f"{name}, first token"
        yield less_is_better(name, 1000 * first, 1000 * peer_first, "ms", **details)
    all_of_ours, one_peer = (proportional_bytes(process) / 1e6 for _, process in (ours, peer))
    peers = settings["workers"] * one_peer
    yield less_is_better(f"memory, {names}", all_of_ours, peers, "MB", **settings)


def _medians(rounds: Sequence[tuple[float, list[StreamTiming]]]) -> tuple[float, float]:
    """Tokens per second, and seconds to the first token."""
    firsts = [timing.first_seconds for _, timings in rounds for timing in timings]
    return median(rate for rate, _ in rounds), median(firsts)


def proportional_bytes(process: int) -> int:
    """The memory of a process and all below it; pages that several share count once for all."""
    processes = [process]
    for parent in processes:  # which grows
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            processes += map(int, children.read_text().split())
    total = 0
    for one in processes:
        rows = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
        total += sum(int(row.split()[1]) << 10 for row in rows if row.startswith("Pss:"))
    return total


def measure(
    address: str,
    streams: Sequence[int],
    num_tokens: int,
    repeat: int,
    end_ids: Sequence[int],
    model: str,
) -> Iterator[Row]:
    """Two rows for each number of streams."""

    def ask(number: int, *, together: bool) -> tuple[float, list[StreamTiming]]:
        bodies = _bodies(number, num_tokens, end_ids)
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
