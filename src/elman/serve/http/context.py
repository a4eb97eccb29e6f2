"""What routes share: models, limits, and workers for computations outside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from fastapi import Request, Response

from elman.base.errors import nearest
from elman.serve.engine import Busy
from elman.serve.http import schema
from elman.serve.http.errors import ApiError
from elman.serve.http.metrics import Metrics
from elman.serve.http.open_requests import OpenRequest, Waker
from elman.serve.http.served import Served
from elman.serve.limits import Limits
from elman.serve.streams import Continuation

WORKERS = 2
"""Threads for scoring, vectors and beam search, beside the engines."""

LARGE_BYTES = 1 << 14
"""Bodies from this size on are tokenized in a thread, to not block the event loop."""

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": schema.ErrorAnswer}
    for status in (400, 401, 403, 404, 408, 413, 415, 421, 429, 503)
}
"""Error answers of every route that reads a body."""

Result = TypeVar("Result")


class Context:
    def __init__(
        self, served: dict[str, Served], limits: Limits, waker: Waker, runs: Path | None = None
    ) -> None:
        self.served = served
        self.limits = limits
        self.waker = waker
        self.runs = runs
        self.metrics = Metrics()
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="worker")
        self._num_working = 0

    def named(self, name: str | None) -> Served:
        """The model of this name; the first one if `name` is None."""
        if name is None:
            return next(iter(self.served.values()))
        if name not in self.served:
            hint = nearest(name[:100], self.served)
            message = f"the model '{name[:100]}' is not served here; {hint}"
            raise ApiError(404, message, param="model", code="model_not_found")
        return self.served[name]

    def model(self, name: str | None, ability: str) -> Served:
        """Find a model by name, and check its ability."""
        found = self.named(name)
        if ability not in found.abilities:
            able = [one.name for one in self.served.values() if ability in one.abilities]
            hint = f"ask {', '.join(able)}" if able else "no served model can"
            raise ApiError(400, f"the model '{found.name}' cannot {ability}; {hint}", param="model")
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

    async def work(self, function: Callable[[], Result]) -> Result:
        """Run a long computation in a worker; raise TimeoutError after the time limit.

        The computation keeps its worker until it ends.
        """
        if self._num_working >= self.limits.max_waiting:
            raise Busy("too many requests are waiting", "try again in a moment")
        self._num_working += 1
        try:
            async with asyncio.timeout(self.limits.max_seconds):
                return await asyncio.get_running_loop().run_in_executor(self._workers, function)
        finally:
            self._num_working -= 1

    async def read(self, request: Request, function: Callable[[], Result]) -> Result:
        """Parse a request's body, in a thread if it is large."""
        if len(await request.body()) < LARGE_BYTES:
            return function()
        return await asyncio.to_thread(function)

    def close(self) -> None:
        for one in self.served.values():
            one.close()
        self._workers.shutdown(wait=False, cancel_futures=True)


def context_of(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


def answer(model: schema.Answer) -> Response:
    """Serialise an answer without validating it again."""
    return Response(model.model_dump_json(), media_type="application/json")
