"""The thread that drives a batch. Continuations come in from any thread, tokens go out as made.

One engine serves one model. Its thread sleeps while idle and never waits for a reader. After every
turn it calls `notify` with the streams that changed; readers in other threads can use
`Engine.wait`.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import torch

from elman.base.errors import ElmanError
from elman.decode.options import DecodeOptions
from elman.models.decoding import Decoding
from elman.nn.kernels.planning import current_limits
from elman.serve.prefixes import PrefixCache
from elman.serve.refusals import Busy, Unavailable
from elman.serve.stream_batch import Statistics, StreamBatch
from elman.serve.streams import Continuation, Stream

log = logging.getLogger(__name__)

Notify = Callable[[Sequence[Stream]], None]


class Engine:
    """Continuous batching for one model, in its own thread. Close it when done."""

    def __init__(
        self,
        batch: StreamBatch,
        *,
        max_waiting: int = 1024,
        notify: Notify | None = None,
        name: str = "",
    ) -> None:
        self._batch = batch
        self.max_waiting = max_waiting
        self._notify = notify
        self._arrived: deque[Stream] = deque()
        self._condition = threading.Condition()
        self._closed = False
        self.checks = list(_checks(batch.model))
        """Raise an error if a model's file was changed while it was in use."""
        self._told = False
        # Started when needed: a process without threads can be forked.
        self._thread = threading.Thread(target=self._run, name=f"engine {name}", daemon=True)

    @property
    def statistics(self) -> Statistics:
        return self._batch.statistics

    @property
    def cache(self) -> PrefixCache:
        return self._batch.cache

    @property
    def num_streams(self) -> int:
        """Streams in the batch."""
        return self._batch.num_streams

    @property
    def num_paused(self) -> int:
        """Streams that wait for their readers."""
        return self._batch.num_paused

    @property
    def num_waiting(self) -> int:
        """Streams in the queue."""
        return len(self._arrived) + self._batch.num_waiting

    def submit(self, *continuations: Continuation) -> list[Stream]:
        """Queue a stream for each continuation; raise `Busy` if there is no room for all."""
        for continuation in continuations:
            self._batch.check(continuation)
        streams = [Stream(continuation) for continuation in continuations]
        with self._condition:
            if self._closed:
                raise Busy("the server is shutting down", "try again in a moment")
            if self.num_waiting + len(streams) > self.max_waiting:
                raise Busy("too many requests are waiting", "try again in a moment")
            self._arrived += streams
            if self._thread.ident is None:
                self._thread.start()
            self._condition.notify_all()
        return streams

    def run(self, *continuations: Continuation) -> list[Stream]:
        """Finish continuations in the caller's thread, before any was submitted."""
        assert self._thread.ident is None
        streams = [Stream(continuation) for continuation in continuations]
        for stream in streams:
            self._batch.add(stream)
        while not self._batch.is_idle:
            self._advance()
        return streams

    def warm_up(self, num_threads: int = 1) -> None:
        """Generate a few tokens, since the first steps are slow and may compile.

        `num_threads` is for a process that will be forked, and has one thread until then: the forks
        share weights that are packed for steps of many streams on so many threads.
        """
        wanted = Continuation(prompt=(), config=DecodeOptions(max_tokens=2, seed=0))
        self.run(wanted)
        # One stream and many run different steps.
        many, model = min(current_limits().few_streams + 1, self.max_waiting), self._batch.model
        if isinstance(model, Decoding) and num_threads > torch.get_num_threads():
            model.prepare(many, num_threads)
        else:
            self.run(*[wanted] * many)

    def cancel(self, streams: Sequence[Stream]) -> None:
        """Remove streams before the next turn of the batch, which on a GPU makes up to 8 tokens."""
        with self._condition:
            for stream in streams:
                stream.cancel()
            self._condition.notify_all()

    def read(self, stream: Stream, num_tokens: int) -> None:
        """Note that a stream's first tokens have been read, so that it goes on if it has paused."""
        stream.read(num_tokens)
        if stream.paused:
            with self._condition:
                self._condition.notify_all()

    def wait(self, stream: Stream, seen: int | None = None) -> None:
        """Block until the stream has more than `seen` tokens or has ended (None: has ended)."""

        def ready() -> bool:
            more = seen is not None and len(stream.tokens) > seen
            return more or stream.finish_reason is not None

        with self._condition:
            self._condition.wait_for(ready)

    def close(self) -> None:
        """End all streams and the thread."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        if self._thread.ident is not None:
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
            self._announce(self._advance())
        self._announce(self._batch.fail(ElmanError("the server is shutting down")))

    def _advance(self) -> Sequence[Stream]:
        try:
            self.check_unchanged()
            return self._batch.advance()
        except ElmanError as error:
            return self._batch.fail(error)
        except Exception as error:  # a bug ends these streams, but not the engine
            log.exception("the model failed")
            return self._batch.fail(ElmanError(f"the model failed: {error}"))

    def check_unchanged(self) -> None:
        """Raise `Unavailable` if the file of a mapped model was changed while it was in use."""
        try:
            for check in self.checks:
                check()
        except ElmanError as error:
            if not self._told:
                log.error("%s", error)
            self._told = True
            raise Unavailable(error.message, error.hint) from error

    def _announce(self, streams: Sequence[Stream]) -> None:
        if not streams:
            return
        with self._condition:
            self._condition.notify_all()
        if self._notify is not None:
            self._notify(streams)


def _checks(model: object) -> Iterator[Callable[[], None]]:
    """`check_unchanged` of a model that maps a file, or of those in a mixture."""
    if hasattr(model, "check_unchanged"):
        yield model.check_unchanged
    for part in getattr(model, "models", ()):
        yield from _checks(part)
