"""Limits of a connection: size and time of request headers, which come before `guard.py` sees a
request, and the time for a client to read an answer.

uvicorn has none. Headers that are too large, too slow or malformed close the connection, with an
error in the API's format.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from elman.serve.http.errors import ApiError

ABORT = "elman.abort"
"""The extension of a request's scope that closes the connection, whatever is left to send."""
MAX_PIPELINED = 16
"""Requests that may wait for an earlier answer on their connection."""


class HeaderLimits(HttpToolsProtocol):
    """One connection."""

    max_bytes = 1 << 16
    """Size of the request line and all headers."""
    max_seconds = 20.0
    """Time for them, from the first byte or from the start of the connection."""

    max_unread_seconds = 300.0
    """Time for a client to read what waits for it."""
    patience_seconds = 5.0
    """The same when the memory of all requests is taken."""

    _num_bytes = 0
    _alarm: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _unread_since: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_alarm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_alarm()
        if self._unread is not None:
            self._unread.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._alarm is not None:  # the headers are not complete yet
            self._num_bytes += len(data)
            if self._num_bytes > self.max_bytes:
                message = f"the request headers are too large (limit {self.max_bytes:,} bytes)"
                self._refuse(ApiError(431, message))

    def on_message_begin(self) -> None:
        self._start_alarm()
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: self.transport.abort}  # type: ignore[dict-item]

    def on_headers_complete(self) -> None:
        self._stop_alarm()
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError("too many requests without reading an answer")  # answered with 400
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(ApiError(400, "the request is not valid HTTP/1.1"))

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_since = self.loop.time()
        self._unread = self.loop.call_later(self.max_unread_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread_since = None
        if self._unread is not None:
            self._unread.cancel()

    def make_room(self) -> None:
        """Disconnect a client that has not read for a while, to free its requests' memory."""
        since = self._unread_since
        if since is not None and self.loop.time() >= since + self.patience_seconds:
            self.transport.abort()

    def _start_alarm(self) -> None:
        self._stop_alarm()
        self._num_bytes = 0
        error = ApiError(408, "the request headers did not arrive in time", code="timeout")
        self._alarm = self.loop.call_later(self.max_seconds, self._refuse, error)

    def _stop_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _refuse(self, error: ApiError) -> None:
        self._stop_alarm()
        if self.transport.is_closing():
            return
        # While an earlier answer is being made or sent, another one would be mixed into it.
        cycle = self.cycle
        is_first = cycle is not None and cycle.more_body and not cycle.response_started
        if cycle is None or cycle.response_complete or (is_first and not self.pipeline):
            head = (
                f"HTTP/1.1 {error.status} Refused\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(error.body)}\r\nConnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + error.body)
        self.transport.close()
