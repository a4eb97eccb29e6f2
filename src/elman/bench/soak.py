"""`elman bench serve --soak`: a server under misbehaving clients for minutes.

Some clients read to the end, some disconnect in the middle, some read slowly. Rows count streams
that broke off or failed, and compare the server's memory late and early in the run.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from elman.bench.rows import Row, less_is_better
from elman.bench.serving import post_completion

CLIENTS = 24
"""Concurrent clients."""
MAX_TOKENS = 200
"""Each client asks for 1 to this many tokens."""
BEHAVIOURS = {"stays": 6, "disconnects": 3, "reads slowly": 1}
"""What clients do, and how often."""


def measure_soak(address: str, process: int, minutes: float, **settings: object) -> Iterator[Row]:
    outcomes, memory = asyncio.run(_run_clients(address, process, 60 * minutes))
    about = {"minutes": minutes, "clients": CLIENTS, **settings}
    for outcome in ("finished", "vanished", "lost", "failed"):
        yield Row(f"soak: {outcome}", outcomes[outcome], None, None, "streams", about)
    # Skip the first quarter, while caches fill and allocators grow.
    quarter = len(memory) // 4
    early = statistics.median(memory[quarter : 2 * quarter] or memory)
    late = statistics.median(memory[-quarter:] or memory)
    yield less_is_better("soak: memory late and early", late, early, "MB", **about)


async def _run_clients(
    address: str, process: int, seconds: float
) -> tuple[Counter[str], list[float]]:
    """Outcomes of all streams, and the server's memory over time in MB."""
    outcomes: Counter[str] = Counter()
    memory: list[float] = []
    end = time.monotonic() + seconds

    async def client(number: int) -> None:
        rng = random.Random(number)
        while time.monotonic() < end:
            outcomes[await _visit(address, rng)] += 1

    async def watch() -> None:
        while time.monotonic() < end:
            memory.append(megabytes(process))
            await asyncio.sleep(seconds / 100)

    await asyncio.gather(watch(), *(client(number) for number in range(CLIENTS)))
    return outcomes, memory


async def _visit(address: str, rng: random.Random) -> str:
    """Make one request; return the outcome of its stream."""
    behaviour = rng.choices(list(BEHAVIOURS), list(BEHAVIOURS.values()))[0]
    body = {
        "prompt": "The " * rng.randint(1, 40),
        "max_tokens": rng.randint(1, MAX_TOKENS),
        "stream": True,
        "seed": rng.getrandbits(30),
    }
    pieces_wanted = rng.randint(0, 10)
    reader, writer = await post_completion(address, body)
    pieces = 0
    try:
        async for line in reader:
            if b'"error"' in line:
                return "failed"
            if line.startswith(b"data: [DONE]"):
                return "finished"
            pieces += line.startswith(b"data: ")
            if behaviour == "disconnects" and pieces > pieces_wanted:
                writer.transport.abort()
                return "vanished"
            if behaviour == "reads slowly":
                await asyncio.sleep(0.02)
    finally:
        writer.close()
    return "lost"


def megabytes(process: int) -> float:
    """Resident memory of a process (Linux; elsewhere 0)."""
    try:
        text = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    line = next(line for line in text.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1000
