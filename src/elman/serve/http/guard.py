"""Check every request before its route: the API key, and the body's size, type, time and nesting.

A request is passed on only after its whole body has arrived. Errors have the API's format.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from elman.serve.http.errors import ApiError
from elman.serve.http.metrics import Metrics
from elman.serve.limits import Limits

OPEN = re.compile(r"/|/health|/docs|/openapi\.json|/studio/.*")
"""Paths without a key: they reveal nothing about the models."""

_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.S)


class Guard:
    """ASGI middleware that passes only valid requests on, and counts all of them."""

    def __init__(
        self, app: ASGIApp, *, limits: Limits, api_key: str | None, metrics: Metrics
    ) -> None:
        self.app = app
        self.limits = limits
        self.metrics = metrics
        self._expected = None if api_key is None else f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.monotonic()
        status = 499  # nginx's code for clients that disconnect before the answer

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            body = await self._read(scope, receive)
        except ApiError as error:
            response = error.response()
            if error.status in (408, 413):  # the rest of the body is not read
                response.headers["Connection"] = "close"
            await response(scope, receive, counted)
        except Disconnected:
            pass
        else:
            await self.app(scope, _replay(body, receive), counted)
        path = getattr(scope.get("route"), "path", "other")
        self.metrics.request(path, status, time.monotonic() - started)

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        headers = {name.lower(): value for name, value in scope["headers"]}
        if self._expected is not None and not OPEN.fullmatch(scope["path"]):
            key = headers.get(b"authorization", b"")
            if not hmac.compare_digest(key, self._expected):
                raise ApiError(401, "the API key is missing or wrong", code="invalid_api_key")
        if scope["method"] not in ("POST", "PUT", "PATCH"):
            return b""
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self.limits.max_body_bytes:
            raise self._too_large()
        kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if kind != b"application/json":
            # This also blocks pages of other sites: browsers ask before they send JSON.
            raise ApiError(415, "the body must be sent as Content-Type: application/json")
        try:
            async with asyncio.timeout(self.limits.max_body_seconds):
                body = await self._body(receive)
        except TimeoutError:
            raise ApiError(408, "the body did not arrive in time", code="timeout") from None
        # Counting brackets is quick, and few cannot be deep; texts have many, but in strings.
        if body.count(b"[") + body.count(b"{") > self.limits.max_depth:
            depth = await asyncio.to_thread(_depth, body)
            if depth > self.limits.max_depth:
                limit = f"(limit {self.limits.max_depth})"
                raise ApiError(400, f"the body is nested too deeply: {depth} levels {limit}")
        return body

    async def _body(self, receive: Receive) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self.limits.max_body_bytes:
                raise self._too_large()
            if not message.get("more_body"):
                return b"".join(parts)

    def _too_large(self) -> ApiError:
        return ApiError(413, f"the body is too large (limit {self.limits.max_body_bytes:,} bytes)")


class Disconnected(Exception):
    """The client disconnected while sending."""


def _replay(body: bytes, receive: Receive) -> Receive:
    """Receive the body that was read already, then what follows on the connection."""
    done = False

    async def replayed() -> Message:
        nonlocal done
        if done:
            return await receive()
        done = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


def _depth(body: bytes) -> int:
    """The largest nesting depth of lists and objects."""
    depth = most = 0
    for match in _BRACKETS.finditer(body):
        if match[0] in b"[{":
            depth += 1
            most = max(most, depth)
        elif match[0] in b"]}":
            depth -= 1
    return most
