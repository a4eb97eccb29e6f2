from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from elman.base import threads
from elman.runs import machine as machines
from elman.runs.machine import machine


@pytest.fixture(autouse=True)
def _four_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    monkeypatch.setattr(machines, "usable_cores", lambda: 4)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    threads.forget_threads()
    yield
    threads.forget_threads()
    machines._before = None
    torch.set_num_threads(before)


def settled(monkeypatch: pytest.MonkeyPatch, free: float | None) -> int:
    monkeypatch.setattr(threads, "free_cores", lambda: free)
    machine("cpu")
    return torch.get_num_threads()


def rates(monkeypatch: pytest.MonkeyPatch, by_threads: dict[int, float]) -> None:
    def rate(rounds: int) -> float:
        return by_threads[torch.get_num_threads()]

    monkeypatch.setattr(machines, "_lstm_tokens_per_second", rate)


def test_a_number_that_is_asked_for_is_used_in_one_command(monkeypatch: pytest.MonkeyPatch) -> None:
    threads.set_threads(3)
    assert settled(monkeypatch, None) == 3
    assert machine("cpu").description == "3 cores"
    threads.forget_threads()
    assert settled(monkeypatch, None) == 4


def test_a_quiet_machine_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    rates(monkeypatch, {})
    assert settled(monkeypatch, 3.8) == 4


def test_a_program_that_is_no_command_decides_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    rates(monkeypatch, {})
    assert settled(monkeypatch, None) == 4


@pytest.mark.parametrize(
    ("rate", "chosen"),
    [
        ({1: 100.0, 2: 90.0, 4: 80.0}, 1),
        ({1: 100.0, 2: 120.0, 4: 80.0}, 2),
        ({1: 100.0, 2: 100.0, 4: 95.0}, 4),
        ({1: 50.0, 2: 80.0, 4: 90.0}, 4),
    ],
)
def test_on_a_busy_machine_the_faster_number_is_chosen(
    monkeypatch: pytest.MonkeyPatch, rate: dict[int, float], chosen: int
) -> None:
    rates(monkeypatch, rate)
    assert settled(monkeypatch, 1.2) == chosen


def test_a_limit_of_the_container_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "usable_cores", lambda: 2)
    assert settled(monkeypatch, 4.0) == 2


def test_openmps_variable_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    rates(monkeypatch, {})
    assert settled(monkeypatch, 1.0) == 4
