"""When jobs are woken, without a clock: what is not urgent would wait for a quarter of an hour."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from elman.decode.options import DecodeOptions
from elman.serve.http import jobs
from elman.serve.http.jobs import Job, Waker
from elman.serve.streams import Request, Stream


class Told:
    """An engine that makes nothing and remembers what it was told."""

    def __init__(self) -> None:
        self.cancelled: list[Stream] = []

    def submit(self, *requests: Request) -> list[Stream]:
        return [Stream(request) for request in requests]

    def cancel(self, streams: list[Stream]) -> None:
        self.cancelled += streams


async def turns() -> None:
    """Let everything happen that is due."""
    for _ in range(5):
        await asyncio.sleep(0)


def run(test: Callable[[Waker, Any], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "INTERVAL", 1000.0)

    async def everything() -> None:
        waker = Waker()
        waker.start()
        waker._last = asyncio.get_running_loop().time()
        await test(waker, Told())

    asyncio.run(everything())


def job_of(waker: Waker, engine: Any, until_finished: bool = False) -> tuple[Job, Stream]:
    request = Request(prompt=(), config=DecodeOptions(max_tokens=9))
    job = Job(waker, engine, [request], seconds=1000.0, until_finished=until_finished)
    return job, job.streams[0]


def test_the_first_token_and_the_end_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(waker: Waker, engine: Any) -> None:
        job, stream = job_of(waker, engine)
        other, slow = job_of(waker, engine)
        slow.tokens += [1, 2]
        stream.tokens.append(1)
        waker([stream, slow])
        await turns()
        assert job.news.is_set()
        assert not other.news.is_set()
        await job.wait()
        stream.tokens.append(2)
        waker([stream, slow])
        await turns()
        assert not job.news.is_set()
        assert not other.news.is_set()
        stream.finish_reason = "length"
        waker([stream, slow])
        await turns()
        assert job.news.is_set()
        assert not other.news.is_set()
        job.close()
        other.close()
        assert engine.cancelled == [slow]

    run(test, monkeypatch)


def test_what_came_in_between_is_told_together(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(waker: Waker, engine: Any) -> None:
        both = [job_of(waker, engine), job_of(waker, engine)]
        for _, stream in both:
            stream.tokens += [1, 2]
            waker([stream])
        await turns()
        assert not any(job.news.is_set() for job, _ in both)
        waker._wake()  # as the loop does when the time has come
        assert all(job.news.is_set() for job, _ in both)
        for job, _ in both:
            job.close()

    run(test, monkeypatch)


def test_who_waits_for_the_end_is_not_woken_before(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(waker: Waker, engine: Any) -> None:
        job, stream = job_of(waker, engine, until_finished=True)
        stream.tokens.append(1)
        waker([stream])
        await turns()
        assert not job.news.is_set()
        stream.finish_reason = "stop"
        waker([stream])
        await turns()
        assert job.news.is_set()
        job.close()

    run(test, monkeypatch)
