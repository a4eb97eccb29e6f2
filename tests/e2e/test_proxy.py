"""nginx in front of two servers, with the file of the guide."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from live import Live, serving

from elman import api

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "workers.md"
NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
KEY = {"Authorization": "Bearer secret", "Content-Type": "application/json"}

pytestmark = [
    pytest.mark.skipif(NGINX is None, reason="nginx is not on this machine"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not on this machine"),
]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextmanager
def nginx(folder: Path, addresses: list[str]) -> Iterator[int]:
    """Start nginx with the guide's file, whose addresses and certificate are replaced."""
    (text,) = re.findall(r"^```nginx\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    port = free_port()
    pem, key = folder / "cert.pem", folder / "cert.key"
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1"
    files = ["-subj", "/CN=localhost", "-keyout", str(key), "-out", str(pem)]
    subprocess.run(["openssl", *words.split(), *files], check=True, capture_output=True)
    replaced = {
        "10.0.0.1:8000": addresses[0],
        "10.0.0.2:8000": addresses[1],
        "listen 443": f"listen 127.0.0.1:{port}",
        "/etc/ssl/models.example.org.pem": str(pem),
        "/etc/ssl/models.example.org.key": str(key),
        "worker_processes auto": "worker_processes 1",
        "events {": f"pid {folder}/pid; error_log {folder}/error.log; events {{",
        "http {": "http { access_log off; "
        + " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy")),
    }
    for old, new in replaced.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (folder / "nginx.conf").write_text(text, encoding="utf-8")
    command = [str(NGINX), "-p", str(folder), "-c", str(folder / "nginx.conf")]
    command += ["-e", str(folder / "error.log"), "-g", "daemon off;"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(200):
            with socket.socket() as trial:
                if trial.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.communicate()


def ask(port: int, path: str, body: Any = None) -> tuple[int, str]:
    unchecked = ssl.create_default_context()
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=unchecked, timeout=30)
    try:
        data = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, data, KEY)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def steps(live: Live) -> int:
    engine = live.served["words"].engine
    assert engine is not None
    return engine.statistics.generated_tokens


def test_nginx_in_front_of_two_servers(words: Path, tmp_path: Path) -> None:
    lm = api.load(words)
    with (
        serving({"words": lm}, api_key="secret") as one,
        serving({"words": lm}, api_key="secret", grace=0.1) as two,
        nginx(tmp_path, [urlsplit(live.address).netloc for live in (one, two)]) as port,
    ):
        both = [one, two]
        assert ask(port, "/ready") == (200, '{"ready":true}')
        before = [steps(live) for live in both]
        for end in ("", " and", " and lost"):
            text = "the old professor opened her book and read it until the evening came"
            body = {"prompt": text + end, "max_tokens": 1}
            assert ask(port, "/v1/completions", body)[0] == 200
        moved = sorted(steps(live) - old for live, old in zip(both, before, strict=True))
        assert moved == [0, 3]  # the same beginning
        for number in range(16):
            body = {"prompt": f"{number} students", "max_tokens": 1}
            assert ask(port, "/v1/completions", body)[0] == 200
        assert all(steps(live) > old for live, old in zip(both, before, strict=True))
        stream = {"prompt": "the", "max_tokens": 5, "stream": True}
        assert ask(port, "/v1/completions", stream)[1].endswith("data: [DONE]\n\n")
        # One machine goes away: the other answers everything.
        two.server.should_exit = True
        deadline = time.monotonic() + 30
        while two.server.servers and two.server.servers[0].is_serving():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        for number in range(8):
            body = {"prompt": f"{number} students", "max_tokens": 1}
            assert ask(port, "/v1/completions", body)[0] == 200
