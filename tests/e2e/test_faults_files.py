"""A part of the campaign `elman bench faults`: damaged files, flips, too little memory, clients."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from elman.base.cache import cache_folder
from elman.bench.faults.command import cases
from elman.bench.faults.forking import Forks
from elman.bench.faults.outcomes import Plan, summarise

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and reads /proc")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plan]:
    code = os.environ.get("NUMBA_CACHE_DIR") or str(cache_folder() / "numba")
    with Forks(1, {"NUMBA_CACHE_DIR": code}) as forks:
        yield Plan(tmp_path_factory.mktemp("faults"), forks, "files", quick=True)


@pytest.mark.parametrize("target", ["files", "flips", "memory", "server"])
def test_nothing_goes_wrong(target: str, plan: Plan) -> None:
    summary = summarise(target, cases(Plan(plan.folder, plan.forks, target, quick=True)))
    assert summary.cases > 10
    assert not [f"{case.name}: {case.result}: {case.detail}" for case in summary.bad]
