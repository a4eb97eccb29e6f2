"""When open requests are woken; with an interval of 1,000 s only urgent changes arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from elman.decode.options import DecodeOptions
from elman.serve.http import open_requests
from elman.serve.http.open_requests import OpenRequest, Waker
from elman.serve.streams import Continuation, Stream


class FakeEngine:
    """Generates nothing, and records cancelled streams."""

    def __init__(self) -> None:
        self.cancelled: list[Stream] = []

    def submit(self, *continuations: Continuation) -> list[Stream]:
        return [Stream(wanted) for wanted in continuations]

    def cancel(self, streams: list[Stream]) -> None:
        self.cancelled += streams


async def turns() -> None:
    """Let everything happen that is due."""
    for _ in range(5):
        await asyncio.sleep(0)


def run(test: Callable[[Waker, Any], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_requests, "INTERVAL", 1000.0)

    async def everything() -> None:
        waker = Waker()
        waker.start()
        waker._last = asyncio.get_running_loop().time()
        await test(waker, FakeEngine())

    asyncio.run(everything())


def open_one(waker: Waker, engine: Any, until_finished: bool = False) -> tuple[OpenRequest, Stream]:
    wanted = Continuation(prompt=(), config=DecodeOptions(max_tokens=9))
    opened = OpenRequest(waker, engine, [wanted], seconds=1000.0, until_finished=until_finished)
    return opened, opened.streams[0]


def test_the_first_token_and_the_end_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(waker: Waker, engine: Any) -> None:
        opened, stream = open_one(waker, engine)
        other, slow = open_one(waker, engine)
        slow.tokens += [1, 2]
        stream.tokens.append(1)
        waker([stream, slow])
        await turns()
        assert opened.changed.is_set()
        assert not other.changed.is_set()
        await opened.wait()
        stream.tokens.append(2)
        waker([stream, slow])
        await turns()
        assert not opened.changed.is_set()
        assert not other.changed.is_set()
        stream.finish_reason = "length"
        waker([stream, slow])
        await turns()
        assert opened.changed.is_set()
        assert not other.changed.is_set()
        opened.close()
        other.close()
        assert engine.cancelled == [slow]

    run(test, monkeypatch)


def test_what_came_in_between_is_told_together(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(waker: Waker, engine: Any) -> None:
        both = [open_one(waker, engine), open_one(waker, engine)]
        for _, stream in both:
            stream.tokens += [1, 2]
            waker([stream])
        await turns()
        assert not any(opened.changed.is_set() for opened, _ in both)
        waker._wake()  # as the loop does when the time has come
        assert all(opened.changed.is_set() for opened, _ in both)
        for opened, _ in both:
            opened.close()

    run(test, monkeypatch)


def test_who_waits_for_the_end_is_not_woken_before(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(waker: Waker, engine: Any) -> None:
        opened, stream = open_one(waker, engine, until_finished=True)
        stream.tokens.append(1)
        waker([stream])
        await turns()
        assert not opened.changed.is_set()
        stream.finish_reason = "stop"
        waker([stream])
        await turns()
        assert opened.changed.is_set()
        opened.close()

    run(test, monkeypatch)
