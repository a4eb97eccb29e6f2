"""Clients that send what they should not, or do not read, against `elman serve`.

Requests are malformed (the HTTP or the JSON of the body), sent slowly, aborted, or their answers
are not read; one asks for more memory than a request may take, and one for a model whose file is
cut short meanwhile. Sound requests must succeed, foreign and impossible ones must be refused with
the right status. Good ends of other requests are an answer with a status below 500, 503, or a
connection closed on one that is not a request. In the end the log must have no traceback, the
server must answer as it did at first, and its memory must have stayed below a ceiling and come
back.
"""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any
from urllib.parse import urlsplit

from elman.bench.faults.damaged_files import specimens
from elman.bench.faults.live_server import FAILURES, LiveServer
from elman.bench.faults.mutations import MUTATIONS
from elman.bench.faults.mutations.any_bytes import ANY
from elman.bench.faults.outcomes import Case, Plan, Result

MALFORMED, QUICK = 5000, 150
"""Requests that are malformed, in the whole campaign and in the test suite."""
ABORTED, UNREAD, DRIPPING = 600, 200, 300
"""Streams that are aborted, streams that are not read, and connections that drip."""
AT_ONCE = 32
SECONDS = 30.0
"""That an answer may take."""
PATIENCE = 2.0
"""Seconds after which the connection to a server that may wait for more is closed."""
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

CLOSED = 0
"""Stands for a connection that is closed without an answer."""
BAD = (CLOSED, 400)
_ODD_BODY = (CLOSED, 400, 408, 411, 413, 415, 422, 501)


def _get(path: str, *lines: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode()


def _post(*lines: str) -> bytes:
    head = ("POST /v1/score HTTP/1.1", "Host: localhost", "Content-Type: application/json")
    return "\r\n".join([*head, *lines, "", "{}"]).encode()


_CHUNKED = "Transfer-Encoding: chunked"
HEADS: dict[bytes, tuple[int, ...]] = {
    **dict.fromkeys((b"\r\n\r\n", b"\0" * 100, b"GET\r\n\r\n", b"\x16\x03\x01\x02\0"), BAD),
    b"GET / HTTP/9.9\r\n\r\n": (*BAD, 505),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n": (*BAD, 505),
    b"GET / HTTP/1.1\r\n\r\n": (400,),
    b"GET * HTTP/1.1\r\n\r\n": (400,),
    b"GET " + b"/a" * 40_000 + b" HTTP/1.1\r\n\r\n": (*BAD, 414, 431),
    _get("/health", *["A: b"] * 5_000): (*BAD, 200, 431),
    b"GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n": (421,),
    b"POST /v1/score HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 0\r\n\r\n": (421,),
    _get("/health", "Host: evil.example"): (400,),
    _get("/../../etc/passwd"): (400, 404),
    _get("/v1/runs/..%2f..%2fetc%2fpasswd"): (400, 404),
    _get("/v1/models/%00"): (400, 404),
    _get("/%ff%fe"): (400, 404),
    _get("/v1/completions", "Origin: http://evil").replace(b"GET", b"OPTIONS", 1): (400, 403, 405),
    _post("Content-Length: 2", "Origin: http://evil.example"): (403,),
    _get("/health", "Connection: upgrade", "Upgrade: websocket"): (200, 400, 403, 426),
    _get("/health", "Expect: 100-continue"): (100, 200, 417),
    **{
        _post(*lines): _ODD_BODY
        for lines in (
            *(("Content-Length: -1",), ("Content-Length: 1e3",), ("Content-Length: 0x2",)),
            *(("Content-Length: " + "9" * 5_000,), ("X: y",), ("Content-Encoding: gzip",)),
            *(("Content-Length: 2", "Content-Length: 3"), ("Content-Length: 2", _CHUNKED)),
            *(("Transfer-Encoding: gzip",), (_CHUNKED, "", "ffffffffffffffff")),
            *((_CHUNKED, "", "-1"), (_CHUNKED, "", "z")),
        )
    },
}
"""Malformed and odd beginnings of requests, and the statuses that they may get."""

HUGE = {"model": "words", "prompt": "the", "n": 256, "max_tokens": 8_192, "logprobs": 20}
"""Each number is within its limit; their product is not."""


def server(plan: Plan) -> Iterator[Case]:
    """The target `server`."""
    place = specimens(plan)
    number = QUICK if plan.quick else MALFORMED
    share = QUICK / MALFORMED if plan.quick else 1.0
    log = plan.folder / "server.log"
    log.unlink(missing_ok=True)
    models = [f"{name}={place / name}" for name in ("words", "ngram", "tagger")]
    cut = plan.folder / "cut"  # a model whose file is cut short under the server
    shutil.rmtree(cut, ignore_errors=True)
    shutil.copytree(place / "ngram", cut)
    models.append(f"cut={cut}")
    # Streams of unlimited length show whether one that nobody reads is paused.
    options = ("--threads", "1", "--max-tokens", "1000000")
    with LiveServer(models, log, options) as live:
        expected, uncut = _reference(live), _reference(live, "cut")
        before = live.megabytes
        watch = _Watch(live)
        with watch:
            clients = Clients(live.address, plan)
            yield from clients.malformed(number)
            yield from clients.streams("abort", int(ABORTED * share) or 10)
            yield from clients.streams("unread", int(UNREAD * share) or 10)
            yield from clients.dripping(int(DRIPPING * share) or 10)
            yield _refused(live, "product", HUGE, 400)
        peak = max(watch.megabytes) - before
        yield Case(
            *("server", "ceiling", "over memory" if peak > CEILING else "same output"),
            f"{peak:.0f} MB above the beginning",
        )
        with (cut / "ngram.safetensors").open("r+b") as file:
            file.truncate((cut / "ngram.safetensors").stat().st_size // 2)
        # A model that was read as a whole needs its file no more.
        told = _refused(live, "cut", {**REFERENCE, "model": "cut"}, 503)
        yield told if told.is_good else _answers(live, uncut, "cut")
        yield _answers(live, expected)
        yield _memory_returns(live, before)
    text = log.read_text(errors="replace")
    at = text.find("Traceback")
    yield Case("server", "log", "same output" if at < 0 else "traceback", text[at:][:3000])


def _reference(live: LiveServer, model: str = "words") -> Any:
    status, answer = live.ask("/v1/completions", {**REFERENCE, "model": model})
    if status != 200:
        raise RuntimeError(f"a sound request got {status}: {answer}")
    return [
        {key: value for key, value in choice.items() if key != "id"} for choice in answer["choices"]
    ]


def _answers(live: LiveServer, expected: Any, model: str = "words") -> Case:
    name = "answers" if model == "words" else model
    try:
        found = _reference(live, model)
    except FAILURES as error:
        return Case("server", name, live.failure(error), str(error))
    result: Result = "same output" if _alike(found, expected) else "difference"
    return Case("server", name, result, str(found))


def _alike(found: Any, expected: Any) -> bool:
    """Whether two answers are the same but for rounding, which depends on what else is computed."""
    if isinstance(found, dict) and isinstance(expected, dict):
        return found.keys() == expected.keys() and all(_alike(found[k], expected[k]) for k in found)
    if isinstance(found, list) and isinstance(expected, list):
        return len(found) == len(expected) and all(map(_alike, found, expected))
    if isinstance(found, float) and isinstance(expected, float):
        return math.isclose(found, expected, rel_tol=1e-5)
    return bool(found == expected)


def _refused(live: LiveServer, name: str, body: Any, expected: int) -> Case:
    """Send a request that must be refused with this status."""
    try:
        status, answer = live.ask("/v1/completions", body)
    except FAILURES as error:
        return Case("server", name, live.failure(error), str(error))
    result: Result = "sentence" if status == expected else "difference"
    return Case("server", name, result, f"{status} {str(answer)[:300]}")


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
        yield from self._each(names, self._malformed)

    def _each(self, names: list[str], work: Callable[[str], Any]) -> Iterator[Case]:
        """Run `work` for the names that are wanted, some at a time."""
        names = [name for name in names if self.plan.only in name]
        for first in range(0, len(names), AT_ONCE):
            part = names[first : first + AT_ONCE]
            if self.plan.is_over:
                yield from (Case("server", name, "skipped") for name in part)
                continue
            results = asyncio.run(self._together([work(name) for name in part]))
            for name, (result, detail) in zip(part, results, strict=True):
                yield Case("server", name, result, detail)

    async def _together(self, tasks: list[Any]) -> list[tuple[Result, str]]:
        return list(await asyncio.gather(*tasks))

    async def _malformed(self, name: str) -> tuple[Result, str]:
        random, number = self.plan.random(name), int(name.partition(":")[2]) // 3
        expected: tuple[int, ...] | None = None
        if name.startswith("body"):
            # The rest of a large body need not be read.
            data = self.body(random)
            may_close = len(data) > 1 << 16
        elif number < len(HEADS):
            data, expected = list(HEADS.items())[number]
            may_close = CLOSED in expected
        else:
            data, may_close = self.head(random), True
        try:
            answer = await asyncio.wait_for(self._exchange(data, may_close), SECONDS)
        except TimeoutError:
            return "hang", repr(data[:300])
        except ConnectionRefusedError as error:
            return "crash", str(error)
        except OSError:  # closed while we were still sending
            answer = b""
        return judge_answer(answer, data, expected, may_close=may_close)

    async def _exchange(self, data: bytes, may_wait: bool = False) -> bytes:
        """Send a request; return the beginning of the answer.

        `may_wait`: the server may wait for more, so tell it after a while that nothing follows.
        """
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            writer.write(data)
            await writer.drain()
            if may_wait:
                with suppress(TimeoutError):
                    return await asyncio.wait_for(reader.read(1 << 20), PATIENCE)
                with suppress(OSError):
                    writer.write_eof()
            return await reader.read(1 << 20)
        finally:
            writer.transport.abort()

    def head(self, random: Random) -> bytes:
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
        yield from self._each([f"{kind}:{i}" for i in range(number)], partial(self._stream, kind))

    async def _stream(self, kind: str, name: str) -> tuple[Result, str]:
        random = self.plan.random(name)
        body = {
            "prompt": "the",
            "stream": True,
            "n": random.choice((1, 1, 4)),
            "temperature": 2.0,
            "max_tokens": 400_000 if kind == "unread" else 2_000,
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
                found = await asyncio.wait_for(reader.read(1 << 12), SECONDS)
                for _ in range(random.randrange(5)):
                    found += await asyncio.wait_for(reader.read(1 << 12), SECONDS)
            finally:
                writer.transport.abort()
        except TimeoutError:
            return "hang", name
        except OSError as error:
            return "crash", str(error)
        return judge_answer(found, data, (200, 429, 503))  # others may take all the memory

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
            except ConnectionRefusedError as error:
                return "crash", str(error)
            except OSError:
                pass  # the server need not wait for it
            return "sentence", ""

        async def answered() -> tuple[Result, str]:
            try:
                found = await asyncio.wait_for(self._exchange(sound), SECONDS)
            except TimeoutError:
                return "hang", "not answered beside slow connections"
            except OSError as error:
                return "crash", f"not answered beside slow connections: {error}"
            return judge_answer(found, sound, (200,))

        others = [answered() for _ in range(number // 10 + 1)]
        return await self._together([*(drip() for _ in range(number)), *others])


def judge_answer(
    answer: bytes,
    data: bytes,
    expected: tuple[int, ...] | None = None,
    *,
    may_close: bool = False,
) -> tuple[Result, str]:
    """Whether an answer is fit for a request; `expected` are the statuses that it may have.

    Without them it is a malformed one, and any status is right that is below 500, or 503.
    """
    if not answer:
        if may_close:
            return "sentence", "closed"
        return "crash", f"closed without an answer to {data[:300]!r}"
    words = answer.split(b"\r\n", 1)[0].split()
    if len(words) < 2 or not words[0].startswith(b"HTTP/1") or not words[1].isdigit():
        return "difference", f"not HTTP: {answer[:200]!r}"
    status = int(words[1])
    told = f"{status} {answer[-300:]!r} to {data[:600]!r}"
    if expected is not None and status not in expected:
        return "difference", told
    if expected is None and status >= 500 and status != 503:
        return "traceback", told
    return ("sentence" if status >= 400 else "legal"), ""
