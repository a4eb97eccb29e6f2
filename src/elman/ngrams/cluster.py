"""Run the stages of counting on a Dask cluster: one that is there, or processes of this machine.

    local:4              four processes, started and ended here
    tcp://host:8786      a scheduler; its workers must see the run folder under the same path, or
                         an address through which files pass (`exchange`)

A worker that dies costs the stage that it was at: Dask gives it to another.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from elman.base.errors import ElmanError, UsageError
from elman.ngrams.exchange import Exchange, count_there, merge_there
from elman.ngrams.stages import PLAN_FILE, Stages

MEMORY = 1 << 30
"""Bytes that a stage takes on a worker, unless the user says."""
SHARES = 4
"""Stages for each worker, so that one that is slow or lost delays the others little."""


class Cluster:
    """A connection to workers."""

    def __init__(self, client: Any) -> None:
        self.client = client

    @property
    def num_workers(self) -> int:
        """The number of stages that can run at the same time."""
        workers = self.client.scheduler_info(n_workers=-1)["workers"]
        return sum(worker["nthreads"] for worker in workers.values())

    @property
    def page(self) -> str:
        """The address of Dask's own page."""
        return str(self.client.dashboard_link)

    def check_sees(self, path: Path) -> None:
        """Check that all workers see a file."""
        found = self.client.run(_is_file, str(path.absolute()))
        blind = sorted(worker for worker, sees in found.items() if not sees)
        if blind:
            raise UsageError(
                f"{len(blind)} of {len(found)} workers do not see {path.parent}: {blind[0]}",
                "choose an --out in a folder that all machines share, under the same path",
            )

    def work(self, stages: Stages) -> Iterator[str]:
        """Count and merge what is left; yield what was done."""
        folder = str(stages.folder.absolute())
        yield from self._run(_count, folder, stages.shards_left(), "counted", "shards")
        yield from self._run(_merge, folder, stages.ranges_left(), "merged", "ranges")

    def work_through(self, exchange: Exchange, stages: Stages) -> Iterator[str]:
        """As `work`, with workers that share no folder; the merged ranges are fetched."""
        if not stages.ranges_left():
            exchange.remove()  # a run that was killed after fetching them leaves it
            return
        exchange.share(stages)
        found = self.client.run(_reads, exchange.address)
        if blind := sorted(worker for worker, reads in found.items() if not reads):
            raise UsageError(
                f"{len(blind)} of {len(found)} workers do not find {exchange.address}: {blind[0]}",
                "name an address that every process can read, which memory:// is not",
            )
        if left := exchange.left("merge", stages.num_ranges):
            shards = exchange.left("count", stages.num_shards)
            yield from self._run(count_there, exchange.address, shards, "counted", "shards")
            yield from self._run(merge_there, exchange.address, left, "merged", "ranges")
        exchange.get_ranges(stages)
        exchange.remove()

    def one(self, function: Callable[..., None], *arguments: Any) -> None:
        """Run one stage on one worker."""
        for _ in self._results([self._submit(function, *arguments)]):
            pass

    def _run(
        self,
        function: Callable[[str, int], None],
        place: str,
        numbers: list[int],
        done: str,
        what: str,
    ) -> Iterator[str]:
        waiting = [self._submit(function, place, number) for number in numbers]
        for i, _ in enumerate(self._results(waiting), start=1):
            if i * 4 // len(waiting) > (i - 1) * 4 // len(waiting):  # at each quarter
                yield f"{done} {i} of {len(waiting)} {what}"

    def _submit(self, function: Callable[..., None], *arguments: Any) -> Any:
        # The key is on Dask's page. It is new each time: a stage has an effect, not a result.
        key = f"{function.__name__.strip('_')}-{arguments[-1]}-{secrets.token_hex(4)}"
        return self.client.submit(function, *arguments, key=key, retries=2)

    def _results(self, waiting: list[Any]) -> Iterator[None]:
        distributed = _distributed()
        for future in distributed.as_completed(waiting):
            try:
                future.result()
            except distributed.scheduler.KilledWorker as error:
                raise ElmanError(
                    f"a stage was given up, since its workers died: {error.task}",
                    "give them more memory, or smaller stages with --memory; then add --resume",
                ) from error
            yield None


@contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """Connect to a scheduler, or start local workers; end these on leaving."""
    distributed = _distributed()
    if found := re.fullmatch(r"local:(\d+)", address):
        # Without a limit of Dask's own: a stage keeps to its memory.
        with (
            distributed.LocalCluster(
                n_workers=max(1, int(found[1])), threads_per_worker=1, memory_limit=0,
                dashboard_address=":0",
            ) as local,
            distributed.Client(local) as client,
        ):  # fmt: skip
            yield Cluster(client)
        return
    try:
        client = distributed.Client(address, timeout="10s")
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            f"there is no Dask scheduler at {address}",
            "start one with: dask scheduler; or write local:4 for processes of this machine",
        ) from error
    with client:
        cluster = Cluster(client)
        if not cluster.num_workers:
            raise UsageError(
                f"the scheduler at {address} has no workers", f"start some: dask worker {address}"
            )
        yield cluster


def _distributed() -> Any:
    try:
        return import_module("distributed")
    except ImportError as error:
        raise ElmanError(
            "--cluster needs the distributed package", "pip install 'elman[cluster]'"
        ) from error


def _is_file(path: str) -> bool:
    return Path(path).is_file()


def _reads(address: str) -> bool:
    try:
        return Exchange(address).exists(PLAN_FILE)
    except ElmanError:
        return False


def _count(folder: str, shard: int) -> None:
    Stages(Path(folder)).count(shard, num_threads=1)


def _merge(folder: str, number: int) -> None:
    Stages(Path(folder)).merge(number)
