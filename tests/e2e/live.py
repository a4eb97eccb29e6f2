"""A server in this process, on a free port, for tests that talk to it as clients do."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from elman.serve.http.app import Server, create
from elman.serve.http.guard import Hosts
from elman.serve.http.open_requests import Waker
from elman.serve.http.served import Served
from elman.serve.limits import Limits


@dataclass(frozen=True)
class Live:
    """A server that is running."""

    address: str
    served: dict[str, Served]
    server: Server


@contextmanager
def serving(
    models: Mapping[str, Any],
    *,
    limits: Limits | None = None,
    api_key: str | None = None,
    hosts: Hosts | None = None,
    cors: Sequence[str] = (),
    runs: Path | None = None,
    lab: bool = False,
    grace: float = 5.0,
    warm: bool = True,
    ways: Mapping[str, Any] | None = None,
) -> Iterator[Live]:
    """Serve open models under these names; everything is closed in the end."""
    waker = Waker()
    limits = limits or Limits()
    served = {name: Served(name, lm, limits, waker, ways) for name, lm in models.items()}
    app = create(
        served,
        waker=waker,
        limits=limits,
        api_key=api_key,
        hosts=hosts,
        cors=cors,
        runs=runs,
        lab=lab,
    )
    for one in served.values() if warm else ():
        if one.engine is not None:
            one.engine.warm_up()
    started = threading.Event()
    server = Server(app, grace=grace, on_start=lambda _: started.set())
    thread = threading.Thread(target=server.run, name="server")
    thread.start()
    try:
        started.wait()
        yield Live(server.address, served, server)
    finally:
        server.should_exit = True
        thread.join()
        for one in served.values():
            one.close()


def call(
    live: Live, path: str, body: Any = None, *, method: str = "", headers: Any = None
) -> tuple[int, Any]:
    """One request over plain HTTP; a body that is bytes is sent as it is."""
    connection = http.client.HTTPConnection(urlsplit(live.address).netloc)
    try:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        kind = {} if body is None else {"Content-Type": "application/json"}
        connection.request(
            method or ("GET" if body is None else "POST"), path, data, {**kind, **(headers or {})}
        )
        response = connection.getresponse()
        text = response.read().decode()
        is_json = "json" in response.headers.get("content-type", "")
        return response.status, json.loads(text) if is_json else text
    finally:
        connection.close()
