"""What stands before every route: the key, and what a request may look like.

A request is let in whole or not at all: its body is read first, within a size and a time, and must
be JSON that is not nested without end. Refusals have the API's own error shape.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from elman.serve.http.errors import ApiError
from elman.serve.http.metrics import Metrics
from elman.serve.http.served import Limits

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN = re.compile(r"/|/health|/docs|/openapi\.json|/studio/.*")
"""Paths that need no key: they tell nothing about the models."""

_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.S)


class Guard:
    """An application that lets only sound requests through to another, and counts them."""

    def __init__(self, app: App, *, limits: Limits, api_key: str | None, metrics: Metrics) -> None:
        self.app = app
        self.limits = limits
        self.metrics = metrics
        self._expected = None if api_key is None else f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection's worth of events, as ASGI has it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.monotonic()
        status = 499  # as nginx counts those who left before the answer

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            body = await self._read(scope, receive)
        except ApiError as error:
            await answer(error, counted)
        except Left:
            pass
        else:
            await self.app(scope, _replay(body, receive), counted)
        route = scope.get("route")
        path = getattr(route, "path", "other")
        self.metrics.request(path, status, time.monotonic() - started)

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        headers = {name.lower(): value for name, value in scope["headers"]}
        if self._expected is not None and not OPEN.fullmatch(scope["path"]):
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                raise ApiError(401, "the API key is missing or wrong", code="invalid_api_key")
        if scope["method"] not in ("POST", "PUT", "PATCH"):
            return b""
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self.limits.max_body_bytes:
            raise self._too_large()
        kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if kind != b"application/json":
            # Also keeps other sites' pages out: a browser asks before it sends them JSON.
            raise ApiError(415, "the body must be sent as Content-Type: application/json")
        try:
            async with asyncio.timeout(self.limits.max_body_seconds):
                body = await self._body(receive)
        except TimeoutError:
            raise ApiError(408, "the body did not arrive in time", code="timeout") from None
        # Few brackets cannot be deep, and counting them is quick; texts have many, but in strings.
        if body.count(b"[") + body.count(b"{") > self.limits.max_depth:
            depth = await asyncio.to_thread(_depth, body)
            if depth > self.limits.max_depth:
                raise ApiError(400, "the body is nested too deeply")
        return body

    async def _body(self, receive: Receive) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Left
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self.limits.max_body_bytes:
                raise self._too_large()
            if not message.get("more_body"):
                return b"".join(parts)

    def _too_large(self) -> ApiError:
        return ApiError(413, f"the body is larger than {self.limits.max_body_bytes} bytes")


class Left(Exception):
    """The client went away while it was sending."""


async def answer(error: ApiError, send: Send) -> None:
    """Send an error as the whole answer."""
    body = error.body
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    headers += [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
    if error.status in (408, 413):  # what the client still sends is not read
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body again for those who come after, then whatever else happens to the connection."""
    told = False

    async def replayed() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


def _depth(body: bytes) -> int:
    """How many lists and objects stand within each other, at most."""
    depth = most = 0
    for match in _BRACKETS.finditer(body):
        if match[0] in b"[{":
            depth += 1
            most = max(most, depth)
        elif match[0] in b"]}":
            depth -= 1
    return most
