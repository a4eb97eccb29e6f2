"""`elman serve --workers` with real processes: routing, deaths, restarts, limits and keys."""

from __future__ import annotations

import http.client
import json
import operator
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from elman import api

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="--workers needs Linux")

Elman = Callable[..., Any]
KEY = {"Authorization": "Bearer secret", "Content-Type": "application/json"}
LONG = {"max_tokens": 6000, "logprobs": 20, "stream": True, "seed": 1}
"""About 8 MB: such a stream does not end while nobody reads it."""


@dataclass(frozen=True)
class Fleet:
    process: subprocess.Popen[str]
    port: int

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def ask(self, path: str, body: Any = None, *, key: bool = True) -> tuple[int, Any]:
        connection = self.connect()
        try:
            headers = KEY if key else {"Content-Type": "application/json"}
            data = None if body is None else json.dumps(body)
            connection.request("GET" if body is None else "POST", path, data, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
            is_json = "json" in (answer.getheader("content-type") or "")
            return answer.status, json.loads(text) if is_json else text
        finally:
            connection.close()

    def workers(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("/health", key=False)[1]["workers"]
        return found

    def pids(self) -> list[int]:
        return [worker["pid"] for worker in self.workers()]

    def metric(self, name: str) -> list[float]:
        """A metric of each worker."""
        text = self.ask("/metrics")[1]
        found = re.findall(rf'^elman_{name}{{.*worker="(\d)"}} (\S+)$', text, re.M)
        return [float(value) for _, value in sorted(found)]

    @contextmanager
    def stream(self, prompt: str) -> Iterator[http.client.HTTPResponse]:
        """A long stream, after its first event. The client takes little that it has not read."""
        connection = self.connect()
        connection.sock = socket.socket()
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sock.settimeout(60)
        connection.sock.connect(("127.0.0.1", self.port))
        body = {"prompt": prompt, "logit_bias": {"0": -100}, **LONG}
        connection.request("POST", "/v1/completions", json.dumps(body), KEY)
        answer = connection.getresponse()
        assert answer.status == 200
        assert answer.readline().startswith(b"data: {")
        assert answer.readline() == b"\n"
        try:
            yield answer
        finally:
            answer.close()
            connection.close()


def until(found: Callable[[], Any]) -> Any:
    """Wait until something is there."""
    deadline = time.monotonic() + 60
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return value


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(scope="module")
def run(words: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the word model, which a test replaces."""
    return Path(shutil.copytree(words, tmp_path_factory.mktemp("served") / "run"))


@pytest.fixture(scope="module")
def fleet(run: Path) -> Iterator[Fleet]:
    command = [sys.executable, "-m", "elman.cli", "serve", f"mine={run}", "--workers", "2"]
    process = subprocess.Popen(
        [*command, "--port", "0", "--threads", "1"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "ELMAN_API_KEY": "secret"},
    )
    assert process.stderr is not None
    said = process.stderr.readline()
    assert said.startswith("serving mine at http://127.0.0.1:"), said + process.stderr.read()
    log = threading.Thread(target=process.stderr.read, daemon=True)
    log.start()
    yield Fleet(process, int(said.rsplit(":", 1)[1]))
    process.terminate()
    process.wait()
    log.join()
    process.stderr.close()


def test_workers_answer_as_one_process_does(fleet: Fleet, words: Path) -> None:
    assert fleet.ask("/ready", key=False) == (200, {"ready": True})
    first, second = fleet.workers()
    assert first["ready"]
    assert second["ready"]
    assert first["pid"] != second["pid"]
    settings = {"max_tokens": 12, "temperature": 0.8, "seed": 5}
    expected = api.load(words).complete("the student", **settings)[0].text
    body = {"prompt": "the student", **settings}
    for _ in range(2):
        status, answer = fleet.ask("/v1/completions", body)
        assert status == 200
        assert answer["choices"][0]["text"] == expected
    assert fleet.ask("/v1/models")[1]["data"][0]["id"] == "mine"
    assert "<html" in fleet.ask("/")[1]


def test_keys_and_limits_hold(fleet: Fleet) -> None:
    for path in ("/v1/models", "/metrics"):
        assert fleet.ask(path, key=False)[0] == 401
    status, answer = fleet.ask("/v1/completions", {"prompt": "a", "max_tokens": 10**6})
    assert status == 400
    assert "max_tokens" in answer["error"]["message"]
    connection = fleet.connect()
    connection.request("POST", "/v1/score", b"", {**KEY, "Content-Length": str(5 << 20)})
    assert connection.getresponse().status == 413
    connection.close()
    status, answer = fleet.ask("/v1/score", {"text": "the student opened her book. " * 2000})
    assert status == 200  # longer than what the front reads before it chooses a worker
    connection = fleet.connect()
    parts = iter([b'{"prompt": "the ', b'student", "max_tokens": 2}'])
    connection.request("POST", "/v1/completions", parts, KEY, encode_chunked=True)
    assert connection.getresponse().status == 200
    connection.close()


def test_weights_are_mapped(fleet: Fleet, run: Path) -> None:
    for pid in fleet.pids():
        assert f"{run}/model.safetensors" in Path(f"/proc/{pid}/maps").read_text()


def test_requests_that_begin_alike_go_to_one_worker(fleet: Fleet) -> None:
    before = fleet.metric("prefix_cache_hits_total")
    beginning = "the old professor opened her book"
    for end in ("", " and", " and lost", " and lost the exam", " and"):
        fleet.ask("/v1/completions", {"prompt": beginning + end, "max_tokens": 1})
    after = fleet.metric("prefix_cache_hits_total")
    none, most = sorted(map(operator.sub, after, before))
    assert none == 0
    assert most >= 4
    before = fleet.metric("generated_tokens_total")
    for number in range(6):
        fleet.ask("/v1/completions", {"prompt": f"{number} students laughed", "max_tokens": 1})
    assert all(map(operator.gt, fleet.metric("generated_tokens_total"), before))


def test_a_client_that_disconnects_ends_its_stream(fleet: Fleet) -> None:
    with fleet.stream("students opened their books"):
        assert sum(worker["requests"] for worker in fleet.workers()) == 1
    until(lambda: fleet.metric("streams") == fleet.metric("streams_paused") == [0, 0])
    assert sum(worker["requests"] for worker in fleet.workers()) == 0


def test_a_killed_worker_costs_its_own_streams_alone(fleet: Fleet) -> None:
    with fleet.stream("the first stream") as one:
        (killed,) = [worker for worker in fleet.workers() if worker["requests"] == 1]
        with fleet.stream("another stream") as other:
            assert [worker["requests"] for worker in fleet.workers()] == [1, 1]
            os.kill(killed["pid"], signal.SIGKILL)
            *_, last, rest = one.read().decode().split("\n\n")
            assert json.loads(last.removeprefix("data: "))["error"]["code"] == "died"
            assert rest == ""
            assert other.read().endswith(b"data: [DONE]\n\n")
    place = killed["worker"]
    until(lambda: fleet.workers()[place]["ready"] and fleet.workers()[place]["restarts"] == 1)
    assert fleet.pids()[place] != killed["pid"]
    status, _ = fleet.ask("/v1/completions", {"prompt": "the first stream", "max_tokens": 1})
    assert status == 200


def test_a_restart_loses_no_request(fleet: Fleet, run: Path, model: Path) -> None:
    """It opens the models again; streams end where they began, and connections stay."""
    assert fleet.ask("/v1/models")[1]["data"][0]["tokenizer"] == "word"
    old = fleet.pids()
    run.rename(run.with_name("before"))
    shutil.copytree(model, run)
    found: list[int] = []
    done = threading.Event()

    def ask() -> None:
        connection = fleet.connect()
        while not done.is_set():
            body = json.dumps({"prompt": f"{len(found)} students", "max_tokens": 4})
            connection.request("POST", "/v1/completions", body, KEY)
            answer = connection.getresponse()
            answer.read()
            found.append(answer.status)
            time.sleep(0.02)
        connection.close()

    client = threading.Thread(target=ask)
    with fleet.stream("the student who stayed") as stream:
        client.start()
        try:
            fleet.process.send_signal(signal.SIGHUP)
            until(lambda: not set(fleet.pids()) & set(old))
        finally:
            done.set()
            client.join()
        assert sum(map(is_alive, old)) >= 1
        assert stream.read().endswith(b"data: [DONE]\n\n")
    assert found.count(200) == len(found) > 1
    assert fleet.ask("/v1/models")[1]["data"][0]["tokenizer"] == "char"
    until(lambda: not any(map(is_alive, old)))


def test_workers_end_with_the_server(fleet: Fleet) -> None:
    pids = fleet.pids()
    fleet.process.kill()
    until(lambda: not any(map(is_alive, pids)))


def test_a_model_that_is_not_there_for_workers(elman: Elman) -> None:
    result = elman("serve", "nothing/here", "--workers", 1, "--port", 0)
    assert result.code == 2
    assert "nothing/here" in result.error[0]
