"""The front's view of its workers, without processes."""

from __future__ import annotations

import asyncio
import logging
import shutil
from typing import Any, NoReturn

import pytest

from elman.serve.serving import Serving
from elman.serve.workers.fleet import Fleet, Worker


def test_a_worker_that_did_not_start_in_time_is_forgotten() -> None:
    """Waiting for it was cancelled, which must not keep its place or stop a request."""

    async def run() -> None:
        fleet = Fleet(Serving(models=[]), 1)
        up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        worker = fleet._workers[7] = fleet.places[0] = Worker(0, "", up)
        up.cancel()
        assert not worker.is_ready
        assert fleet.ready() == {}
        fleet._died(7, worker)
        assert worker.gone.is_set()
        assert fleet._workers == {}
        shutil.rmtree(fleet._folder)

    asyncio.run(run())


def test_a_restart_without_memory_for_a_process_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: Any, **options: Any) -> NoReturn:
        raise OSError(12, "Cannot allocate memory")

    async def run() -> None:
        fleet = Fleet(Serving(models=[]), 1)
        await fleet.restart()
        shutil.rmtree(fleet._folder)

    monkeypatch.setattr("subprocess.Popen", fail)
    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert "the workers were not replaced: [Errno 12] Cannot allocate memory" in caplog.text
