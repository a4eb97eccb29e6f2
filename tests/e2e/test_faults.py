"""A part of every target of the campaign `elman bench faults`, but the soak."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from elman.bench.faults.command import cases
from elman.bench.faults.crash_points import crash, trials
from elman.bench.faults.operations import Operation
from elman.bench.faults.outcomes import Plan, judge, summarise

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and reads /proc")


CRASHES = ("crash-lm", "crash-ngram", "power-lm")
LONG = pytest.param("power-ngram", marks=pytest.mark.slow)  # its stages have over 1,400 cuts


@pytest.mark.parametrize("target", [*CRASHES, LONG, "files", "flips", "memory", "server"])
def test_nothing_goes_wrong(target: str, plan: Plan) -> None:
    summary = summarise(target, cases(replace(plan, target=target)))
    assert summary.cases > 5
    assert not [f"{case.name}: {case.result}: {case.detail}" for case in summary.bad]


def test_what_goes_wrong_is_found(plan: Plan) -> None:
    """A campaign that finds nothing must be able to find something."""
    with trials(plan) as (trial,), plan.place() as folder:
        last = trial.operations[-1]
        assert crash(trial, (last, "kill"), folder / "a")[0] == "same output"
        (folder / "b" / "out").mkdir(parents=True)
        (folder / "b" / "out" / ".elman-left").mkdir()  # no folder of Elman's: nothing sweeps it
        result, detail = crash(trial, (last, "kill"), folder / "b")
        assert (result, detail) == ("leftover", "out/.elman-left")
        trial.reference["out/config.json"] = "another"
        result, detail = crash(trial, (last, "kill"), folder / "c")
        assert (result, detail) == ("difference", "missing or different: out/config.json")


def test_ends_of_a_command(plan: Plan) -> None:
    with plan.place() as folder:
        assert judge(plan.run("--version", folder=folder)) == (None, "")
        assert judge(plan.run("info", "nowhere", folder=folder))[0] == "sentence"
        for prepare, expected in (("time:sleep", "traceback"), ("os:abort", "crash")):
            ended = plan.run("--version", folder=folder, prepare=prepare)  # without an argument
            assert judge(ended)[0] == expected
        ended = plan.run("serve", folder=folder, seconds=0.0)
        assert judge(ended)[0] == "hang"


def test_commands_follow_one_that_used_threads(plan: Plan) -> None:
    with plan.place() as folder:
        (folder / "text").write_text("a b c d\nb c a\n" * 500)
        plan.forks.warm_up(
            ["train", "ngram", str(folder / "text"), "--out", "out", "--threads", "2"], folder
        )
        assert judge(plan.run("--version", folder=folder)) == (None, "")


def test_an_operation_that_goes_wrong(plan: Plan) -> None:
    """Each fault does what it says, at the operation that it is meant for."""
    with trials(plan) as (trial,):
        card = next(
            operation
            for operation in trial.operations
            if operation.name == "write" and operation.path.endswith("card.md")
        )
        for fault, code, size in (
            ("kill", -9, 0),
            ("kill partway", -9, len(card.data) // 2),
            ("ENOSPC", 1, None),
            ("EIO", 1, None),
        ):
            with plan.place() as folder:
                ended = trial.train(folder, fault=fault, at=card.number)
                assert ended.code == code
                sizes = [path.stat().st_size for path in folder.glob("out/.elman-*/card.md")]
                assert sizes == ([] if size is None else [size])
                assert ("the disk is full" in ended.err) == (fault == "ENOSPC")


def test_faults_of_an_operation() -> None:
    assert list(Operation(1, "read", "a").faults()) == ["kill", "EIO"]
    assert list(Operation(1, "unlink", "a").faults()) == ["kill", "EIO"]
    assert list(Operation(1, "write", "a", data=b"ab").faults()) == [
        *("kill", "kill partway", "ENOSPC", "EIO")
    ]
