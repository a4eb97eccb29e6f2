"""The front's view of the other processes: start them, replace those that die, restart them all.

A worker has a place, 0 to N - 1, and a number of its own. A restart opens the models again in a new
template; then, place by place, a new worker takes over when it is ready, and the old one ends when
its requests have.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from elman.base.errors import ElmanError, UsageError
from elman.serve.limits import Limits
from elman.serve.serving import Serving

log = logging.getLogger(__name__)

START_SECONDS = 300.0
"""How long a process may take to open the models."""
END_SECONDS = 12.0
"""How long processes may take to end; then they are killed."""
QUICK_SECONDS = 5.0
"""A worker that dies sooner is started again after a pause, which doubles."""
PAUSES = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)
ONE_THREAD = {
    **{f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS", "NUMBA", "RAYON")},
    "TOKENIZERS_PARALLELISM": "false",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # looking for a GPU any other way forbids forking
}
"""Environment of a template."""


@dataclass(frozen=True)
class Order:
    """What a template or worker needs to know."""

    serving: Serving
    environment: dict[str, str]
    """Of workers."""

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), default=str).encode()

    @staticmethod
    def from_json(text: bytes) -> Order:
        data = json.loads(text)
        serving: dict[str, Any] = data["serving"]
        serving["limits"] = Limits(**serving["limits"])
        serving["runs"] = serving["runs"] and Path(serving["runs"])
        return Order(Serving(**serving), data["environment"])

    @staticmethod
    def command(hub: str, key: int, worker: int | None = None) -> list[str]:
        words = [sys.executable, "-m", "elman.serve.workers.template", hub, str(key)]
        return words if worker is None else [*words, str(worker)]


def worker_path(hub: str, number: int) -> str:
    """The socket of a worker."""
    return str(Path(hub).with_name(f"{number}"))


@dataclass(eq=False)
class Template:
    process: subprocess.Popen[bytes]
    opened: asyncio.Future[asyncio.StreamWriter]

    def fork(self, number: int) -> None:
        self.opened.result().write(b"%d\n" % number)

    def close(self) -> None:
        """Let it end; its workers stay."""
        if self.opened.done() and not self.opened.cancelled() and not self.opened.exception():
            self.opened.result().close()
        else:
            self.process.terminate()


@dataclass(eq=False)
class Worker:
    place: int
    path: str
    up: asyncio.Future[None]
    """Done when it answers requests; has an exception if it never will."""
    pid: int = 0
    writer: asyncio.StreamWriter | None = None
    num_open: int = 0
    """Requests."""
    is_draining: bool = False
    started: float = field(default_factory=time.monotonic)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_ready(self) -> bool:
        is_up = self.up.done() and not self.up.cancelled() and not self.up.exception()
        return is_up and not self.gone.is_set()

    def release(self) -> None:
        """Note the end of a request."""
        self.num_open -= 1
        self._end_if_idle()

    def drain(self) -> None:
        """End it after its last request."""
        self.is_draining = True
        self._end_if_idle()

    def end(self) -> None:
        """End it; streams have a few seconds."""
        if self.writer is not None:
            self.writer.close()

    def kill(self) -> None:
        if self.pid and not self.gone.is_set():
            os.kill(self.pid, 9)

    def _end_if_idle(self) -> None:
        if self.is_draining and not self.num_open:
            self.end()


class Fleet:
    """Close it when done. All methods belong to the event loop's thread."""

    def __init__(self, serving: Serving, number: int) -> None:
        self._order = Order(serving.of_each(number), dict(os.environ))
        self.places: list[Worker | None] = [None] * number
        """The worker of each place; None while it is started for the first time."""
        self.restarts = [0] * number
        """How often the worker of each place has died."""
        self._folder = tempfile.mkdtemp(prefix="elman-")  # for this user alone
        self._hub = str(Path(self._folder) / "hub")
        self._keys = itertools.count()
        self._templates: dict[int, Template] = {}
        self._workers: dict[int, Worker] = {}
        self._template: Template | None = None
        self._rolling = asyncio.Lock()
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._quick_deaths = [0] * number
        self._closed = False
        self.models: list[str] = []
        """Names of what is served."""
        self.notes: list[str] = []

    def ready(self) -> dict[int, Worker]:
        """The workers that answer requests, by place."""
        return {at: worker for at, worker in enumerate(self.places) if worker and worker.is_ready}

    async def some_ready(self, seconds: float) -> dict[int, Worker]:
        """The same; wait for one if there is none. Empty if there is still none."""
        deadline = time.monotonic() + seconds
        while not (found := self.ready()) and not self._closed:
            self._changed.clear()
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self._changed.wait()
            except TimeoutError:
                break
        return found

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._connected, self._hub)
        self._template = await self._open()
        await asyncio.gather(*(self._fill(place) for place in range(len(self.places))))

    def restart_soon(self) -> None:
        self._spawn(self.restart())

    async def restart(self) -> None:
        """Replace all workers by new ones that have opened the models again.

        If that fails, those that run stay.
        """
        async with self._rolling:
            try:
                template = await self._open()
                try:
                    for place in range(len(self.places)):
                        await self._fill(place, template)
                except (ElmanError, OSError):
                    template.close()
                    raise
            except (ElmanError, OSError) as error:
                log.error("the workers were not replaced: %s", error)
                return
            if self._template is not None:
                self._template.close()
            self._template = template
            log.warning("all workers were replaced")

    async def close(self) -> None:
        """End all processes, and wait for them."""
        self.end()
        for task in self._tasks:
            task.cancel()
        workers = [worker for worker in self._workers.values() if worker.pid]
        try:
            async with asyncio.timeout(END_SECONDS):
                for worker in workers:
                    await worker.gone.wait()
        except TimeoutError:
            for worker in workers:
                worker.kill()
        self._server.close()
        for template in self._templates.values():
            try:
                await asyncio.to_thread(template.process.wait, END_SECONDS)
            except subprocess.TimeoutExpired:
                template.process.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def end(self) -> None:
        """Tell all processes to end; streams have a few seconds."""
        self._closed = True
        self._changed.set()
        for worker in self._workers.values():
            worker.end()
        for template in self._templates.values():
            template.close()

    async def _open(self) -> Template:
        """Start a template; wait until it has opened the models."""
        key = next(self._keys)
        process = subprocess.Popen(
            self._order.command(self._hub, key),
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **ONE_THREAD},
            start_new_session=True,  # Ctrl-C in a terminal is for the front alone
        )
        loop = asyncio.get_running_loop()
        template = self._templates[key] = Template(process, loop.create_future())
        assert process.stdin is not None
        with process.stdin as stdin:
            stdin.write(self._order.to_json())
        watch = self._spawn(self._fail_if_it_ends(template))
        try:
            async with asyncio.timeout(START_SECONDS):
                await template.opened
        except TimeoutError:
            process.kill()
            raise ElmanError("the models were not opened in time", "see above") from None
        finally:
            watch.cancel()
        return template

    async def _fail_if_it_ends(self, template: Template) -> None:
        while template.process.poll() is None:
            await asyncio.sleep(0.1)
        if not template.opened.done():
            code = template.process.returncode
            error = ElmanError(f"a process of the server ended with status {code}", "see above")
            template.opened.set_exception(error)

    async def _fill(self, place: int, template: Template | None = None) -> None:
        """Start a worker; when it is ready it takes over the place, and the old one is drained."""
        template = template or self._template
        assert template is not None
        number = next(self._keys)
        up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        worker = self._workers[number] = Worker(place, worker_path(self._hub, number), up)
        if self.places[place] is None:
            self.places[place] = worker
        template.fork(number)
        try:
            async with asyncio.timeout(START_SECONDS):
                await up
        except TimeoutError:
            worker.kill()
            raise ElmanError(f"worker {place} did not start in time", "see above") from None
        before, self.places[place] = self.places[place], worker
        self._changed.set()
        if before is not None and before is not worker and not before.gone.is_set():
            before.drain()
            self._spawn(self._end_later(before))

    async def _end_later(self, worker: Worker) -> None:
        """End a worker whose requests outlast their limit."""
        await asyncio.sleep(self._order.serving.limits.max_seconds)
        worker.end()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Follow a template or a worker, from its first message to its end."""
        try:
            hello = json.loads(await reader.readline() or b"{}")
            if "template" in hello:
                await self._follow_template(hello, reader, writer)
            elif "worker" in hello:
                await self._follow_worker(hello, reader, writer)
        except (OSError, ValueError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _follow_template(
        self,
        hello: Mapping[str, Any],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        template = self._templates[hello["template"]]
        if template.opened.done():  # it took too long
            return
        if "failed" in hello:
            template.opened.set_exception(_error(hello["failed"]))
            return
        template.opened.set_result(writer)
        await reader.read()
        await asyncio.to_thread(template.process.wait)
        if template is self._template and not self._closed:
            log.error("the process that starts workers died; replacing it and its workers")
            self.restart_soon()

    async def _follow_worker(
        self,
        hello: Mapping[str, Any],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        worker = self._workers[hello["worker"]]
        worker.pid, worker.writer = hello["pid"], writer
        if self._closed:
            worker.end()
        try:
            said = json.loads(await reader.readline() or b"{}")
            if worker.up.done():  # it took too long
                pass
            elif "failed" in said:
                worker.up.set_exception(_error(said["failed"]))
            elif said:
                self.models, self.notes = said["models"], said["notes"]
                worker.up.set_result(None)
            await reader.read()
        finally:
            self._died(hello["worker"], worker)

    def _died(self, number: int, worker: Worker) -> None:
        was_ready = worker.is_ready
        worker.gone.set()
        del self._workers[number]
        if not worker.up.done():
            worker.up.set_exception(
                ElmanError(f"worker {worker.place} died while it started", "see above")
            )
        if self._closed or not was_ready or self.places[worker.place] is not worker:
            return
        place = worker.place
        self.restarts[place] += 1
        quick = time.monotonic() - worker.started < QUICK_SECONDS
        self._quick_deaths[place] = self._quick_deaths[place] + 1 if quick else 0
        log.error("worker %d (process %d) died; starting another", place, worker.pid)
        self._spawn(self._refill(place))

    async def _refill(self, place: int) -> None:
        while not self._closed:
            await asyncio.sleep(PAUSES[min(self._quick_deaths[place], len(PAUSES) - 1)])
            try:
                await self._fill(place)
                return
            except (ElmanError, OSError) as error:
                log.error("worker %d did not start: %s", place, error)
                self._quick_deaths[place] += 1

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _error(told: list[Any]) -> ElmanError:
    message, hint, is_usage = told
    return (UsageError if is_usage else ElmanError)(message, hint)
