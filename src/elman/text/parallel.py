"""Process the blocks of a text in several processes, in order and in bounded memory.

`map_blocks` starts workers as separate programs (`python -m elman.text.parallel`) and talks to them
through pipes. Forking a process that already runs torch's threads can deadlock, and the standard
library's spawn method re-runs the caller's script if it lacks a `__main__` guard; separate programs
avoid both.

A frame on a pipe is its length in eight bytes, then its content. The first frame names the
function, the second is its set-up; each later frame is a block and gets one frame in reply.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from typing import IO

from elman.base.errors import ElmanError
from elman.text.sources import Block

BlockFunction = Callable[[bytes], bytes]

_LENGTH = struct.Struct("<Q")

MAX_WORKERS = 8
"""Default upper limit: each process takes about 100 MB."""


def default_workers(num_bytes: int) -> int:
    """Return the number of processes for a text; 1 if starting others would not pay."""
    if num_bytes < 16 << 20:
        return 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(MAX_WORKERS, usable or 1))


def map_blocks(
    function: str, setup: bytes, blocks: Iterable[Block], workers: int
) -> Iterator[tuple[Block, bytes]]:
    """Yield each block with the result of a function of its bytes, in order.

    `function` is "module:attribute"; called with `setup`, it returns the function of a block. A
    block that is not UTF-8 raises its error here, before it is sent.
    """
    if workers <= 1:
        apply = _prepared(function, setup)
        for block in blocks:
            _ = block.text  # raises if the block is not UTF-8
            yield block, apply(block.data)
        return
    pool = _Pool(function, setup, workers)
    waiting: deque[tuple[Block, Future[bytes]]] = deque()
    try:
        for block in blocks:
            _ = block.text
            waiting.append((block, pool.submit(block.data)))
            if len(waiting) > 2 * workers:
                first, result = waiting.popleft()
                yield first, result.result()
        while waiting:
            first, result = waiting.popleft()
            yield first, result.result()
    finally:
        pool.close()


def _prepared(function: str, setup: bytes) -> BlockFunction:
    module, _, attribute = function.partition(":")
    prepare: Callable[[bytes], BlockFunction] = getattr(import_module(module), attribute)
    return prepare(setup)


class _Pool:
    """A thread pool in which each thread owns a worker process and waits for its answers."""

    def __init__(self, function: str, setup: bytes, workers: int) -> None:
        self._greeting = (function.encode(), setup)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._local = threading.local()
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="elman-blocks")

    def submit(self, data: bytes) -> Future[bytes]:
        return self._threads.submit(self._apply, data)

    def close(self) -> None:
        """Kill the workers, whether finished or not."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.kill()
        self._threads.shutdown(wait=True)
        for process in self._processes:
            for pipe in (process.stdin, process.stdout):
                try:
                    if pipe:
                        pipe.close()
                except OSError:  # flushing to a killed process
                    pass
            process.wait()

    def _apply(self, data: bytes) -> bytes:
        process = self._process()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            _write_frame(process.stdin, data)
            answer = _read_frame(process.stdout)
        except OSError:
            answer = None
        if answer is None:
            raise ElmanError(
                f"a worker process died while processing text (exit code {process.wait()})",
                "the machine may be out of memory; try fewer workers",
            )
        return answer

    def _process(self) -> subprocess.Popen[bytes]:
        process: subprocess.Popen[bytes] | None = getattr(self._local, "process", None)
        if process is None:
            environment = dict(os.environ)
            environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
            # One thread per process.
            environment |= {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
            process = subprocess.Popen(
                [sys.executable, "-m", "elman.text.parallel"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
            )
            self._local.process = process
            self._processes.append(process)
            assert process.stdin is not None
            for part in self._greeting:
                _write_frame(process.stdin, part)
        return process


def _write_frame(pipe: IO[bytes], content: bytes) -> None:
    pipe.write(_LENGTH.pack(len(content)))
    pipe.write(content)
    pipe.flush()


def _read_frame(pipe: IO[bytes]) -> bytes | None:
    """Return the next frame, or None at the end of the pipe."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    content = pipe.read(length)
    return content if len(content) == length else None


def _serve() -> None:
    """Run a worker: answer frames until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    answers, requests = sys.stdout.buffer, sys.stdin.buffer
    sys.stdout = sys.stderr  # keep stray prints out of the answers
    function, setup = _read_frame(requests), _read_frame(requests)
    if function is None or setup is None:
        return
    apply = _prepared(function.decode(), setup)
    while (data := _read_frame(requests)) is not None:
        _write_frame(answers, apply(data))


if __name__ == "__main__":
    _serve()
