"""`/v1/completions` over HTTP: at once, or as a stream of server-sent events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request, Response

from elman.serve.http import completions, schema
from elman.serve.http.context import ERRORS, answer, context_of
from elman.serve.http.jobs import Gone, Job

log = logging.getLogger(__name__)

SPARE_SECONDS = 5.0
"""How much longer than a request may take its answer may be on its way."""

routes = APIRouter()


@routes.post(
    "/v1/completions", response_model=schema.Completion, responses=ERRORS, tags=["completions"]
)
async def complete(request: Request, body: schema.CompletionRequest) -> Response:
    """Continue one or more prompts."""
    context = context_of(request)
    served = context.model(body.model, "complete")
    plan = await context.read(request, lambda: completions.Plan.of(body, served, context.limits))
    if plan.uses_beam:
        return answer(await context.work(lambda: completions.search(plan)))
    job = completions.start(plan, context.waker, context.limits)
    if body.stream:
        return EventStream(completions.pieces(plan, job), job, context.limits.max_seconds)
    try:
        work = completions.whole(plan, job)
        return answer(await completions.watched(job, request.receive, work))
    except Gone:
        return Response(status_code=499)


class EventStream(Response):
    """An answer in server-sent events, which ends its job when it ends or the client goes."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[tuple[bytes, bool]], job: Job, seconds: float) -> None:
        """`events` come with whether they are the last."""
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._job = job
        self._seconds = seconds

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send the events."""

        async def everything() -> None:
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            async for data, is_last in self._events:
                await send({"type": "http.response.body", "body": data, "more_body": not is_last})

        try:
            # The job has a time limit of its own; this one is for a client that does not read.
            async with asyncio.timeout(self._seconds + SPARE_SECONDS):
                await completions.watched(self._job, receive, everything())
        except (Gone, OSError, TimeoutError):
            log.debug("a client left in mid-stream")
