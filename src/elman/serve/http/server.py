"""The server that runs an application until a signal comes. It needs no torch: the process in front
of `--workers` runs it too."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from elman.base.errors import ElmanError
from elman.serve.http.header_limits import HeaderLimits
from elman.serve.limits import Limits

GRACE_SECONDS = 5.0
"""How long streams may continue after a signal to stop."""


class Server(uvicorn.Server):
    """On a signal, streams may finish for `grace` seconds; then `on_grace_end` ends them."""

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        path: str | None = None,
        grace: float = GRACE_SECONDS,
        on_start: Callable[[str], None] | None = None,
    ) -> None:
        """Listen on `host` and `port`, or on the Unix socket `path`."""
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                uds=path,
                http=type(
                    "Connection", (HeaderLimits,), {"max_unread_seconds": limits.max_seconds}
                ),
                ws="none",
                log_level="error",  # malformed requests are only warnings
                access_log=False,
                server_header=False,
                date_header=path is None,  # the process in front adds one
                timeout_graceful_shutdown=int(2 * grace) + 1,
            )
        )
        self.address = path or ""
        """Set once the server listens."""
        self._grace = grace
        self._on_start = on_start

    def make_room(self) -> None:
        """Disconnect clients that have not read for a while."""
        for connection in list(self.server_state.connections):
            if isinstance(connection, HeaderLimits):
                connection.make_room()

    def on_grace_end(self) -> None:
        """End the streams that are left."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        with self._explained():
            await super().startup(sockets)
        if self.started:
            if not self.address:
                host, port = self.servers[0].sockets[0].getsockname()[:2]
                self.address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
            if self._on_start is not None:
                self._on_start(self.address)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise an error if the address cannot be used; uvicorn logs the reason and exits."""
        reasons: list[OSError] = []

        def unless_reason(record: logging.LogRecord) -> bool:
            if isinstance(record.msg, OSError):
                reasons.append(record.msg)
            return not isinstance(record.msg, OSError)

        log = logging.getLogger("uvicorn.error")
        log.addFilter(unless_reason)
        try:
            yield
        except SystemExit as error:
            host, hint = self.config.host, "choose another --port; 0 takes a free one"
            why = "".join(f": {os.strerror(reason.errno or 0)}" for reason in reasons)
            if any(
                isinstance(reason, socket.gaierror) or reason.errno == errno.EADDRNOTAVAIL
                for reason in reasons
            ):
                why = f": '{host}' is no address of this machine"
                hint = "name another --host; 127.0.0.1 is this machine, 0.0.0.0 all its addresses"
            raise ElmanError(f"cannot listen at {host}:{self.config.port}{why}", hint) from error
        finally:
            log.removeFilter(unless_reason)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        alarm = asyncio.get_running_loop().call_later(self._grace, self.on_grace_end)
        await super().shutdown(sockets)
        alarm.cancel()
