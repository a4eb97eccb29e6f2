"""The parts of training in several processes that need only one; others are in test_torchrun."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elman.base.errors import ElmanError, UsageError
from elman.base.launch import Launch
from elman.bench.ranks import efficiency, traffic
from elman.train import ranks as module
from elman.train.interrupt import Interrupt
from elman.train.ranks import ALONE, BEATS, Ranks, device_of, seed_of


@given(st.integers(0, 40), st.integers(1, 9))
def test_every_row_belongs_to_one_process(num_rows: int, size: int) -> None:
    shares = [Ranks(rank, size).rows(num_rows) for rank in range(size)]
    rows = [row for share in shares for row in range(num_rows)[share]]
    assert rows == list(range(num_rows))
    lengths = [share.stop - share.start for share in shares]
    assert max(lengths) - min(lengths) <= 1


def test_one_process_asks_nobody() -> None:
    assert ALONE.is_leader
    assert ALONE.from_leader(lambda: 5) == 5
    assert ALONE.gather(5) == [5]
    assert ALONE.prepare(lambda: (5, {"text": "a"})) == 5


def test_seeds_differ_between_processes() -> None:
    assert seed_of(7, 0) == 7
    assert (
        len({seed_of(seed, rank, step) for seed in (1, 2) for rank in (0, 1, 2) for step in (0, 9)})
        == 10
    )


def _sum_of(monkeypatch: pytest.MonkeyPatch, others: Callable[[torch.Tensor], None]) -> None:
    monkeypatch.setattr(torch.distributed, "all_reduce", others)


def test_gradients_of_all_processes_are_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = ((2, 3), (4,), (1,), (2,))
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
    parameters[3].requires_grad = False  # a frozen layer
    parameters[0].grad = torch.ones(2, 3)

    def others(flat: torch.Tensor) -> None:
        # The other process has gradients of the first two, the third is nowhere.
        assert flat.tolist() == [*[1] * 6, *[0] * 5, 1, 0, 0, 2.5]
        flat += torch.tensor([*[3.0] * 6, *[4.0] * 4, 0, 1, 1, 0, 1.5])

    _sum_of(monkeypatch, others)
    ranks = Ranks(0, 2)
    assert float(ranks.sum_gradients(parameters, torch.tensor(2.5))) == 4.0
    assert ranks.num_updates == 1
    first, second = (p.grad for p in parameters[:2])
    assert first is not None
    assert first.tolist() == [[4.0] * 3] * 2
    assert second is not None
    assert second.tolist() == [4.0] * 4
    assert [p.grad for p in parameters[2:]] == [None, None]


@pytest.mark.parametrize("rank", [0, 1])
def test_what_cannot_be_captured_is_no_lost_connection(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.distributed, "all_reduce", fail, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        Ranks(rank, 2).sum_gradients([], torch.zeros(()))


def test_a_lost_connection_is_said_by_the_leader_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(flat: torch.Tensor) -> None:
        raise RuntimeError("Connection closed by peer")

    _sum_of(monkeypatch, closed)
    with pytest.raises(ElmanError, match="another of the 3 processes has ended"):
        Ranks(0, 3).sum_gradients([], torch.tensor(0.0))
    with pytest.raises(SystemExit):
        Ranks(1, 3).sum_gradients([], torch.tensor(0.0))


def test_processes_must_be_set_up_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(0, 2)
    theirs: list[Any] = [("b", {"torch": "2.10"}, None)]
    monkeypatch.setattr(ranks, "gather", lambda own: [own, *theirs])
    with pytest.raises(ElmanError, match="process 1 on b has another torch than process 0"):
        ranks.prepare(lambda: (5, {"torch": "2.11"}))
    theirs[0] = ("b", {}, ("the file is gone", "put it back"))
    with pytest.raises(ElmanError, match="process 1 on b: the file is gone"):
        ranks.prepare(lambda: (5, {"torch": "2.11"}))


def test_each_process_has_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Launch(rank=5, size=8, local_rank=1, local_size=4)
    assert device_of(here, "cpu") == "cpu"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert device_of(here, "auto") == "cpu"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert device_of(here, "auto") == device_of(here, "cuda") == "cuda:1"
    with pytest.raises(UsageError, match="cannot share cuda:0"):
        device_of(here, "cuda:0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UsageError, match=r"4 processes on .*, which has 2 GPUs") as caught:
        device_of(here, "auto")
    assert "--nproc-per-node 2" in caught.value.hint


class Store(dict[str, bytes]):
    """A store that only this process uses."""

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self[key] for key in keys]


class Ended(Exception):
    pass


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, Store]]:
    def watch(**changes: Any) -> tuple[Any, Store]:
        store = Store({"beat/0": b"0 0 0", "beat/1": b"0 0 0"})
        return module._Watch(Ranks(**{"rank": 0, "size": 2} | changes), store), store

    def end(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(module.os, "_exit", end)
    return watch


def beat(watch: Any, store: Store, key: str, updates: int, number: int) -> None:
    store.set(key, f"{number} {updates} 0")
    watch._beat(number)


def test_a_process_that_is_silent_ends_the_others(watched: Any, capfd: Any) -> None:
    watch, store = watched()
    for number in range(BEATS + 3):  # not while it answers
        beat(watch, store, "beat/1", 0, number)
    for number in range(BEATS - 1):
        watch._beat(number)
    with pytest.raises(Ended):
        watch._beat(99)
    assert "error: process 1 has been silent for 40 s" in capfd.readouterr().err


@pytest.mark.parametrize(("rank", "other"), [(0, "beat/1"), (1, "beat/0")])
def test_a_process_that_hangs_in_an_update_ends_the_others(
    watched: Any, capfd: Any, rank: int, other: str
) -> None:
    watch, store = watched(rank=rank, num_updates=1)
    for number in range(2 * BEATS):  # the first update may compile
        beat(watch, store, other, 0, number)
    watch.ranks.num_updates = 7
    for number in range(2 * BEATS):  # it is behind, but moves
        beat(watch, store, other, number % 7, number)
    for number in range(2 * BEATS):  # both wait, as for a validation
        beat(watch, store, other, 7, number)
    watch.ranks.num_updates = 8
    for number in range(BEATS - 1):
        beat(watch, store, other, 7, number)
    with pytest.raises(Ended):
        beat(watch, store, other, 7, BEATS)
    assert "is alive, but has not begun update 8" in capfd.readouterr().err


def test_a_process_that_is_told_to_stop_tells_the_leader(watched: Any) -> None:
    watch, store = watched(interrupt=Interrupt())
    watch._beat(1)
    assert watch.ranks.interrupt.requested is None
    store.set("beat/1", "2 0 1")
    watch._beat(2)
    assert watch.ranks.interrupt.requested is not None


def test_processes_that_start_again_ignore_earlier_ones() -> None:
    distributed: Any = torch.distributed
    store, names = distributed.HashStore(), []
    for _ in range(2):
        launches = [Launch(rank=rank, size=3) for rank in range(3)]
        with ThreadPoolExecutor(3) as pool:
            found = set(pool.map(lambda here: module._meet(store, here), launches))
        assert len(found) == 1
        names += found
    assert names[0] != names[1]


def test_a_process_that_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "JOINING_SECONDS", 0.1)
    distributed: Any = torch.distributed
    store = distributed.HashStore()
    with pytest.raises(ElmanError, match="processes 1, 2 of 3 did not join"):
        module._meet(store, Launch(rank=0, size=3))
    with pytest.raises(ElmanError, match="process 0 of 3 did not join"):
        module._meet(store, Launch(rank=1, size=3))


def test_efficiency_follows_from_bytes_and_bandwidth() -> None:
    assert traffic(100.0, 2) == 100.0
    assert traffic(100.0, 4) == 150.0
    assert efficiency(1e9, 1.0, 1e9, 2) == pytest.approx(0.5)
