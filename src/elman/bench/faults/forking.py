"""Run command lines in forks of a process that has imported everything, in a fraction of a second.

`Forks` starts a few servers: `python -m elman.bench.faults.forking`. A server imports torch and
elman once. For each job it forks a child, which runs the command line with its output in files,
waits for it, and kills it with all its children when its time is up. A job that warms up runs in
the server itself: its imports and machine code are then there for later ones.

A fork has only the thread that forked, and locks that others held stay locked. So a server has one
thread: libraries are limited to one, there is no GPU (autograd has threads for those), and the
number of threads is checked before each fork.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import queue
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, NoReturn

from elman.base.memory import resident_bytes
from elman.base.tables import imported
from elman.base.threads import end_helpers
from elman.bench.faults.operations import set_constants

PAUSE = 0.002
"""Seconds between two looks at a child."""
LIMIT = 120.0
"""Seconds that a command may take."""
MEMORY = 4 << 30
"""Bytes that a child may take beyond those of the server: then it gets a MemoryError."""
ONE_THREAD = {
    **{f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS", "NUMBA", "RAYON")},
    "TOKENIZERS_PARALLELISM": "false",
    "CUDA_VISIBLE_DEVICES": "",
}
SAME_PATH = os.pathsep.join([str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")])
"""PYTHONPATH with which children find the `elman` of this process."""
PRELOADED = ("elman.api", "elman.recipes.run", "elman.train.loop", "elman.nn.kernels")


@dataclass(frozen=True)
class Job:
    """A command line to run."""

    arguments: list[str]
    folder: str
    """The working folder, in which the output is written to files."""
    stdin: str | None = None
    """A file; None: nothing."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables to add."""
    seconds: float = LIMIT
    memory: int = MEMORY
    """Limit of private memory beyond the server's, set in the child."""
    most_memory: int | None = None
    """Resident memory beyond the server's that counts as too much; it is only measured."""
    prepare: str | None = None
    """package.module:function, which the child calls before the command."""
    given: dict[str, Any] = field(default_factory=dict)
    """Its arguments; of a job that warms up: constants to change."""
    warm_up: bool = False
    """Run it in the server, not in a fork."""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    """Its exit status, or minus the signal that killed it."""
    timed_out: bool
    seconds: float
    peak_bytes: int
    """Peak of the resident memory beyond the server's."""
    out: bytes
    err: str
    over_memory: bool = False


class Forks:
    """Servers that run jobs, `number` at a time; a context manager. Any thread may call `run`."""

    def __init__(self, number: int = 2, environment: dict[str, str] | None = None) -> None:
        self.number = number
        self._free: queue.Queue[subprocess.Popen[bytes]] = queue.Queue()
        self._all = [
            subprocess.Popen(
                [sys.executable, "-m", "elman.bench.faults.forking"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": SAME_PATH, **ONE_THREAD, **(environment or {})},
            )
            for _ in range(number)
        ]
        for server in self._all:
            self._free.put(server)

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *error: object) -> None:
        for server in self._all:
            server.communicate()

    def warm_up(
        self, arguments: list[str], folder: Path, constants: Mapping[str, int] | None = None
    ) -> None:
        """Run `elman ARGUMENTS` in all servers, each in its own new folder below `folder`.

        `constants` of Elman have other values meanwhile.
        """
        servers = [self._free.get() for _ in range(self.number)]
        places = [folder / str(number) for number in range(self.number)]
        try:
            for place, server in zip(places, servers, strict=True):
                place.mkdir()
                _send(server, Job(arguments, str(place), given=dict(constants or {}), warm_up=True))
            for server in servers:
                _receive(server)
        finally:  # one that has ended is an error to the next as well, who would wait for ever
            for server in servers:
                self._free.put(server)

    def run(self, arguments: list[str], folder: Path, **how: Any) -> Ended:
        """Run `elman ARGUMENTS` in `folder`; `how` are other fields of `Job`."""
        job = Job(arguments, str(folder), **how)
        for name in (".stdout", ".stderr"):
            (folder / name).touch()
        server = self._free.get()
        try:
            _send(server, job)
            values = _receive(server)
        finally:
            self._free.put(server)
        out, err = ((folder / name).read_bytes() for name in (".stdout", ".stderr"))
        for name in (".stdout", ".stderr"):
            (folder / name).unlink()
        too_much = job.most_memory is not None and values["peak_bytes"] > job.most_memory
        return Ended(**values, out=out, err=err.decode(errors="replace"), over_memory=too_much)


def _send(server: subprocess.Popen[bytes], job: Job) -> None:
    assert server.stdin is not None
    try:
        server.stdin.write(json.dumps(asdict(job)).encode() + b"\n")
        server.stdin.flush()
    except BrokenPipeError:
        raise RuntimeError(f"a fork server ended with status {server.wait()}") from None


def _receive(server: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert server.stdout is not None
    line = server.stdout.readline()
    if not line:
        raise RuntimeError(f"a fork server ended with status {server.wait()}")
    values: dict[str, Any] = json.loads(line)
    return values


def serve(jobs: IO[bytes], answers: IO[bytes]) -> None:
    """Run one job for each line of `jobs`; write a line to `answers` when it has ended."""
    for module in PRELOADED:
        importlib.import_module(module)
    imported("torch:set_num_threads")(1)
    commands: Any = imported("elman.cli.main:program")()  # takes longer than many a command
    sys.modules["elman.cli.main"].program = lambda *_: commands  # type: ignore[attr-defined]
    for line in jobs:
        job = Job(**json.loads(line))
        answers.write(json.dumps(_warm_up(job) if job.warm_up else _run(job)).encode() + b"\n")
        answers.flush()


def _warm_up(job: Job) -> dict[str, Any]:
    os.chdir(job.folder)
    before = set_constants(job.given)
    with open(os.devnull, "w") as sink, redirect_stdout(sink), redirect_stderr(sink):
        code: Any = imported("elman.cli.main:run")(job.arguments)
    set_constants(before)
    end_helpers()
    gc.collect()
    gc.freeze()
    return {"code": code}


def _run(job: Job) -> dict[str, Any]:
    # The driver of a GPU starts a thread as well, which holds no lock that the child needs.
    names = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
    if (number := sum(not name.startswith("cuda") for name in names)) != 1:
        raise RuntimeError(f"the fork server has {number} threads")
    base, began = resident_bytes(), time.monotonic()
    child = os.fork()
    if child == 0:
        _become(job)
    timed_out = False
    # Look without reaping: until then no other process can get the number that is killed below.
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if not timed_out and time.monotonic() - began > job.seconds:
            timed_out = True
            os.kill(child, signal.SIGKILL)
        time.sleep(PAUSE)
    seconds = time.monotonic() - began
    _kill_group(child)  # its children
    _, status, used = os.wait4(child, 0)
    return {
        "code": os.waitstatus_to_exitcode(status),
        "timed_out": timed_out,
        "seconds": seconds,
        "peak_bytes": max(0, used.ru_maxrss * 1024 - base),
    }


def _kill_group(child: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)


def _become(job: Job) -> NoReturn:
    """Run the job in this process, a new child, as a fresh interpreter would; then end."""
    code = 1
    try:
        os.setsid()
        os.chdir(job.folder)
        os.environ.update(job.environment)
        tempfile.tempdir = None
        for number, path, mode in (
            (0, job.stdin or os.devnull, os.O_RDONLY),
            (1, ".stdout", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
            (2, ".stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        ):
            opened = os.open(path, mode, 0o600)
            os.dup2(opened, number)
            os.close(opened)
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        signal.signal(signal.SIGINT, signal.default_int_handler)
        most = _data_bytes() + job.memory
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        if job.prepare is not None:
            imported(job.prepare)(**job.given)
        sys.argv = ["elman", *job.arguments]
        imported("elman.cli.main:main")()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
        with suppress(BaseException):
            atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(BaseException):
                stream.flush()
        os._exit(code)


def _data_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()


if __name__ == "__main__":
    # Whatever prints to stdout must not come between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, answers)
