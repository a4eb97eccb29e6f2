"""How many streams a server carries: tokens per second and the time to the first token.

The server is a process of its own, `elman serve` as a user starts it, and the requests come over
HTTP. The peer is the same server asked for the same continuations one at a time, which is what a
server without batching does with them.
"""

from __future__ import annotations

import asyncio
import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from elman.base.errors import ElmanError
from elman.bench.measuring import Row, less_is_better, more_is_better

STREAMS = (1, 8, 64, 256)
"""Numbers of streams that are measured."""
ALONE = 4
"""How many requests are made one at a time, to know how long one takes."""


@dataclass(frozen=True)
class Reading:
    """One stream, as its client saw it."""

    tokens: int
    first_seconds: float
    """From the request to the first piece of text."""
    seconds: float
    """From the request to the end."""


@contextmanager
def served(folder: Path, threads: int) -> Iterator[tuple[str, int]]:
    """A server of this model; its address, and the number of its process."""
    command = [sys.executable, "-m", "elman.cli", "serve", f"bench={folder}", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--threads", str(threads)], stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        said = process.stderr.readline()
        if not said.startswith("serving "):
            raise ElmanError(f"the server did not start: {said.strip()}", "try `elman serve`")
        yield said.split()[-1], process.pid
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate()


async def ask(address: str, body: dict[str, Any]) -> Reading:
    """One request over a connection of its own, read to the end."""
    where = urlsplit(address)
    started = time.perf_counter()
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    data = json.dumps(body).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    writer.write(head.encode() + data)
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
        raise ElmanError("the server did not answer a request", "look at what it says")
    return Reading(tokens, first - started, ended - started)


async def together(address: str, bodies: Sequence[dict[str, Any]]) -> tuple[float, list[Reading]]:
    """All requests at once: tokens per second, and what each saw."""
    started = time.perf_counter()
    readings = await asyncio.gather(*(ask(address, body) for body in bodies))
    seconds = time.perf_counter() - started
    return sum(reading.tokens for reading in readings) / seconds, list(readings)


async def one_by_one(address: str, bodies: Sequence[dict[str, Any]]) -> tuple[float, list[Reading]]:
    """One after the other: tokens per second, and what each saw."""
    started = time.perf_counter()
    readings = [await ask(address, body) for body in bodies]
    seconds = time.perf_counter() - started
    return sum(reading.tokens for reading in readings) / seconds, readings


def bench(
    address: str,
    *,
    prompt: str = "The ",
    num_tokens: int = 128,
    streams: Sequence[int] = STREAMS,
    repeat: int = 3,
    banned: Sequence[int] = (),
    **settings: Any,
) -> Iterator[Row]:
    """Rows for each number of streams; `banned` tokens, which would end a text, are not drawn."""

    def bodies(number: int) -> list[dict[str, Any]]:
        return [
            {
                "prompt": prompt,
                "max_tokens": num_tokens,
                "seed": seed,
                "stream": True,
                "stream_options": {"include_usage": True},
                "logit_bias": {str(token): -100 for token in banned},
            }
            for seed in range(number)
        ]

    asyncio.run(together(address, bodies(2)))  # the first of anything takes longer
    alone: list[tuple[float, list[Reading]]] = []
    found: dict[int, list[tuple[float, list[Reading]]]] = {number: [] for number in streams}
    for _ in range(repeat):
        alone.append(asyncio.run(one_by_one(address, bodies(ALONE))))
        for number in streams:
            found[number].append(asyncio.run(together(address, bodies(number))))
    rate_alone = statistics.median(rate for rate, _ in alone)
    readings_alone = [reading for _, readings in alone for reading in readings]
    first_alone = statistics.median(reading.first_seconds for reading in readings_alone)
    seconds_alone = statistics.median(reading.seconds for reading in readings_alone)
    for number in streams:
        rate = statistics.median(rate for rate, _ in found[number])
        firsts = [r.first_seconds for _, readings in found[number] for r in readings]
        told = {"streams": number, "tokens": num_tokens, "repeat": repeat, **settings}
        yield more_is_better(f"{number} streams", rate, rate_alone, "tokens/s", **told)
        # In a queue the one in the middle waits for half of the others.
        queued = first_alone + (number - 1) / 2 * seconds_alone
        name = f"{number} streams, first token"
        first = statistics.median(firsts)
        told |= {"slowest_ms": round(1000 * max(firsts), 1)}
        yield less_is_better(name, 1000 * first, 1000 * queued, "ms", **told)
