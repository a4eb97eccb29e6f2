"""Heads of requests, before there is a request that `guard.py` could judge.

uvicorn reads a head without limits of size and time. Here one that is too large or too slow ends
its connection, with an answer in the API's own error shape.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from elman.serve.http.errors import ApiError


class HeadProtocol(HttpToolsProtocol):
    """One connection, whose heads have limits."""

    max_bytes = 1 << 16
    """Size of a head: the request line and all fields."""
    max_seconds = 20.0
    """Time in which a head must have arrived, from its first byte or the connection's start."""

    _num_bytes = 0
    _alarm: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has come."""
        super().connection_made(transport)
        self._wind_alarm()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._stop_alarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Some bytes, of a head or of a body."""
        super().data_received(data)
        if self._alarm is not None:  # the head goes on
            self._num_bytes += len(data)
            if self._num_bytes > self.max_bytes:
                self._refuse(ApiError(431, f"the head is larger than {self.max_bytes} bytes"))

    def on_message_begin(self) -> None:
        """A head begins."""
        self._wind_alarm()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """A head has ended."""
        self._stop_alarm()
        super().on_headers_complete()

    def _wind_alarm(self) -> None:
        self._stop_alarm()
        self._num_bytes = 0
        error = ApiError(408, "the head did not arrive in time", code="timeout")
        self._alarm = self.loop.call_later(self.max_seconds, self._refuse, error)

    def _stop_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _refuse(self, error: ApiError) -> None:
        self._stop_alarm()
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()  # an earlier answer is on its way, and must not be mixed up
            return
        head = (
            f"HTTP/1.1 {error.status} Refused\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(error.body)}\r\nConnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + error.body)
        self.transport.close()
