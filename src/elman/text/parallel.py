"""Process the blocks of a text in several processes, in order and in bounded memory.

`map_blocks` starts workers as separate programs (`python -m elman.text.parallel`) and talks to them
through pipes. Forking a process that already runs torch's threads can deadlock, and the standard
library's spawn method re-runs the caller's script if it lacks a `__main__` guard; separate programs
avoid both.

A message is its length in eight bytes, then its bytes. The first two to a worker are the name of
the function and its set-up; each later one is a block, and gets one reply.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import IO

from elman.base.errors import ElmanError
from elman.base.tables import imported
from elman.base.threads import default_threads, in_order
from elman.text.sources import Block

BlockFunction = Callable[[bytes], bytes]

MAX_WORKERS = 8
"""Default upper limit: each process takes about 100 MB."""


def default_workers(num_bytes: int) -> int:
    """Return the number of processes for a text; 1 if starting others would not pay."""
    return 1 if num_bytes < 16 << 20 else min(MAX_WORKERS, default_threads())


def map_blocks(
    function: str, setup: bytes, blocks: Iterable[Block], workers: int
) -> Iterator[tuple[Block, bytes]]:
    """Yield each block with the result of a function of its bytes, in order.

    `function` is "module:attribute"; called with `setup`, it returns the function of a block. A
    block that is not UTF-8 raises its error here, before it is sent.
    """

    def with_result(block: Block) -> tuple[Block, bytes]:
        _ = block.text  # raises if the block is not UTF-8
        return block, apply(block.data)

    if workers <= 1:
        apply: BlockFunction = imported(function)(setup)
        yield from map(with_result, blocks)
    else:
        with _worker_processes(function, setup) as apply:
            yield from in_order(with_result, blocks, workers)


@contextmanager
def _worker_processes(function: str, setup: bytes) -> Iterator[BlockFunction]:
    """Yield a function that each calling thread executes in a worker process of its own."""
    local = threading.local()
    processes: list[subprocess.Popen[bytes]] = []

    def apply(data: bytes) -> bytes:
        messages = [data]
        if not hasattr(local, "process"):
            local.process = _start()
            processes.append(local.process)
            messages = [function.encode(), setup, data]
        try:
            for message in messages:
                _send(local.process.stdin, message)
            return _receive(local.process.stdout)
        except (OSError, EOFError) as error:
            raise ElmanError(
                f"a worker process died while processing text (exit code {local.process.wait()})",
                "the machine may be out of memory; try fewer workers",
            ) from error

    try:
        yield apply
    finally:
        for process in processes:
            process.kill()
            with suppress(OSError), process:  # closing a pipe may flush to the killed process
                pass


def _start() -> subprocess.Popen[bytes]:
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    # One thread per process.
    environment |= {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "elman.text.parallel"]
    pipe = subprocess.PIPE
    # In a session of its own, Ctrl-C in a terminal reaches this process alone.
    return subprocess.Popen(
        command, stdin=pipe, stdout=pipe, env=environment, start_new_session=True
    )


def _send(pipe: IO[bytes], message: bytes) -> None:
    pipe.write(len(message).to_bytes(8, "little"))
    pipe.write(message)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> bytes:
    length = int.from_bytes(_read(pipe, 8), "little")
    return _read(pipe, length)


def _read(pipe: IO[bytes], length: int) -> bytes:
    data = pipe.read(length)
    if len(data) < length:
        raise EOFError
    return data


def _serve() -> None:
    """Run a worker: answer messages until the pipe closes."""
    answers, requests = sys.stdout.buffer, sys.stdin.buffer
    sys.stdout = sys.stderr  # keep stray prints out of the answers
    with suppress(EOFError, BrokenPipeError):  # the parent has ended, or was killed
        function = _receive(requests).decode()
        apply: BlockFunction = imported(function)(_receive(requests))
        while True:
            _send(answers, apply(_receive(requests)))


if __name__ == "__main__":
    _serve()
    os._exit(0)  # without flushing an answer that nobody reads
