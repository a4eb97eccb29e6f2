"""What routes share."""

from __future__ import annotations

import asyncio

import pytest

from elman.serve.http import context
from elman.serve.http.context import Context
from elman.serve.http.open_requests import Waker
from elman.serve.limits import Limits
from elman.serve.memory import LARGE_BYTES


@pytest.mark.parametrize(("interval", "expected"), [(0.0, 3), (1e6, 1)])
def test_memory_is_not_returned_after_every_large_request(
    monkeypatch: pytest.MonkeyPatch, interval: float, expected: int
) -> None:
    returned = []
    monkeypatch.setattr(context, "return_free_memory", lambda: returned.append(1))
    monkeypatch.setattr(context, "TRIM_SECONDS", 0.0)
    monkeypatch.setattr(context, "TRIM_INTERVAL", interval)

    async def requests() -> None:
        shared = Context({}, Limits(), Waker())
        for _ in range(3):
            share = shared.memory.open()
            share.take(LARGE_BYTES)
            share.close()
            await asyncio.sleep(0.01)
        await asyncio.get_running_loop().shutdown_default_executor()
        shared.close()

    asyncio.run(requests())
    assert len(returned) == expected
