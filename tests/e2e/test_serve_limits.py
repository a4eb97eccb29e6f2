"""What the server refuses, and how clients that come, go and dawdle fare."""

from __future__ import annotations

import contextlib
import hmac
import http.client
import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
import torch
from live import Live, call, serving

from elman import api
from elman.base.errors import ElmanError
from elman.serve.http import completion_routes, scoring_routes
from elman.serve.http.header_limits import HeaderLimits
from elman.serve.limits import Limits
from elman.serve.memory import TOKEN_BYTES, Memory
from elman.tasks import task_named

MUCH: Any = {"max_request_memory": 1 << 40, "max_memory": 1 << 40}
"""Limits for continuations that do not end."""
ERROR_FIELDS = {"message", "type", "param", "code"}


@pytest.fixture(scope="module")
def lm(words: Path) -> api.LM:
    return api.load(words)


@pytest.fixture(scope="module")
def live(lm: api.LM) -> Iterator[Live]:
    with serving({"words": lm}) as live:
        yield live


# What is refused


def test_garbage_is_refused_in_words(live: Live) -> None:
    json_type = {"Content-Type": "application/json"}
    for body, status in (
        (b"{", 400),
        (b"\xff\xfe\x00", 400),
        (b"[" * 100_000, 400),
        (b'{"prompt": ' + b"[" * 2000 + b"]" * 2000 + b"}", 400),
        (b'{"prompt": "\\ud800"}', 400),
        (b'{"temperature": NaN}', 400),
        (b'{"seed": 1e999}', 400),
        (b"null", 400),
        (b"", 400),
    ):
        code, answer = call(live, "/v1/completions", body, headers=json_type)
        assert code == status, body[:40]
        assert set(answer["error"]) == {"message", "type", "param", "code"}
    code, _ = call(live, "/v1/completions", b"{}", headers={"Content-Type": "text/plain"})
    assert code == 415
    assert call(live, "/v1/completions")[0] == 405
    code, answer = call(live, "/v1/nothing")
    assert (code, answer["error"]["type"]) == (404, "invalid_request_error")
    assert answer["error"]["message"].startswith("there is no GET /v1/nothing; GET /docs lists")


def test_brackets_within_a_text_are_not_nesting(live: Live) -> None:
    text = '"[' * 100 + "\\" + "{" * 100
    assert call(live, "/v1/completions", {"prompt": text, "max_tokens": 1})[0] == 200


def test_limits_of_size(lm: api.LM) -> None:
    limits = Limits(max_body_bytes=2000, max_prompt_tokens=10, max_choices=3)
    with serving({"words": lm}, limits=limits) as live:
        assert call(live, "/v1/completions", {"prompt": "a" * 3000})[0] == 413
        status, answer = call(live, "/v1/completions", {"prompt": "the " * 20})
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        assert call(live, "/v1/score", {"text": "the " * 20})[0] == 400
        assert call(live, "/v1/completions", {"n": 4})[0] == 400
        address = urlsplit(live.address)
        with socket.create_connection((address.hostname, address.port or 80)) as endless:
            endless.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n" + (b"400\r\n" + b" " * 1024 + b"\r\n") * 3
            )
            assert b" 413 " in endless.recv(100)


def test_texts_of_other_models_are_limited_too() -> None:
    with serving({"gate": Gate()}, limits=Limits(max_prompt_tokens=10)) as live:
        status, answer = call(live, "/v1/tag", {"text": "a" * 11})
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")


def head(live: Live, data: bytes) -> bytes:
    """What comes back to the beginning of a request."""
    address = urlsplit(live.address)
    with socket.create_connection((address.hostname, address.port or 80)) as connection:
        connection.sendall(data)
        return b"".join(iter(lambda: connection.recv(4096), b""))


def test_heads_without_end_are_refused(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeaderLimits, "max_bytes", 1000)
    for data in (
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nLong: " + b"a" * 2000,
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"Many: a\r\n" * 200,
        b"GET /" + b"a" * 2000,
    ):
        answer = head(live, data)
        assert answer.startswith(b"HTTP/1.1 431 ")
        error = json.loads(answer.split(b"\r\n\r\n")[1])["error"]
        assert error["message"].startswith("the request headers")
    assert call(live, "/health")[0] == 200


def test_heads_that_never_arrive_are_not_waited_for(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HeaderLimits, "max_seconds", 0.05)
    for data in (b"", b"GET /health HT"):
        assert head(live, data).startswith(b"HTTP/1.1 408 ")


def test_limits_of_time(lm: api.LM) -> None:
    limits = Limits(max_seconds=0.2, max_tokens=10_000_000, **MUCH)
    with serving({"words": lm}, limits=limits) as live:
        status, answer = call(live, "/v1/completions", {"max_tokens": 10_000_000})
        assert (status, answer["error"]["type"]) == (408, "timeout_error")
        status, text = call(live, "/v1/completions", {"max_tokens": 10_000_000, "stream": True})
        assert status == 200
        assert '"timeout_error"' in text
        assert text.endswith("data: [DONE]\n\n")


def test_a_body_that_never_arrives_is_not_waited_for(lm: api.LM) -> None:
    with serving({"words": lm}, limits=Limits(max_body_seconds=0.1)) as live:
        address = urlsplit(live.address)
        for header in (b"Content-Length: 100", b"Transfer-Encoding: chunked"):
            with socket.create_connection((address.hostname, address.port or 80)) as slow:
                slow.sendall(
                    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                    b"Content-Type: application/json\r\n" + header + b"\r\n\r\n"
                )
                assert b" 408 " in slow.recv(100)


def test_more_than_can_wait_is_turned_away(lm: api.LM) -> None:
    limits = Limits(max_streams=1, max_waiting=2, max_tokens=10_000_000, **MUCH)
    with serving({"words": lm}, limits=limits) as live:
        status, answer = call(live, "/v1/completions", {"n": 3})
        assert (status, answer["error"]["code"]) == (429, "rate_limit_exceeded")
        assert call(live, "/v1/completions", {"n": 2, "max_tokens": 2})[0] == 200


def test_a_key_is_asked_for_and_compared(lm: api.LM) -> None:
    with serving({"words": lm}, api_key="sesame") as live:
        for path in ("/v1/models", "/metrics", "/tokenizer_info"):
            status, answer = call(live, path)
            assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
            assert call(live, path, headers={"Authorization": "Bearer sesam"})[0] == 401
            assert call(live, path, headers={"Authorization": "Bearer sesame"})[0] == 200
        assert call(live, "/health")[0] == 200
        with (
            openai.OpenAI(base_url=f"{live.address}/v1", api_key="wrong", max_retries=0) as client,
            pytest.raises(openai.AuthenticationError),
        ):
            client.models.list()


def test_keys_are_compared_in_constant_time(lm: api.LM, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(given: bytes, expected: bytes) -> bool:
        compared.append((given, expected))
        return True

    monkeypatch.setattr(hmac, "compare_digest", compare)
    with serving({"words": lm}, api_key="sesame") as live:
        assert call(live, "/v1/models", headers={"Authorization": "Bearer wrong"})[0] == 200
    assert compared == [(b"Bearer wrong", b"Bearer sesame")]


# Coming and going


class Gate:
    """A tagger that tags only once it is allowed to."""

    kind = "gate"
    task = task_named("tagger")

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self.allowed = threading.Event()

    def tag(self, text: str) -> list[tuple[str, str]]:
        self.asked.release()
        self.allowed.wait()
        return [(text, "X")]


class Asking(threading.Thread):
    """A request on its way."""

    def __init__(self, live: Live, path: str, body: Any) -> None:
        super().__init__()
        self.status = 0
        self._request = (live, path, body)
        self.start()

    def run(self) -> None:
        self.status, _ = call(*self._request)


def test_long_work_holds_neither_the_others_nor_its_client_for_ever() -> None:
    gate = Gate()
    with serving({"gate": gate}, limits=Limits(max_seconds=0.1)) as live:
        status, answer = call(live, "/v1/tag", {"text": "a"})
        assert (status, answer["error"]["type"]) == (408, "timeout_error")
        assert call(live, "/health")[0] == 200
        gate.allowed.set()


def test_work_waits_in_a_queue_that_ends() -> None:
    gate = Gate()
    with serving({"gate": gate}, limits=Limits(max_waiting=2)) as live:
        asking = [Asking(live, "/v1/tag", {"text": "a"}) for _ in range(2)]
        for _ in asking:
            gate.asked.acquire()
        connection = http.client.HTTPConnection(urlsplit(live.address).netloc)
        json_type = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/tag", b'{"text": "a"}', json_type)
        response = connection.getresponse()
        assert json.loads(response.read())["error"]["code"] == "rate_limit_exceeded"
        assert (response.status, response.headers["Retry-After"]) == (429, "1")
        connection.close()
        gate.allowed.set()
        for request in asking:
            request.join()
            assert request.status == 200


def test_a_large_prompt_is_cut_beside_the_event_loop(
    lm: api.LM, monkeypatch: pytest.MonkeyPatch
) -> None:
    cutting, allowed = threading.Event(), threading.Event()
    encode = lm.tokenizer.encode

    def slow(text: str) -> Any:
        cutting.set()
        allowed.wait()
        return encode(text)

    monkeypatch.setattr(lm.tokenizer, "encode", slow)
    with serving({"words": lm}) as live:
        large = Asking(live, "/v1/completions", {"prompt": "the " * 10_000, "max_tokens": 1})
        cutting.wait()
        assert call(live, "/health")[0] == 200
        allowed.set()
        large.join()
        assert large.status == 200


def open_stream(live: Live, **settings: Any) -> tuple[socket.socket, Any]:
    """A stream of which the first piece has arrived."""
    body = json.dumps({"prompt": "the", "stream": True, **settings}).encode()
    address = urlsplit(live.address)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((address.hostname, address.port))
    connection.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    file = connection.makefile("rb")
    while not file.readline().startswith(b"data: "):
        pass
    return connection, file


def test_clients_that_vanish_free_their_places(lm: api.LM) -> None:
    limits = Limits(max_streams=2, max_waiting=2, max_tokens=10_000_000, **MUCH)
    # However long it takes to notice that the last ones have gone, they are not ended instead.
    with serving({"words": lm}, limits=limits, grace=600) as live:
        for _ in range(3):
            pair = [open_stream(live, max_tokens=10_000_000) for _ in range(2)]
            for connection, file in pair:
                file.close()
                connection.close()
            # With both places taken for hours, this could not be answered.
            assert call(live, "/v1/completions", {"max_tokens": 3})[0] == 200
        engine = live.served["words"].engine
        assert engine is not None
    assert engine.statistics.finished["cancelled"] == 6


def test_a_client_that_gives_up_on_a_whole_answer_frees_its_place(lm: api.LM) -> None:
    limits = Limits(max_streams=1, max_tokens=10_000_000, **MUCH)
    with serving({"words": lm}, limits=limits) as live:
        address = urlsplit(live.address)
        body = b'{"max_tokens": 10000000}'
        with socket.create_connection((address.hostname, address.port or 80)) as connection:
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
            )
        assert call(live, "/v1/completions", {"max_tokens": 3})[0] == 200


def test_a_slow_reader_does_not_hold_the_others(lm: api.LM) -> None:
    limits = Limits(max_tokens=10_000_000, **MUCH)
    with serving({"words": lm}, limits=limits) as live:
        connection, file = open_stream(live, max_tokens=10_000_000)  # and never reads again
        for _ in range(3):
            assert call(live, "/v1/completions", {"max_tokens": 20})[0] == 200
        file.close()
        connection.close()


def test_stopping_ends_streams_in_words(lm: api.LM) -> None:
    with serving({"words": lm}, limits=Limits(max_tokens=10_000_000, **MUCH), grace=0.1) as live:
        connection, file = open_stream(live, max_tokens=10_000_000)
        lines: list[bytes] = []
        reader = threading.Thread(target=lambda: lines.extend(file))
        reader.start()
    reader.join()
    file.close()
    connection.close()
    events = [line for line in lines if line.startswith(b"data: ")]
    assert b"shutting down" in events[-2]
    assert events[-1] == b"data: [DONE]\n"


def test_stopping_lets_short_streams_finish(lm: api.LM) -> None:
    lines: list[bytes] = []
    with serving({"words": lm}, grace=60) as live:
        connection, file = open_stream(live, max_tokens=300)
        reader = threading.Thread(target=lambda: lines.extend(file))
        reader.start()
    reader.join()
    file.close()
    connection.close()
    events = [line for line in lines if line.startswith(b"data: ")]
    assert json.loads(events[-2][6:])["choices"][0]["finish_reason"] == "length"
    assert events[-1] == b"data: [DONE]\n"


# Where requests come from


def test_a_rebound_name_reaches_nothing(live: Live) -> None:
    for path in ("/", "/studio/main.js", "/metrics", "/health", "/v1/models", "/nothing"):
        status, answer = call(live, path, headers={"Host": "evil.example:8000"})
        assert (status, answer["error"]["code"]) == (421, "unknown_host")
        assert "--allow-host evil.example" in answer["error"]["message"]
    assert call(live, "/health", headers={"Host": "a.localhost:1"})[0] == 200
    for host in (b"", b"Host: localhost\r\nHost: localhost\r\n", b"Host: a/b\r\n"):
        answer = head(live, b"GET /health HTTP/1.1\r\n" + host + b"Connection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert json.loads(answer.split(b"\r\n\r\n")[1])["error"]["code"] == "invalid_host"


def test_health_checks_without_a_host_are_answered(live: Live) -> None:
    assert head(live, b"GET /health HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 ")
    rebound = b"GET /health HTTP/1.0\r\nHost: evil.example\r\n\r\n"
    assert head(live, rebound).startswith(b"HTTP/1.1 421 ")


def test_with_a_key_any_name_will_do(lm: api.LM) -> None:
    with serving({"words": lm}, api_key="sesame") as live:
        named = {"Host": "elman.default.svc"}
        assert call(live, "/health", headers=named)[0] == 200
        assert call(live, "/v1/models", headers=named)[0] == 401
        key = {"Authorization": "Bearer sesame"}
        assert call(live, "/v1/models", headers={**named, **key})[0] == 200
        assert call(live, "/v1/models", headers={"Host": "a b", **key})[0] == 400


def test_a_foreign_page_changes_nothing(lm: api.LM) -> None:
    page = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
    for cors, expected in (((), 403), (("http://evil.example",), 200)):
        with serving({"words": lm}, cors=cors) as live:
            body = {"prompt": "the", "max_tokens": 1}
            assert call(live, "/v1/completions", body, headers=page)[0] == expected
            assert call(live, "/v1/completions", body, headers={"Origin": live.address})[0] == 200
            assert call(live, "/health", headers=page)[0] == 200


# Memory


def test_the_product_of_numbers_is_bounded(live: Live) -> None:
    for body, advice in (
        ({"n": 256, "max_tokens": 8192, "logprobs": 20}, "n (256) or max_tokens (8,192) or log"),
        ({"prompt": ["the"] * 128, "best_of": 2, "max_tokens": 8192, "logprobs": 9}, "best_of (2)"),
        ({"prompt": "the " * 60_000, "echo": True, "logprobs": 20}, "the echoed prompt (60,000)"),
        ({"prompt": "a" * 200_000, "echo": True, "n": 200}, "n (200)"),
    ):
        status, answer = call(live, "/v1/completions", body)
        message = answer["error"]["message"]
        assert status == 400
        assert "of memory (limit 268 MB, --max-request-memory); lower " in message
        assert advice in message
    assert call(live, "/v1/completions", {"n": 64, "max_tokens": 2})[0] == 200


def test_all_requests_together_are_bounded(lm: api.LM) -> None:
    limits = Limits(max_tokens=10_000_000, max_memory=2_000_000_000, max_request_memory=1 << 40)
    with serving({"words": lm}, limits=limits) as live:
        connection, file = open_stream(live, max_tokens=10_000_000)
        status, answer = call(live, "/v1/completions", {"max_tokens": 10_000_000})
        assert (status, answer["error"]["code"]) == (503, "overloaded")
        assert call(live, "/v1/completions", {"max_tokens": 3})[0] == 200
        file.close()
        connection.close()
        until(lambda: memory_of(live).used == 0)


def memory_of(live: Live) -> Memory:
    memory: Memory = live.server._context.memory
    return memory


def shorten_buffers(live: Live) -> None:
    """Let connections hold few bytes, so that those that nobody reads are soon full."""
    descriptor = os.dup(live.server.servers[0].sockets[0].fileno())
    with socket.socket(fileno=descriptor) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


def until(is_so: Callable[[], bool]) -> None:
    """Wait for something that happens by itself."""
    while not is_so():
        time.sleep(0.01)


def test_a_client_that_does_not_read_is_paused_and_goes_on_when_it_does(lm: api.LM) -> None:
    limits = Limits(max_tokens=10_000_000, **MUCH)
    with serving({"words": lm}, limits=limits) as live:
        engine = live.served["words"].engine
        assert engine is not None
        shorten_buffers(live)
        connection, file = open_stream(live, max_tokens=10_000_000, logprobs=9)
        until(lambda: engine.num_paused == 1)
        made = engine.statistics.generated_tokens
        assert call(live, "/v1/completions", {"max_tokens": 9, "n": 2, "seed": 1})[0] == 200
        assert engine.statistics.generated_tokens <= made + 2 * 9  # none for the other
        assert "elman_streams_paused" in call(live, "/metrics")[1]
        until(lambda: bool(file.readline()) and engine.statistics.generated_tokens > made + 100)
        file.close()
        connection.close()
        until(lambda: engine.num_paused == 0 and memory_of(live).used == 0)


def test_a_client_that_never_reads_is_disconnected(
    lm: api.LM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion_routes, "SPARE_SECONDS", 0.0)
    limits = Limits(max_tokens=10_000_000, max_seconds=0.5, **MUCH)
    with serving({"words": lm}, limits=limits) as live:
        engine = live.served["words"].engine
        assert engine is not None
        shorten_buffers(live)
        connection, file = open_stream(live, max_tokens=10_000_000, logprobs=9)
        until(lambda: memory_of(live).used == 0 and engine.num_streams == engine.num_paused == 0)
        until(lambda: not live.server.server_state.connections)
        file.close()
        connection.close()


def test_a_client_that_never_reads_gives_way_when_memory_is_full(
    lm: api.LM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HeaderLimits, "patience_seconds", 0.0)
    most = 10_000_000 * TOKEN_BYTES + 10_000_000
    limits = Limits(max_tokens=10_000_000, max_memory=most, max_request_memory=most)
    with serving({"words": lm}, limits=limits) as live:
        shorten_buffers(live)
        connection, file = open_stream(live, max_tokens=10_000_000)
        large = {"prompt": "a" * 1_000_000, "max_tokens": 1}
        status, answer = call(live, "/v1/completions", large)
        assert (status, answer["error"]["code"]) == (503, "overloaded")
        until(lambda: call(live, "/v1/completions", large)[0] == 200)
        file.close()
        connection.close()


def test_vectors_are_counted_in_their_format_and_before_they_are_computed(
    lm: api.LM, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = 2048 * lm.model.head.hidden_size  # type: ignore[attr-defined]
    limits = Limits(max_request_memory=400_000 + 32 * numbers)
    with serving({"words": lm}, limits=limits) as live:
        body = {"input": ["a"] * 2048, "encoding_format": "base64"}
        status, answer = call(live, "/v1/embeddings", body)
        assert (status, len(answer["data"])) == (200, 2048)
        monkeypatch.setattr(scoring_routes, "sequence_vectors", None)
        status, answer = call(live, "/v1/embeddings", {"input": ["a"] * 2048})
        assert status == 400
        assert answer["error"]["message"].endswith("send fewer texts (2,048)")


def test_a_whole_answer_that_nobody_reads_is_dropped(
    lm: api.LM, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits(max_seconds=3.0)
    with serving({"words": lm}, limits=limits) as live:
        address = urlsplit(live.address)
        body = b'{"prompt": "%s", "echo": true, "n": 40, "max_tokens": 1}' % (b"a" * 300_000)
        with socket.create_connection((address.hostname, address.port or 80)) as connection:
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                % (len(body), body)
            )
            assert connection.recv(12) == b"HTTP/1.1 200"
            assert memory_of(live).used > 1_000_000
            until(lambda: memory_of(live).used == 0)
            until(lambda: not live.server.server_state.connections)


# What is not HTTP, and JSON that Python does not like


def test_malformed_requests_are_refused_in_words(live: Live) -> None:
    post = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    for data in (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /health\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nA: \x00\r\n\r\n",
        post + b"Content-Length: -1\r\n\r\n{}",
        post + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        post + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        post + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n{}",
        post + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}",
    ):
        answer = head(live, data)
        assert answer.startswith(b"HTTP/1.1 4"), data
        assert set(json.loads(answer.split(b"\r\n\r\n")[1])["error"]) == ERROR_FIELDS
    answer = head(live, post + b"Content-Length: 2\r\n\r\n{x")
    assert b'"message":"the body is not JSON"' in answer
    upgrade = b"Connection: Upgrade, close\r\nUpgrade: h2c\r\n\r\n"
    answer = head(live, b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + upgrade)
    assert answer.startswith(b"HTTP/1.1 200 ")


def test_bodies_that_python_does_not_like(live: Live) -> None:
    digits = b"1" * 5000
    for body in (
        b'{"max_tokens": %s}' % digits,
        b'{"prompt": [%s]}' % digits,
        b'{"seed": -%s}' % digits,
        b'{"temperature": 1e%s}' % digits,
        b'{"temperature": Infinity}',
        b'{"logit_bias": {"%s": 1}}' % digits,
        b'{"prompt": "\\ud800", "echo": true}',
        b'{"\\udfff": 1}',
        b'{"model": "\\udfff"}',
        b'{"prompt": ["a", 1]}',
        b'{"prompt": [%s1]}' % (b"1," * 70_000),
        b'{"prompt": [%s"a"]}' % (b'"a",' * 20_000),
        b'{"prompt": [%s[]]}' % (b"[]," * 20_000),
        b"{%s}" % b",".join(b'"f%d": 1' % i for i in range(2_000)),
        b"{} {}",
        b"1" * 5000,
    ):
        for path in ("/v1/completions", "/v1/embeddings", "/v1/score", "/v1/tag", "/tokenize"):
            status, answer = call(live, path, body)
            assert 400 <= status < 500, (path, body[:50])
            assert set(answer["error"]) == ERROR_FIELDS
    assert call(live, "/v1/runs/a?after=" + "9" * 5000)[0] in (400, 404)
    assert call(live, "/health")[0] == 200
    assert memory_of(live).used == 0


def test_pipelined_requests_are_answered_in_order_and_bounded(live: Live) -> None:
    def get(path: bytes, end: bytes = b"") -> bytes:
        return b"GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n" % (path, end)

    paths = [b"/health", b"/v1/models", b"/nothing", b"/health"]
    answer = head(live, b"".join(map(get, paths)) + get(b"/health", b"Connection: close\r\n"))
    found = [answer.find(text) for text in (b'"status"', b'"object":"list"', b"/nothing")]
    assert answer.count(b"HTTP/1.1 200 OK") == 4
    assert found == sorted(found)
    with contextlib.suppress(ConnectionResetError):  # it is closed with input left
        assert head(live, get(b"/health") * 5000).count(b"HTTP/1.1") < 100
    assert call(live, "/health")[0] == 200


def test_connections_that_drip_hold_nobody_up(live: Live) -> None:
    address = urlsplit(live.address)
    begun = (b"GET /health HT", b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Le")
    dripping = []
    for i in range(200):
        dripping.append(socket.create_connection((address.hostname, address.port or 80)))
        dripping[-1].sendall(begun[i % 2])
    for connection in dripping:
        connection.sendall(b"T")
    assert call(live, "/v1/completions", {"max_tokens": 3})[0] == 200
    for connection in dripping:
        connection.close()


def test_aborted_streams_leave_nothing_behind(live: Live) -> None:
    for _ in range(50):
        connection, file = open_stream(live, max_tokens=8000)
        file.close()
        connection.close()
    engine = live.served["words"].engine
    assert engine is not None
    until(lambda: memory_of(live).used == 0 and engine.num_streams == 0)
    until(lambda: not live.server.server_state.connections)


# Models that change or break


def test_a_changed_file_is_told_and_harms_no_other_model(
    lm: api.LM,
    elman: Callable[..., Any],
    toy: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    elman("train", "ngram", toy, "--out", tmp_path / "grams").ok()
    grams = api.load(tmp_path / "grams")
    changed = False

    def check() -> None:
        if changed:
            raise ElmanError("model.safetensors was changed or cut short while it was in use", "")

    monkeypatch.setattr(grams.model, "check_unchanged", check, raising=False)
    with serving({"words": lm, "grams": grams}) as live:
        live.served["grams"].watch(tmp_path / "grams")
        assert call(live, "/health")[1]["status"] == "ok"
        changed = True
        for path, body in (
            ("/v1/completions", {"max_tokens": 3}),
            ("/v1/score", {"text": "the student"}),
            ("/v1/next", {}),
        ):
            assert call(live, path, {"model": "words", **body})[0] == 200
            status, answer = call(live, path, {"model": "grams", **body})
            assert (status, answer["error"]["code"]) == (503, "model_changed")
        health = call(live, "/health")[1]
        assert health["status"] == "degraded"
        assert health["problems"][0].startswith("grams: model.safetensors was changed")
        changed = False
        next((tmp_path / "grams").glob("*.safetensors")).touch()
        assert "since it was loaded" in call(live, "/health")[1]["problems"][0]
        assert call(live, "/v1/completions", {"model": "grams", "max_tokens": 3})[0] == 200


def test_a_model_without_numbers_answers_in_words(words: Path) -> None:
    broken = api.load(words)
    with torch.no_grad():
        for weight in broken.model.parameters():
            weight.fill_(math.nan)
    with serving({"broken": broken}, warm=False) as live:
        for path, body in (
            ("/v1/completions", {"max_tokens": 3, "logprobs": 2}),
            ("/v1/completions", {"max_tokens": 3, "temperature": 0}),
            ("/v1/completions", {"max_tokens": 0, "prompt": "the", "echo": True, "logprobs": 2}),
            ("/v1/completions", {"max_tokens": 3, "beam_size": 2}),
            ("/v1/score", {"text": "the student"}),
            ("/v1/next", {"prompt": "the"}),
            ("/v1/embeddings", {"input": "the"}),
            ("/v1/inside", {"text": "the student"}),
        ):
            status, answer = call(live, path, body)
            assert status == 400, (path, body, answer)
            assert set(answer["error"]) == ERROR_FIELDS
