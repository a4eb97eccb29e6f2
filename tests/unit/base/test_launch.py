"""The variables of torchrun."""

from __future__ import annotations

import os

import pytest

from elman.base.launch import Launch, launch

SET = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "here", "MASTER_PORT": "1"}


def test_without_the_variables_a_process_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SET:
        monkeypatch.delenv(name, raising=False)
    assert launch() == Launch()
    monkeypatch.setenv("RANK", "3")  # other programs set one of them
    assert launch() == Launch()


def test_numbers_and_the_job_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (SET | {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "night")
    assert launch() == Launch(rank=3, size=8, local_rank=1, local_size=2, job="night")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")  # of a torchrun without --rdzv-id
    job = launch().job
    assert job is not None
    assert str(os.getppid()) in job
    assert launch().job == job
