"""Where the engine's threads and the server's event loop meet.

A job is one HTTP request with its streams. It sleeps until there is something to say, and ends its
streams when it is over, whatever the reason: all said, a stop sequence met, the client gone, the
time up.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Sequence

from elman.base.errors import ElmanError
from elman.serve.engine import Engine
from elman.serve.streams import Request, Stream

INTERVAL = 0.01
INTERVAL_PER_STREAM = 0.001
"""Jobs are woken at most so often (seconds, and so much less often for each stream): tokens that
come faster are sent together. Sending a piece costs as much as making a token does, so that sixty
streams sent token by token would be half as fast. A stream's first token and its end are sent at
once."""


class TimeUp(ElmanError):
    """The request has taken longer than it may."""


class Gone(Exception):
    """The client has left."""


class Waker:
    """Wakes jobs when their streams have something new: called by the engines' threads."""

    def __init__(self) -> None:
        self.jobs: dict[Stream, Job] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._changed: set[Stream] = set()
        """Those whose news wait for the next time jobs are woken."""
        self._urgent: list[Stream] = []
        """Those whose news do not."""
        self._last = 0.0

    def start(self) -> None:
        """Belong to the running event loop."""
        self._loop = asyncio.get_running_loop()

    def __call__(self, streams: Sequence[Stream]) -> None:
        """Some streams have changed. Returns at once."""
        loop = self._loop  # another engine's thread may find that it has ended
        if loop is None:  # nobody listens yet, or any more
            return
        urgent = [s for s in streams if s.finish_reason is not None or len(s.tokens) <= 1]
        with self._lock:
            planned, hurried = bool(self._changed), bool(self._urgent)
            self._changed.update(streams)
            self._urgent += urgent
        try:
            if not planned:
                loop.call_soon_threadsafe(self._plan)
            if urgent and not hurried:
                loop.call_soon_threadsafe(self._hurry)
        except RuntimeError:  # the event loop has ended, and with it everyone who listened
            self._loop = None

    def _plan(self) -> None:
        assert self._loop is not None
        interval = INTERVAL + INTERVAL_PER_STREAM * len(self.jobs)
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
        self._tell(changed)

    def _hurry(self) -> None:
        with self._lock:
            urgent, self._urgent = self._urgent, []
        self._tell(urgent)

    def _tell(self, streams: Iterable[Stream]) -> None:
        for stream in streams:
            job = self.jobs.get(stream)
            if job is not None and (not job.until_finished or stream.finish_reason):
                job.news.set()


class Job:
    """The streams of one request. Close it when it is over."""

    def __init__(
        self,
        waker: Waker,
        engine: Engine,
        requests: Sequence[Request],
        *,
        seconds: float,
        until_finished: bool = False,
    ) -> None:
        """With `until_finished` it is only woken when streams have ended."""
        self.until_finished = until_finished
        self.news = asyncio.Event()
        self._waker = waker
        self._engine = engine
        self._time_up = False
        self._gone = False
        self.streams = engine.submit(*requests)
        # No news is lost in between: jobs are woken by the loop that is making this one.
        for stream in self.streams:
            waker.jobs[stream] = self
        self._alarm = asyncio.get_running_loop().call_later(seconds, self._ring)

    async def wait(self) -> None:
        """Return when a stream may have something new."""
        await self.news.wait()
        self.news.clear()
        if self._gone:
            raise Gone
        if self._time_up:
            raise TimeUp(
                "the request took too long", "ask for fewer tokens, or raise --max-seconds"
            )

    def leave(self) -> None:
        """The client has gone."""
        self._gone = True
        self.news.set()

    def close(self) -> None:
        """End what still runs."""
        self._alarm.cancel()
        for stream in self.streams:
            self._waker.jobs.pop(stream, None)
        unfinished = [stream for stream in self.streams if stream.finish_reason is None]
        if unfinished:
            self._engine.cancel(unfinished)

    def _ring(self) -> None:
        self._time_up = True
        self.news.set()
