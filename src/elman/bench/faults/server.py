"""Clients that send what they should not, or do not read, against `elman serve`.

Requests are malformed (the HTTP or the JSON of the body), sent slowly, aborted, or their answers
are not read. Good ends of a request are an answer with a status below 500, 503, or a connection
closed on one that is not a request. In the end the log must have no traceback, the server must
answer as it did at first, and its memory must have stayed below a ceiling and come back.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any
from urllib.parse import urlsplit

from elman.bench.faults.damaged_files import specimens
from elman.bench.faults.live_server import LiveServer
from elman.bench.faults.mutations import ANY, MUTATIONS
from elman.bench.faults.outcomes import Case, Plan, Result

MALFORMED, QUICK = 5000, 150
"""Requests that are malformed, in the whole campaign and in the test suite."""
ABORTED, UNREAD, DRIPPING = 600, 200, 300
"""Streams that are aborted, streams that are not read, and connections that drip."""
AT_ONCE = 32
SECONDS = 30.0
"""That an answer may take."""
CEILING, RETURNED = 500.0, 120.0
"""MB above the beginning that the server may take, and keep."""

REFERENCE = {"model": "words", "prompt": "the student", "max_tokens": 8, "seed": 3, "logprobs": 2}

BODIES: dict[str, Any] = {
    "/v1/completions": {
        "model": "words",
        "prompt": "the",
        "max_tokens": 3,
        "n": 2,
        "temperature": 0.7,
        "seed": 1,
        "logprobs": 2,
        "stop": ["."],
        "echo": True,
        "stream": False,
        "top_p": 0.9,
        "logit_bias": {"3": -10},
        "frequency_penalty": 0.1,
        "best_of": 2,
    },
    "/v1/completions?": {"prompt": ["the", "the old"], "stream": True, "max_tokens": 2},
    "/v1/score": {"text": "the student opened the book .", "unit": "word"},
    "/v1/next": {"prompt": "the", "k": 3},
    "/v1/inside": {"text": "the student"},
    "/v1/embeddings": {"input": ["the student", "the"], "encoding_format": "float"},
    "/v1/tag": {"model": "tagger", "text": "the student opened the book ."},
    "/tokenize": {"prompt": "the student"},
    "/detokenize": {"tokens": [1, 2, 3]},
}
"""Sound requests, to be changed."""

HEADS: tuple[bytes, ...] = (
    *(b"\r\n\r\n", b"\0" * 100, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\0"),
    *(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"GET * HTTP/1.1\r\n\r\n"),
    b"GET " + b"/a" * 40_000 + b" HTTP/1.1\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 5_000 + b"\r\n",
    b"GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
    b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /v1/runs/..%2f..%2fetc%2fpasswd HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /v1/models/%00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /%ff%fe HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"OPTIONS /v1/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n\r\n",
    *(
        b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        + length
        + b"\r\n\r\n{}"
        for length in (
            *(b"Content-Length: -1", b"Content-Length: 1e3", b"Content-Length: " + b"9" * 5_000),
            *(b"Content-Length: 2\r\nContent-Length: 3", b"Content-Length: 0x2", b"X: y"),
            *(b"Content-Length: 2\r\nTransfer-Encoding: chunked", b"Transfer-Encoding: gzip"),
            *(b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n", b"Content-Encoding: gzip"),
            *(
                b"Transfer-Encoding: chunked\r\n\r\n-1\r\n",
                b"Transfer-Encoding: chunked\r\n\r\nz\r\n",
            ),
        )
    ),
)
"""Beginnings of requests that are none, or odd."""


def server(plan: Plan) -> Iterator[Case]:
    """The target `server`."""
    place = specimens(plan)
    number = QUICK if plan.quick else MALFORMED
    share = QUICK / MALFORMED if plan.quick else 1.0
    log = plan.folder / "server.log"
    log.unlink(missing_ok=True)
    models = [f"{name}={place / name}" for name in ("words", "ngram", "tagger")]
    # Streams of unlimited length show whether one that nobody reads is paused.
    options = ("--threads", "1", "--max-tokens", "1000000")
    with LiveServer(models, log, options) as live:
        expected = _reference(live)
        before = live.megabytes
        watch = _Watch(live)
        with watch:
            clients = Clients(live.address, plan)
            yield from clients.malformed(number)
            yield from clients.streams("abort", int(ABORTED * share) or 10)
            yield from clients.streams("unread", int(UNREAD * share) or 10)
            yield from clients.dripping(int(DRIPPING * share) or 10)
        peak = max(watch.megabytes) - before
        yield Case(
            *("server", "ceiling", "over memory" if peak > CEILING else "same output"),
            f"{peak:.0f} MB above the beginning",
        )
        yield _answers(live, expected)
        yield _memory_returns(live, before)
    text = log.read_text(errors="replace")
    at = text.find("Traceback")
    yield Case("server", "log", "same output" if at < 0 else "traceback", text[at:][:3000])


def _reference(live: LiveServer) -> Any:
    status, answer = live.ask("/v1/completions", REFERENCE)
    return status, [
        {key: value for key, value in choice.items() if key != "id"}
        for choice in answer.get("choices", [])
    ]


def _answers(live: LiveServer, expected: Any) -> Case:
    if not live.is_running:
        return Case("server", "answers", "crash", "the server ended")
    found = _reference(live)
    same = found == expected and found[0] == 200
    return Case("server", "answers", "same output" if same else "difference", str(found))


def _memory_returns(live: LiveServer, before: float) -> Case:
    ends = time.monotonic() + 20
    while live.is_running and live.megabytes > before + RETURNED and time.monotonic() < ends:
        time.sleep(0.5)
    kept = live.megabytes - before if live.is_running else 0.0
    result: Result = "same output" if kept <= RETURNED else "over memory"
    return Case("server", "memory-returns", result, f"{kept:.0f} MB above the beginning")


class _Watch:
    """Measures the server's memory in a thread."""

    def __init__(self, live: LiveServer) -> None:
        self.megabytes = [live.megabytes]
        self._live, self._done = live, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(0.1):
            self.megabytes.append(self._live.megabytes)


class Clients:
    """Make requests, several at a time, and judge the answers."""

    def __init__(self, address: str, plan: Plan) -> None:
        where = urlsplit(address)
        self.host, self.port = where.hostname or "", where.port or 80
        self.plan = plan

    def malformed(self, number: int) -> Iterator[Case]:
        """Requests with damaged heads or bodies."""
        names = [f"{('head', 'body', 'body')[i % 3]}:{i}" for i in range(number)]
        names = [name for name in names if self.plan.only in name]
        for first in range(0, len(names), AT_ONCE):
            part = names[first : first + AT_ONCE]
            results = asyncio.run(self._together([self._malformed(name) for name in part]))
            for name, (result, detail) in zip(part, results, strict=True):
                yield Case("server", name, result, detail)

    async def _together(self, tasks: list[Any]) -> list[tuple[Result, str]]:
        return list(await asyncio.gather(*tasks))

    async def _malformed(self, name: str) -> tuple[Result, str]:
        random = self.plan.random(name)
        data = self.head(random) if name.startswith("head") else self.body(random)
        try:
            answer = await asyncio.wait_for(self._exchange(data), SECONDS)
        except TimeoutError:
            return "hang", repr(data[:300])
        except OSError:  # closed while we were still sending
            return "sentence", ""
        return judge_answer(answer, data)

    async def _exchange(self, data: bytes) -> bytes:
        """Send everything, then that nothing follows; read to the end or the first megabyte."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            writer.write(data)
            await writer.drain()
            with suppress(OSError):
                writer.write_eof()
            return await reader.read(1 << 20)
        finally:
            writer.transport.abort()

    def head(self, random: Random) -> bytes:
        if random.random() < 0.4:
            return random.choice(HEADS)
        path = random.choice(
            (*BODIES, "/health", "/v1/models", "/metrics", "/docs", "/openapi.json")
        )
        body = json.dumps(BODIES.get(path, {})).encode()
        method = random.choice(("POST", "POST", "GET", "PUT", "DELETE", "HEAD", "TRACE", "X" * 100))
        return random.choice(list(ANY.values()))(random, self.request(path, body, method))

    def body(self, random: Random) -> bytes:
        path = random.choice(list(BODIES))
        sound = json.dumps(BODIES[path]).encode()
        mutation = random.choice(list(MUTATIONS["json"].values()))
        return self.request(path, mutation(random, sound)[: 4 << 20])

    def request(self, path: str, body: bytes, method: str = "POST") -> bytes:
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def streams(self, kind: str, number: int) -> Iterator[Case]:
        """Streams that are broken off after some pieces, or not read at all for a while."""
        names = [f"{kind}:{i}" for i in range(number) if self.plan.only in f"{kind}:{i}"]
        for first in range(0, len(names), AT_ONCE):
            part = names[first : first + AT_ONCE]
            results = asyncio.run(self._together([self._stream(kind, name) for name in part]))
            for name, (result, detail) in zip(part, results, strict=True):
                yield Case("server", name, result, detail)

    async def _stream(self, kind: str, name: str) -> tuple[Result, str]:
        random = self.plan.random(name)
        body = {
            "prompt": "the",
            "stream": True,
            "n": random.choice((1, 1, 4)),
            "temperature": 2.0,
            "max_tokens": 1_000_000 if kind == "unread" else 2_000,
            "seed": random.getrandbits(30),
        }
        data = self.request("/v1/completions", json.dumps(body).encode())
        try:
            reader, writer = await asyncio.wait_for(
                asyncio.open_connection(self.host, self.port, limit=1 << 12), SECONDS
            )
            try:
                writer.write(data)
                await writer.drain()
                if kind == "unread":
                    await asyncio.sleep(3.0)
                found = b""
                for _ in range(random.randrange(1, 6)):
                    found += await asyncio.wait_for(reader.read(1 << 12), SECONDS)
            finally:
                writer.transport.abort()
        except TimeoutError:
            return "hang", name
        except OSError as error:
            return "crash", str(error)
        return judge_answer(found, data)

    def dripping(self, number: int) -> Iterator[Case]:
        """Connections that send a byte now and then, all at once, while others are answered."""
        results = asyncio.run(self._drip(number))
        for i, (result, detail) in enumerate(results):
            yield Case("server", f"slow:{i}", result, detail)

    async def _drip(self, number: int) -> list[tuple[Result, str]]:
        sound = self.request("/tokenize", json.dumps(BODIES["/tokenize"]).encode())

        async def drip() -> tuple[Result, str]:
            try:
                _, writer = await asyncio.open_connection(self.host, self.port)
                for at in range(40):
                    writer.write(sound[at : at + 1])
                    await asyncio.sleep(0.05)
                writer.transport.abort()
            except OSError:
                pass  # the server need not wait for it
            return "sentence", ""

        async def answered() -> tuple[Result, str]:
            try:
                return judge_answer(await asyncio.wait_for(self._exchange(sound), SECONDS), sound)
            except (TimeoutError, OSError) as error:
                return "hang", f"not answered beside slow connections: {error}"

        others = [answered() for _ in range(number // 10 + 1)]
        return await self._together([*(drip() for _ in range(number)), *others])


def judge_answer(answer: bytes, data: bytes) -> tuple[Result, str]:
    """Whether an answer is fit for a request that may be malformed."""
    if not answer:
        return "sentence", "closed"
    words = answer.split(b"\r\n", 1)[0].split()
    if len(words) < 2 or not words[0].startswith(b"HTTP/1") or not words[1].isdigit():
        return "difference", f"not HTTP: {answer[:200]!r}"
    status = int(words[1])
    if status >= 500 and status != 503:
        return "traceback", f"{status} {answer[-300:]!r} to {data[:600]!r}"
    return ("sentence" if status >= 400 else "legal"), ""
