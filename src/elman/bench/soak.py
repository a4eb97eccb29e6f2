"""A server under clients of all manners for a long time: does it lose streams, fail, or grow?

Some clients read to the end, some vanish in the middle, some read slowly. What is measured is what
must not change: memory late in the run beside memory early in it, and what must not happen: streams
that break off, and errors.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from elman.bench.measuring import Row, less_is_better

CLIENTS = 24
"""Clients at any time."""
MAX_TOKENS = 200
"""Tokens that each asks for, at most."""
MANNERS = {"stays": 6, "vanishes": 3, "dawdles": 1}
"""What clients do, and how often."""


async def visit(address: str, rng: random.Random) -> str:
    """One client; what became of its stream."""
    manner = rng.choices(list(MANNERS), list(MANNERS.values()))[0]
    wanted = rng.randint(1, MAX_TOKENS)
    body = {"prompt": "The " * rng.randint(1, 40), "max_tokens": wanted, "stream": True}
    data = json.dumps({**body, "seed": rng.getrandbits(30)}).encode()
    where = urlsplit(address)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: soak\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    writer.write(head.encode() + data)
    pieces_wanted = rng.randint(0, 10)
    outcome = "lost"
    pieces = 0
    try:
        async for line in reader:
            if b'"error"' in line:
                return "failed"
            if line.startswith(b"data: [DONE]"):
                outcome = "finished"
                break
            pieces += line.startswith(b"data: ")
            if manner == "vanishes" and pieces > pieces_wanted:
                writer.transport.abort()
                return "vanished"
            if manner == "dawdles":
                await asyncio.sleep(0.02)
    finally:
        writer.close()
    return outcome


async def _crowd(address: str, process: int, seconds: float) -> tuple[Counter[str], list[float]]:
    outcomes: Counter[str] = Counter()
    memory: list[float] = []
    end = time.monotonic() + seconds

    async def client(number: int) -> None:
        rng = random.Random(number)
        while time.monotonic() < end:
            outcomes[await visit(address, rng)] += 1

    async def watch() -> None:
        while time.monotonic() < end:
            memory.append(_megabytes(process))
            await asyncio.sleep(seconds / 100)

    await asyncio.gather(watch(), *(client(number) for number in range(CLIENTS)))
    return outcomes, memory


def soak(address: str, process: int, minutes: float, **settings: object) -> Iterator[Row]:
    """Rows of what happened to the streams, and of the server's memory, late beside early."""
    outcomes, memory = asyncio.run(_crowd(address, process, 60 * minutes))
    told = {"minutes": minutes, "clients": CLIENTS, **settings}
    for outcome in ("finished", "vanished", "lost", "failed"):
        yield Row(f"soak: {outcome}", outcomes[outcome], None, None, "streams", told)
    # The first quarter is left out: caches fill, and allocators take what they will keep.
    quarter = len(memory) // 4
    early = statistics.median(memory[quarter : 2 * quarter] or memory)
    late = statistics.median(memory[-quarter:] or memory)
    yield less_is_better("soak: memory late and early", late, early, "MB", **told)


def _megabytes(process: int) -> float:
    """Memory that a process holds (Linux)."""
    try:
        text = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    line = next(line for line in text.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1000
