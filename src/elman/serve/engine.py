"""The thread that drives a batch: requests come in from any thread, tokens go out as they are made.

One engine serves one model. Its thread sleeps while there is nothing to do, and is never held up by
a reader. After every turn it tells those who want to know (`notify`) which streams have something
new; readers in threads of their own can also wait (`Engine.wait`).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence

from elman.base.errors import ElmanError
from elman.models.interface import LanguageModel
from elman.serve.prefixes import PrefixCache
from elman.serve.stream_batch import Batch, Figures
from elman.serve.streams import Request, Stream

log = logging.getLogger(__name__)

Notify = Callable[[Sequence[Stream]], None]

CACHE_BYTES = 64 << 20
"""How much memory the states of known prefixes may take."""


class Busy(ElmanError):
    """More requests wait than the engine wants to keep."""


class Engine:
    """Continuous batching for one model, in a thread of its own. Close it when done."""

    def __init__(
        self,
        model: LanguageModel,
        *,
        boundary_id: int,
        end_ids: Collection[int] = frozenset(),
        max_streams: int = 256,
        max_waiting: int = 1024,
        cache_bytes: int = CACHE_BYTES,
        notify: Notify | None = None,
        name: str = "",
    ) -> None:
        self._batch = Batch(
            model,
            boundary_id=boundary_id,
            end_ids=end_ids,
            max_streams=max_streams,
            cache=PrefixCache(cache_bytes),
        )
        self.max_waiting = max_waiting
        self._notify = notify
        self._arrived: deque[Stream] = deque()
        self._condition = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"engine {name}", daemon=True)
        self._thread.start()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def figures(self) -> Figures:
        """What was done so far."""
        return self._batch.figures

    @property
    def cache(self) -> PrefixCache:
        """The states of known prefixes."""
        return self._batch.cache

    @property
    def num_streams(self) -> int:
        """How many streams have a place."""
        return self._batch.num_streams

    @property
    def num_waiting(self) -> int:
        """How many wait for one."""
        return len(self._arrived) + self._batch.num_waiting

    def submit(self, *requests: Request) -> list[Stream]:
        """A stream for each request, all of them or, where there is no room, none."""
        for request in requests:
            self._batch.check(request)
        streams = [Stream(request) for request in requests]
        with self._condition:
            if self._closed:
                raise Busy("the server is shutting down", "try again in a moment")
            if self.num_waiting + len(streams) > self.max_waiting:
                raise Busy("too many requests are waiting", "try again in a moment")
            self._arrived += streams
            self._condition.notify_all()
        return streams

    def cancel(self, streams: Sequence[Stream]) -> None:
        """No more tokens are wanted: their places are free before the next token is made."""
        with self._condition:
            for stream in streams:
                stream.cancel()
            self._condition.notify_all()

    def wait(self, stream: Stream, seen: int | None = None) -> None:
        """Return when the stream has more than `seen` tokens, or has ended (None: only then)."""

        def ready() -> bool:
            more = seen is not None and len(stream.tokens) > seen
            return more or stream.finish_reason is not None

        with self._condition:
            self._condition.wait_for(ready)

    def close(self) -> None:
        """End what still runs, and the thread."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(
                    lambda: self._closed or self._arrived or not self._batch.is_idle
                )
                while self._arrived:
                    self._batch.add(self._arrived.popleft())
                if self._closed:
                    break
            self._tell(self._advance())
        self._tell(self._batch.fail(ElmanError("the server is shutting down")))

    def _advance(self) -> Sequence[Stream]:
        try:
            return self._batch.advance()
        except ElmanError as error:
            return self._batch.fail(error)
        except Exception as error:  # a bug must end these streams, not all that come after
            log.exception("the model failed")
            return self._batch.fail(ElmanError(f"the model failed: {error}"))

    def _tell(self, streams: Sequence[Stream]) -> None:
        if not streams:
            return
        with self._condition:
            self._condition.notify_all()
        if self._notify is not None:
            self._notify(streams)
