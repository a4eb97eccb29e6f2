"""The front with workers that are functions: each writes what a process would."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from elman.serve.http.header_limits import ABORT
from elman.serve.limits import Limits
from elman.serve.workers.fleet import Worker
from elman.serve.workers.front import Front

Answering = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


class Fleet:
    def __init__(self, workers: list[Worker]) -> None:
        self.places = workers
        self.restarts = [0] * len(workers)

    def ready(self) -> dict[int, Worker]:
        return {at: worker for at, worker in enumerate(self.places) if worker.is_ready}

    async def some_ready(self, seconds: float) -> dict[int, Worker]:
        return self.ready()


class Client:
    """One request to the front, and what it sends."""

    def __init__(self, method: str = "POST", path: str = "/v1/score", *parts: bytes) -> None:
        self.aborted = False
        self.disconnect = asyncio.Event()
        self.sent: list[dict[str, Any]] = []
        size = b"%d" % sum(map(len, parts))
        self.scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "http_version": "1.1",
            "headers": [(b"host", b"localhost"), (b"content-length", size)],
            "extensions": {ABORT: self._abort},
        }
        self._parts = [
            {"type": "http.request", "body": part, "more_body": at < len(parts) - 1}
            for at, part in enumerate(parts)
        ]

    def _abort(self) -> None:
        self.aborted = True
        self.disconnect.set()

    async def receive(self) -> dict[str, Any]:
        if self._parts:
            return self._parts.pop(0)
        await self.disconnect.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(dict(message))

    @property
    def status(self) -> int:
        status: int = self.sent[0]["status"]
        return status

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.sent[1:])


@pytest.fixture
def front(tmp_path: Path) -> Callable[..., Any]:
    """Run a request through a front with these workers."""

    async def run(client: Callable[[], Client], workers: tuple[Answering | None, ...]) -> Any:
        made, servers = [], []
        for place, answering in enumerate(workers):
            path = str(tmp_path / str(place))
            up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            up.set_result(None)
            made.append(Worker(place, path, up, pid=100 + place))
            if answering is not None:
                servers.append(await asyncio.start_unix_server(closing(answering), path))
        asked = client()
        fleet: Any = Fleet(made)
        async with asyncio.timeout(20):
            await Front(fleet, Limits())(asked.scope, asked.receive, asked.send)
        for server in servers:
            server.close()
        assert [worker.num_open for worker in made] == [0] * len(made)
        return asked

    return lambda client, *workers: asyncio.run(run(client, workers))


def closing(answering: Answering) -> Answering:
    """A worker that ends the connection after its answer."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answering(reader, writer)
        finally:
            writer.close()

    return answer


def writing(*parts: bytes) -> Answering:
    """A worker that reads the headers and writes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for part in parts:
            writer.write(part)
            await writer.drain()

    return answer


def test_an_answer_is_passed_on_in_pieces(front: Any) -> None:
    chunks = (b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n", b"2\r\nde\r\n0\r\n\r\n")
    found = front(lambda: Client("POST", "/v1/score", b"{}"), writing(OK, *chunks))
    assert found.status == 200
    assert found.body == b"abcde"
    assert (b"content-type", b"application/json") in found.sent[0]["headers"]
    assert not any(name == b"transfer-encoding" for name, _ in found.sent[0]["headers"])


def test_a_head_request_has_no_body(front: Any) -> None:
    found = front(lambda: Client("HEAD", "/"), writing(OK + b"content-length: 50\r\n\r\n"))
    assert found.status == 200
    assert found.body == b""


def test_a_body_in_pieces_arrives_whole(front: Any) -> None:
    parts = [b"x" * 20_000, b"y" * 70_000, b"z"]

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"content-length: 90001" in head
        size = len((await reader.readexactly(90_001)).strip(b"x"))
        writer.write(OK + b"content-length: 5\r\n\r\n%d" % size)

    assert front(lambda: Client("POST", "/v1/score", *parts), echo).body == b"70001"


def test_a_worker_that_dies_before_it_answers(front: Any) -> None:
    found = front(lambda: Client("POST", "/v1/score", b"{}"), writing())
    assert found.status == 503
    assert json.loads(found.body)["error"]["code"] == "died"
    assert (b"retry-after", b"1") in found.sent[0]["headers"]


def test_a_worker_that_dies_in_mid_answer(front: Any) -> None:
    found = front(
        lambda: Client("POST", "/v1/score", b"{}"), writing(OK, b"content-length: 9\r\n\r\nab")
    )
    assert found.aborted


STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"


def events(text: bytes) -> tuple[bytes, ...]:
    """A stream of events that arrives as one chunk, without the chunk that ends it."""
    return (STREAM, b"transfer-encoding: chunked\r\n\r\n", b"%x\r\n%b\r\n" % (len(text), text))


@pytest.mark.parametrize("cut", [b"", b"data", b'data: {"choices": [', b"data: 2", b"data: 2\n"])
def test_a_worker_that_dies_in_mid_stream(front: Any, cut: bytes) -> None:
    """What it wrote of its last event is left out: a client would join it and the error."""
    parts = events(b"data: 1\n\n" + cut)
    found = front(lambda: Client("POST", "/v1/completions", b"{}"), writing(*parts))
    first, last, rest = found.body.split(b"\n\n")
    assert first == b"data: 1"
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "died"
    assert rest == b""
    assert found.sent[-1]["more_body"] is False


def test_a_stream_arrives_whole(front: Any) -> None:
    """Also one whose last event has no blank line after it."""
    parts = (*events(b"data: 1\n\ndata: 2\n\nda"), b"4\r\nta: \r\n1\r\n3\r\n0\r\n\r\n")
    found = front(lambda: Client("POST", "/v1/completions", b"{}"), writing(*parts))
    assert found.body == b"data: 1\n\ndata: 2\n\ndata: 3"
    assert found.sent[-1]["more_body"] is False


def test_a_worker_that_has_just_ended_is_not_asked(front: Any, tmp_path: Path) -> None:
    answer = writing(OK + b"content-length: 2\r\n\r\nhi")
    assert front(lambda: Client("POST", "/v1/score", b"{}"), None, answer).body == b"hi"


def test_without_workers(front: Any) -> None:
    assert front(lambda: Client("GET", "/ready")).status == 503


def test_a_body_that_is_too_large(front: Any) -> None:
    def large() -> Client:
        client = Client("POST", "/v1/score", *[b"x" * (1 << 20)] * 5)
        client.scope["headers"] = [(b"transfer-encoding", b"chunked")]
        return client

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1 << 20):
            pass

    found = front(large, slow)
    assert found.status == 413
    assert (b"connection", b"close") in found.sent[0]["headers"]


def told(body: bytes, kind: bytes = b"application/json") -> Answering:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n" % kind
    return writing(head + b"content-length: %d\r\n\r\n%b" % (len(body), body))


def test_health_names_workers(front: Any) -> None:
    well = told(b'{"status": "ok", "models": ["a"], "problems": [], "workers": []}')
    ill = told(b'{"status": "degraded", "models": ["a"], "problems": ["a: x"], "workers": []}')
    found = json.loads(front(lambda: Client("GET", "/health"), well, ill, None).body)
    assert found["status"] == "degraded"
    assert found["models"] == ["a"]
    assert found["problems"] == ["a: x", "worker 2 does not answer"]
    assert [worker["pid"] for worker in found["workers"]] == [100, 101, 102]


def test_metrics_name_workers(front: Any) -> None:
    text = b'# HELP a b\n# TYPE a counter\na 1\n# HELP c d\n# TYPE c gauge\nc{m="x"} 2\n'
    lines = front(lambda: Client("GET", "/metrics"), told(text, b"text/plain"), told(text)).body
    assert lines.decode().splitlines()[:8] == [
        *("# HELP a b", "# TYPE a counter", 'a{worker="0"} 1', 'a{worker="1"} 1'),
        *("# HELP c d", "# TYPE c gauge", 'c{m="x",worker="0"} 2', 'c{m="x",worker="1"} 2'),
    ]


def test_a_refusal_by_a_worker_is_passed_on(front: Any) -> None:
    refusal = writing(b"HTTP/1.1 401 No\r\ncontent-length: 2\r\n\r\nno")
    found = front(lambda: Client("GET", "/metrics"), refusal, refusal)
    assert (found.status, found.body) == (401, b"no")
