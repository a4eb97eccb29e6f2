"""Connect the engines' threads and the server's event loop.

An open request is one HTTP request with its streams. It sleeps until a stream changes, and cancels
its streams when it ends: all tokens sent, a stop sequence found, client gone or time up.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Iterable, Sequence
from typing import TypeVar

from starlette.types import Receive

from elman.serve.engine import Engine
from elman.serve.refusals import TimeUp
from elman.serve.streams import Continuation, Stream

Result = TypeVar("Result")

INTERVAL = 0.01
INTERVAL_PER_STREAM = 0.001
"""Minimum seconds between wake-ups, a constant and an amount per stream; tokens that come faster
are sent together. Sending a piece costs as much as making a token: with 60 streams sent token by
token, throughput halves. A stream's first token and its end are sent at once."""


class Gone(Exception):
    """The client disconnected."""


class Waker:
    """Wakes open requests whose streams changed; called by the engines' threads."""

    def __init__(self) -> None:
        self.requests: dict[Stream, OpenRequest] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._changed: set[Stream] = set()
        """Reported at the next wake-up."""
        self._urgent: list[Stream] = []
        """Reported at once."""
        self._last = 0.0

    def start(self) -> None:
        """Use the running event loop."""
        self._loop = asyncio.get_running_loop()

    def __call__(self, streams: Sequence[Stream]) -> None:
        """Report that streams have changed, without blocking."""
        loop = self._loop  # another engine's thread may reset it
        if loop is None:  # not started, or ended
            return
        urgent = [s for s in streams if s.finish_reason is not None or len(s.tokens) <= 1]
        with self._lock:
            scheduled, hurried = bool(self._changed), bool(self._urgent)
            self._changed.update(streams)
            self._urgent += urgent
        try:
            if not scheduled:
                loop.call_soon_threadsafe(self._schedule)
            if urgent and not hurried:
                loop.call_soon_threadsafe(self._hurry)
        except RuntimeError:  # the event loop has ended
            self._loop = None

    def _schedule(self) -> None:
        assert self._loop is not None
        interval = INTERVAL + INTERVAL_PER_STREAM * len(self.requests)
        delay = self._last + interval - self._loop.time()
        if delay <= 0:
            self._wake()
        else:
            self._loop.call_later(delay, self._wake)

    def _wake(self) -> None:
        assert self._loop is not None
        self._last = self._loop.time()
        with self._lock:
            changed, self._changed = self._changed, set()
        self._notify(changed)

    def _hurry(self) -> None:
        with self._lock:
            urgent, self._urgent = self._urgent, []
        self._notify(urgent)

    def _notify(self, streams: Iterable[Stream]) -> None:
        for stream in streams:
            opened = self.requests.get(stream)
            if opened is not None and (not opened.until_finished or stream.finish_reason):
                opened.changed.set()


class OpenRequest:
    """The streams of one HTTP request. Close it when it is over."""

    def __init__(
        self,
        waker: Waker,
        engine: Engine,
        continuations: Sequence[Continuation],
        *,
        seconds: float,
        until_finished: bool = False,
    ) -> None:
        """With `until_finished`, wake only when streams end."""
        self.until_finished = until_finished
        self.changed = asyncio.Event()
        self._waker = waker
        self._engine = engine
        self._time_up = False
        self._gone = False
        self.streams = engine.submit(*continuations)
        # No change is lost in between: requests are woken by the event loop that runs this.
        for stream in self.streams:
            waker.requests[stream] = self
        self._alarm = asyncio.get_running_loop().call_later(seconds, self._end_time)

    async def wait(self) -> None:
        """Return when a stream may have changed."""
        await self.changed.wait()
        self.changed.clear()
        if self._gone:
            raise Gone
        if self._time_up:
            raise TimeUp(
                "the request took too long", "ask for fewer tokens, or raise --max-seconds"
            )

    async def watched(self, receive: Receive, work: Awaitable[Result]) -> Result:
        """Do `work`; raise `Gone` in its `wait` if the client disconnects; close in any case."""

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            self._gone = True
            self.changed.set()

        watcher = asyncio.ensure_future(watch())
        try:
            return await work
        finally:
            watcher.cancel()
            self.close()

    def read(self, stream: Stream, num_tokens: int) -> None:
        """Note that the client has read a stream's first tokens."""
        self._engine.read(stream, num_tokens)

    def close(self) -> None:
        """Cancel streams that still run."""
        self._alarm.cancel()
        for stream in self.streams:
            self._waker.requests.pop(stream, None)
        unfinished = [stream for stream in self.streams if stream.finish_reason is None]
        if unfinished:
            self._engine.cancel(unfinished)

    def _end_time(self) -> None:
        self._time_up = True
        self.changed.set()
