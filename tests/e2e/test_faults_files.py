"""A part of the campaign `elman bench faults`: damaged files, flips, too little memory, clients."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from elman.bench.faults.command import cases
from elman.bench.faults.outcomes import Plan, summarise

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and reads /proc")


@pytest.mark.parametrize("target", ["files", "flips", "memory", "server"])
def test_nothing_goes_wrong(target: str, plan: Plan) -> None:
    summary = summarise(target, cases(replace(plan, target=target)))
    assert summary.cases > 10
    assert not [f"{case.name}: {case.result}: {case.detail}" for case in summary.bad]
