"""`/v1/completions`: a whole answer, or a stream of server-sent events."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope, Send

from elman.serve.http import completions, schema
from elman.serve.http.context import ERRORS, answer, context_of, sent_within, share_of
from elman.serve.http.open_requests import Gone, OpenRequest

log = logging.getLogger(__name__)

SPARE_SECONDS = 5.0
"""Time to send an answer beyond the time limit of its request."""

routes = APIRouter()


@routes.post(
    "/v1/completions", response_model=schema.Completion, responses=ERRORS, tags=["completions"]
)
async def complete(request: Request, body: schema.CompletionRequest) -> Response:
    """Continue one or more prompts."""
    context = context_of(request)
    served = context.model(body.model, "complete", body.label)
    checked = await context.read(
        request, lambda: completions.CheckedRequest.of(body, served, context.limits)
    )
    share = share_of(request)
    share.take(*checked.memory())
    if checked.uses_beam or checked.adapts:
        return answer(request, await context.work(share, lambda: completions.search(checked)))
    at_end = not body.stream and not checked.stops
    opened = context.open(served, checked.continuations(), until_finished=at_end)
    if body.stream:
        events = completions.events(checked, opened)
        return EventStream(events, opened, context.limits.max_seconds)
    try:
        work = completions.whole(checked, opened)
        return answer(request, await opened.watched(request.receive, work))
    except Gone:
        return Response(status_code=499)


class EventStream(Response):
    """Server-sent events; closes the request at their end or when the client disconnects."""

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncIterator[tuple[bytes, bool]], opened: OpenRequest, seconds: float
    ) -> None:
        """`events` are pairs of data and whether it is the last."""
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._opened = opened
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_all() -> None:
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            async for data, is_last in self._events:
                await send({"type": "http.response.body", "body": data, "more_body": not is_last})

        try:
            # The request has its own time limit; this one is for clients that do not read.
            sending = self._opened.watched(receive, send_all())
            await sent_within(self._seconds + SPARE_SECONDS, scope, receive, sending)
        except (Gone, OSError):
            log.debug("a client disconnected in mid-stream")
