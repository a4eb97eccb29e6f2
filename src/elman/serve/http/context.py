"""What the routes share: the models, the limits, and work beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from fastapi import Request, Response

from elman.serve.engine import Busy
from elman.serve.http import schema
from elman.serve.http.errors import ApiError
from elman.serve.http.jobs import Waker
from elman.serve.http.metrics import Metrics
from elman.serve.http.served import Limits, Served, find, unknown_model

WORKERS = 2
"""Requests that are worked on beside the engines at the same time: scoring, vectors, beams."""

LARGE_BYTES = 1 << 14
"""Bodies from this size on are not cut into tokens in the event loop: others would wait."""

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": schema.ErrorAnswer} for status in (400, 401, 404, 408, 413, 415, 429)
}
"""What any route that reads a body may answer besides success."""

Result = TypeVar("Result")


class Context:
    """What the routes share."""

    def __init__(
        self,
        served: dict[str, Served],
        limits: Limits,
        waker: Waker,
        runs: Path | None = None,
    ) -> None:
        self.served = served
        self.limits = limits
        self.waker = waker
        self.runs = runs
        self.metrics = Metrics()
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="worker")
        self._num_working = 0

    def model(self, name: str | None, ability: str) -> Served:
        """The model of this name, which must have the ability."""
        found = find(self.served, name)
        if found is None:
            raise ApiError(
                404,
                unknown_model(self.served, name or ""),
                param="model",
                code="model_not_found",
            )
        if ability not in found.abilities:
            able = [one.name for one in self.served.values() if ability in one.abilities]
            hint = f"ask {', '.join(able)}" if able else "no model that is served here can"
            raise ApiError(400, f"the model '{found.name}' cannot {ability}; {hint}", param="model")
        return found

    async def work(self, function: Callable[[], Result]) -> Result:
        """Do something that takes a while, beside the event loop.

        What has run out of time is not waited for, but it keeps its worker until it ends.
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
        """Make something of a request's body, beside the event loop where that may take long."""
        if len(await request.body()) < LARGE_BYTES:
            return function()
        return await asyncio.to_thread(function)

    def close(self) -> None:
        """End every stream and every engine."""
        for one in self.served.values():
            one.close()
        self._workers.shutdown(wait=False, cancel_futures=True)


def context_of(request: Request) -> Context:
    """What the routes share."""
    context: Context = request.app.state.context
    return context


def answer(model: schema.Answer) -> Response:
    """An answer that is already known to be of the right form."""
    return Response(model.model_dump_json(), media_type="application/json")
