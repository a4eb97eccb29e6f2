"""What routes share: models, limits, and workers for computations outside the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from elman.base.errors import nearest
from elman.base.memory import return_free_memory
from elman.serve.http import schema
from elman.serve.http.errors import ApiError, ErrorAnswer
from elman.serve.http.guard import SHARE
from elman.serve.http.header_limits import ABORT
from elman.serve.http.metrics import Metrics
from elman.serve.http.open_requests import OpenRequest, Waker
from elman.serve.http.served import DEEDS, LABELLED, Served
from elman.serve.limits import Limits
from elman.serve.memory import Memory, Share
from elman.serve.refusals import Busy
from elman.serve.streams import Continuation

WORKERS = 2
"""Threads for scoring, vectors and beam search, beside the engines."""

TRIM_SECONDS = 0.5
TRIM_INTERVAL = 10.0
"""How long after a large request its memory is returned to the system, and the least time between
two such returns, which keep a core busy."""

LARGE_BYTES = 1 << 14
"""Bodies from this size on are tokenized in a thread, to not block the event loop."""

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer} for status in (400, 401, 403, 404, 408, 413, 415, 421, 429, 503)
}
"""Error answers of every route that reads a body."""

PIECE_BYTES = 1 << 18
"""Bytes of an answer that are handed to the connection at a time."""

Result = TypeVar("Result")


class Context:
    def __init__(
        self,
        served: dict[str, Served],
        limits: Limits,
        waker: Waker,
        runs: Path | None = None,
        *,
        lab: bool = False,
    ) -> None:
        self.served = served
        self.limits = limits
        self.waker = waker
        self.runs = runs
        self.lab = lab
        """Whether clients may run experiments."""
        self.experiment_runs = False
        self.metrics = Metrics()
        self.memory = Memory(limits, self._large_end)
        self._trims = False
        self._next_trim = 0.0
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="worker")
        self._num_working = 0

    def named(self, name: str | None) -> Served:
        """The model of this name; the first one if `name` is None."""
        if name is None and self.served:
            return next(iter(self.served.values()))
        name = name or ""
        if name not in self.served:
            hint = nearest(name[:100], self.served)
            message = f"the model '{name[:100]}' is not served here; {hint}"
            raise ApiError(404, message, param="model", code="model_not_found")
        return self.served[name]

    def model(self, name: str | None, ability: str, label: str | None = None) -> Served:
        """Find a model by name, check its ability, and give it its label if it takes one."""
        found = self.able(name, ability)
        if label is not None or (found.labels and ability in LABELLED):
            found = found.given(label)
        if found.engine is not None:
            found.engine.check_unchanged()
        return found

    def able(self, name: str | None, ability: str) -> Served:
        """Find a model by name, and check its ability."""
        found = self.named(name)
        if ability not in found.abilities:
            able = [one.name for one in self.served.values() if ability in one.abilities]
            hint = f"ask {', '.join(able)}" if able else "no served model can"
            cannot = f"the model '{found.name}' cannot {DEEDS.get(ability, ability)}"
            raise ApiError(400, f"{cannot}; {hint}", param="model")
        return found

    def open(
        self, served: Served, continuations: Sequence[Continuation], *, until_finished: bool
    ) -> OpenRequest:
        """Submit continuations to the model's engine."""
        assert served.engine is not None
        return OpenRequest(
            self.waker,
            served.engine,
            continuations,
            seconds=self.limits.max_seconds,
            until_finished=until_finished,
        )

    async def work(self, share: Share, function: Callable[[], Result]) -> Result:
        """Run a long computation in a worker; raise TimeoutError after the time limit.

        The computation keeps its worker and its request's memory until it ends.
        """
        if self._num_working >= self.limits.max_waiting:
            raise Busy("too many requests are waiting", "try again in a moment")
        self._num_working += 1
        try:
            future = self._workers.submit(function)
            future.add_done_callback(_closing(share.hold()))
            async with asyncio.timeout(self.limits.max_seconds):
                return await asyncio.wrap_future(future)
        finally:
            self._num_working -= 1

    async def read(self, request: Request, function: Callable[[], Result]) -> Result:
        """Parse a request's body, in a thread if it is large."""
        if len(await request.body()) < LARGE_BYTES:
            return function()
        return await asyncio.to_thread(function)

    def _large_end(self) -> None:
        """Return free memory to the system once the answer is gone, beside the event loop."""
        loop = asyncio.get_running_loop()

        def trim() -> None:
            self._trims = False
            self._next_trim = loop.time() + TRIM_INTERVAL
            loop.run_in_executor(None, return_free_memory)

        if not self._trims:
            self._trims = True
            loop.call_at(max(loop.time() + TRIM_SECONDS, self._next_trim), trim)

    def close(self) -> None:
        for one in self.served.values():
            one.close()
        self._workers.shutdown(wait=False, cancel_futures=True)


def _closing(share: Share) -> Callable[[object], None]:
    """Close a share, in the event loop, when a worker has ended."""
    loop = asyncio.get_running_loop()

    def close(_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            loop.call_soon_threadsafe(share.close)

    return close


def context_of(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


def share_of(request: Request) -> Share:
    share: Share = request.scope[SHARE]
    return share


class Answer(Response):
    """An answer that is sent piece by piece, so that it counts as open until it has been read."""

    def __init__(self, content: bytes, seconds: float) -> None:
        super().__init__(content, media_type="application/json")
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_all() -> None:
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            for first in range(0, len(self.body), PIECE_BYTES):
                end = first + PIECE_BYTES
                is_last = end >= len(self.body)
                piece = self.body[first:end]
                await send({"type": "http.response.body", "body": piece, "more_body": not is_last})

        await sent_within(self._seconds, scope, receive, send_all())


async def sent_within(
    seconds: float, scope: Scope, receive: Receive, sending: Awaitable[None]
) -> None:
    """Send an answer; disconnect a client that does not read it in time."""
    try:
        async with asyncio.timeout(seconds):
            await sending
    except TimeoutError:
        scope["extensions"][ABORT]()
        while (await receive())["type"] != "http.disconnect":
            pass


def answer(request: Request, model: schema.Answer) -> Response:
    """Serialise an answer without validating it again."""
    content = type(model).__pydantic_serializer__.to_json(model)
    return Answer(content, context_of(request).limits.max_seconds)
