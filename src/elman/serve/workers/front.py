"""The process that clients talk to: it passes requests on to workers, and answers back.

Workers check requests and keep to the limits, as a server of one process does; here are only the
limits of headers, and of the time for a body to begin. Answers are passed on as they come, and a
client that disconnects or does not read is felt by the worker. `/health` and `/metrics` join the
answers of all workers.

A request whose worker died is not sent to another: it may be what killed the first.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import httptools
from starlette.types import Receive, Scope, Send

from elman.base.errors import UsageError
from elman.serve.http.errors import ApiError, too_large
from elman.serve.http.header_limits import ABORT
from elman.serve.http.server import Server
from elman.serve.limits import Limits
from elman.serve.serving import OnStart, Serving
from elman.serve.workers.fleet import Fleet, Worker
from elman.serve.workers.routing import Routing, beginnings

log = logging.getLogger(__name__)

FIRST_BYTES = 1 << 14
"""Bytes of a body that are read before a worker is chosen."""
PIECE_BYTES = 1 << 16
WAIT_SECONDS = 10.0
"""How long a request waits while no worker is ready."""
JOIN_SECONDS = 5.0
"""How long `/health` and `/metrics` wait for a worker."""
OF_ONE_HOP = {b"connection", b"keep-alive", b"upgrade", b"te", b"trailer", b"transfer-encoding"}
OF_ONE_HOP |= {b"expect", b"proxy-connection"}

Headers = list[tuple[bytes, bytes]]


class Died(Exception):
    """A worker ended before its answer did."""


class Gone(Exception):
    """The client disconnected."""


class Answer:
    """A worker's answer, parsed as it arrives."""

    def __init__(self, method: str) -> None:
        self.status = 0
        """0 until the headers are complete."""
        self.headers: Headers = []
        self.is_complete = False
        self._has_body = method != "HEAD"
        self._parts: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> bytes:
        """Parse what has arrived; return the part of the body in it, of a stream whole events."""
        if not data:
            raise Died
        self._parser.feed_data(data)
        body = b"".join(self._parts)
        end = len(body)
        if self.is_event_stream and not self.is_complete:
            end = body.rfind(b"\n\n") + 2 if b"\n\n" in body else 0
        self._parts = [body[end:]]
        return body[:end]

    def start(self) -> dict[str, Any]:
        return {"type": "http.response.start", "status": self.status, "headers": self.headers}

    @property
    def is_event_stream(self) -> bool:
        return any(
            name == b"content-type" and value.startswith(b"text/event-stream")
            for name, value in self.headers
        )

    def on_header(self, name: bytes, value: bytes) -> None:
        is_close = name.lower() == b"connection" and value.lower() == b"close"
        if is_close or name.lower() not in OF_ONE_HOP:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self.is_complete = not self._has_body

    def on_body(self, data: bytes) -> None:
        self._parts.append(data)

    def on_message_complete(self) -> None:
        self.is_complete = True


class Front:
    """The ASGI application."""

    def __init__(self, fleet: Fleet, limits: Limits) -> None:
        self._fleet = fleet
        self._limits = limits
        self._routing = Routing()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            if scope["method"] == "GET" and scope["path"] in ("/health", "/metrics"):
                await self._join(scope, send)
            else:
                await self._pass(scope, receive, send)
        except Gone:
            pass
        except ApiError as error:
            response = error.response()
            if error.status in (408, 413):  # the rest of the body is not read
                response.headers["Connection"] = "close"
            await response(scope, receive, send)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to one worker, and its answer back."""
        upload = Upload(scope, receive, self._limits)
        try:
            async with asyncio.timeout(self._limits.max_body_seconds):
                await upload.begin()
        except TimeoutError:
            raise ApiError(408, "the body did not arrive in time", code="timeout") from None
        worker, reader, writer = await self._connect(scope["path"], beginnings(upload.first))
        sending = asyncio.create_task(upload.send(writer))
        try:
            if not await self._return(scope, send, reader):
                scope["extensions"][ABORT]()
                await sending  # until the connection is closed
        except ApiError as error:
            raise upload.error or error from None
        finally:
            sending.cancel()
            writer.transport.abort()
            worker.release()

    async def _connect(
        self, path: str, begins: Sequence[int]
    ) -> tuple[Worker, asyncio.StreamReader, asyncio.StreamWriter]:
        """Choose a worker and connect to it; the caller releases it."""
        while workers := await self._fleet.some_ready(0 if path == "/ready" else WAIT_SECONDS):
            loads = {place: worker.num_open for place, worker in workers.items()}
            if path.startswith("/v1/lab"):  # a process runs one experiment at a time
                loads = {min(loads): 0}
            worker = workers[self._routing.choose(loads, begins)]
            worker.num_open += 1
            try:
                return worker, *await asyncio.open_unix_connection(worker.path)
            except OSError:  # it has just died
                worker.release()
                await asyncio.sleep(0.01)
            except BaseException:
                worker.release()
                raise
        raise ApiError(503, "no worker is ready; try again in a moment", code="no_worker")

    async def _return(self, scope: Scope, send: Send, reader: asyncio.StreamReader) -> bool:
        """Pass an answer on as it arrives; return False if it can neither end nor tell why."""
        answer, is_started = Answer(scope["method"]), False
        try:
            while not answer.is_complete:
                body = answer.feed(await reader.read(PIECE_BYTES))
                if answer.status and not is_started:
                    is_started = True
                    await send(answer.start())
                if is_started and (body or answer.is_complete):
                    await send(_body(body, more=not answer.is_complete))
        except (Died, OSError):
            error = ApiError(503, "the worker of this request died; send it again", code="died")
            if not is_started:
                raise error from None
            if not answer.is_event_stream:
                return False
            await send(_body(b"data: " + error.body + b"\n\n"))
        return True

    async def _join(self, scope: Scope, send: Send) -> None:
        """Answer with what all workers say."""
        workers = self._fleet.ready()
        found = await asyncio.gather(*(_ask(worker, scope) for worker in workers.values()))
        answers = {place: one for place, one in zip(workers, found, strict=True) if one is not None}
        for answer, body in answers.values():
            if answer.status != 200:  # no key, or another's Host
                await send(answer.start())
                await send(_body(body))
                return
        bodies = {place: body for place, (_, body) in answers.items()}
        if scope["path"] == "/health":
            kind, text = b"application/json", json.dumps(self._health(bodies)).encode()
        else:
            kind, text = b"text/plain; charset=utf-8", self._metrics(bodies)
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(text))]
        # Those that let pages of other origins read it.
        headers += [
            (name, value)
            for answer, _ in list(answers.values())[:1]
            for name, value in answer.headers
            if name not in (b"content-type", b"content-length")
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send(_body(text))

    def _health(self, bodies: Mapping[int, bytes]) -> dict[str, Any]:
        told = [json.loads(body) for body in bodies.values()]
        problems = dict.fromkeys(problem for one in told for problem in one["problems"])
        workers = []
        for place, worker in enumerate(self._fleet.places):
            is_ready = worker is not None and worker.is_ready
            if not is_ready:
                problems[f"worker {place} is not ready"] = None
            elif place not in bodies:
                problems[f"worker {place} does not answer"] = None
            workers.append(
                {
                    "worker": place,
                    "pid": worker.pid if worker else 0,
                    "ready": is_ready,
                    "requests": worker.num_open if worker else 0,
                    "restarts": self._fleet.restarts[place],
                }
            )
        return {
            "status": "degraded" if problems else "ok",
            "models": told[0]["models"] if told else [],
            "problems": list(problems),
            "workers": workers,
        }

    def _metrics(self, bodies: Mapping[int, bytes]) -> bytes:
        """The metrics of all workers, each with the label `worker`: sums would fall when one is
        replaced, and counters must not."""
        families: dict[str, list[str]] = {}
        for place, body in bodies.items():
            about: list[str] = []
            for line in body.decode().splitlines():
                if line.startswith("# HELP"):
                    about = families.setdefault(line, [])
                elif line.startswith("#"):
                    about += [] if about else [line]
                else:
                    about.append(_labelled(line, place))
        restarts = [
            f'elman_worker_restarts_total{{worker="{place}"}} {number}'
            for place, number in enumerate(self._fleet.restarts)
        ]
        name = "# HELP elman_worker_restarts_total Workers that died and were started again."
        families[name] = ["# TYPE elman_worker_restarts_total counter", *restarts]
        lines = [line for name, rest in families.items() for line in (name, *rest)]
        return "\n".join(lines).encode() + b"\n"


class Upload:
    """A request on its way to a worker."""

    def __init__(self, scope: Scope, receive: Receive, limits: Limits) -> None:
        self._scope = scope
        self._receive = receive
        self._limits = limits
        self._num_bytes = 0
        self.error: ApiError | None = None
        """Why not all of it was sent."""
        self.first = b""
        """The beginning of the body."""
        self._has_more = scope["method"] in ("POST", "PUT", "PATCH")
        names = {name.lower() for name, _ in scope["headers"]}
        self._is_chunked = self._has_more and b"transfer-encoding" in names

    async def begin(self) -> None:
        """Read the beginning of the body."""
        length = dict(self._scope["headers"]).get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._limits.max_body_bytes:
            raise too_large(self._limits)
        while self._has_more and len(self.first) < FIRST_BYTES:
            self.first += await self._next()

    async def send(self, writer: asyncio.StreamWriter) -> None:
        """Send the request; return when the client or the worker is gone."""
        with suppress(OSError, Gone, ApiError):
            writer.write(_head(self._scope, chunked=self._is_chunked))
            writer.write(self._framed(self.first))
            while self._has_more:
                writer.write(self._framed(await self._next()))
                await writer.drain()
            while True:  # until the client disconnects
                await self._next()
        writer.transport.abort()

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise Gone
        self._has_more = message.get("more_body", False)
        body: bytes = message.get("body", b"")
        self._num_bytes += len(body)
        if self._num_bytes > self._limits.max_body_bytes:
            self.error = too_large(self._limits)
            raise self.error
        return body

    def _framed(self, data: bytes) -> bytes:
        if not self._is_chunked:
            return data
        framed = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
        return framed if self._has_more else framed + b"0\r\n\r\n"


def _head(scope: Scope, *, chunked: bool = False) -> bytes:
    """The request line and headers, for a worker."""
    skipped = OF_ONE_HOP
    if scope["method"] not in ("POST", "PUT", "PATCH"):  # a body is not passed on
        skipped = skipped | {b"content-length"}
    query = b"?" + scope["query_string"] if scope["query_string"] else b""
    version = scope["http_version"].encode()
    lines = [b"%b %b%b HTTP/%b" % (scope["method"].encode(), scope["raw_path"], query, version)]
    lines += [b"%b: %b" % pair for pair in scope["headers"] if pair[0].lower() not in skipped]
    lines += [b"transfer-encoding: chunked"] if chunked else []
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _body(data: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def _ask(worker: Worker, scope: Scope) -> tuple[Answer, bytes] | None:
    """A worker's whole answer to a request without a body; None if it does not answer."""
    try:
        async with asyncio.timeout(JOIN_SECONDS):
            reader, writer = await asyncio.open_unix_connection(worker.path)
            try:
                writer.write(_head(scope))
                answer, body = Answer(scope["method"]), b""
                while not answer.is_complete:
                    body += answer.feed(await reader.read(PIECE_BYTES))
            finally:
                writer.transport.abort()
    except (TimeoutError, OSError, Died):
        return None
    return answer, body


def _labelled(sample: str, worker: int) -> str:
    """A line of Prometheus' text format with the label `worker`."""
    found = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", sample)
    assert found is not None
    labels = ",".join(filter(None, (found[2], f'worker="{worker}"')))
    return f"{found[1]}{{{labels}}} {found[3]}"


class FrontServer(Server):
    """Starts workers, listens, and restarts the workers on SIGHUP."""

    def __init__(self, serving: Serving, number: int, on_start: OnStart) -> None:
        self.fleet = Fleet(serving, number)
        super().__init__(
            Front(self.fleet, serving.limits),
            serving.limits,
            host=serving.host,
            port=serving.port,
            on_start=lambda address: on_start(address, self.fleet.models, self.fleet.notes),
        )
        self._has_terminal = _has_terminal()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        starting = asyncio.create_task(self.fleet.start())
        try:
            while not starting.done() and not self.should_exit:
                await asyncio.wait((starting,), timeout=0.1)
            if starting.done():
                await starting
                asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._hang_up)
                await super().startup(sockets)
        finally:
            if not self.started:
                starting.cancel()
                await self.fleet.close()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.fleet.end()
        await super().shutdown(sockets)
        await self.fleet.close()

    def _hang_up(self) -> None:
        if self._has_terminal and not _has_terminal():  # it was closed
            self.should_exit = True
        else:
            self.fleet.restart_soon()


def _has_terminal() -> bool:
    """Whether this process has a terminal that is open."""
    try:
        with open("/dev/tty", "rb", buffering=0):
            return True
    except OSError:
        return False


def serve_from_workers(serving: Serving, number: int, on_start: OnStart) -> None:
    """Serve models from `number` processes until a signal comes."""
    if not sys.platform.startswith("linux"):
        raise UsageError(
            "--workers needs Linux",
            "start several servers on ports of their own, behind a proxy: docs/guides/workers.md",
        )
    FrontServer(serving, number, on_start).run()
