"""`elman bench faults`: the command, and the table of targets."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elman.base.cache import cache_folder
from elman.base.counting import counted
from elman.base.errors import ElmanError, UsageError, nearest
from elman.base.tables import imported
from elman.bench.measuring import work_folder
from elman.tasks import TASKS
from elman.terminal.console import result_json, talk
from elman.terminal.options import argument, option
from elman.terminal.progress import Display, display

if TYPE_CHECKING:
    from elman.bench.faults.outcomes import Case, Plan, Summary

MOST_SHOWN = 20
"""Bad cases of a target that are printed."""

TARGETS: Mapping[str, str] = {
    **{f"crash-{task}": "elman.bench.faults.crash_points:crash_points" for task in TASKS},
    **{f"power-{task}": "elman.bench.faults.power_cuts:power_cuts" for task in TASKS},
    "files": "elman.bench.faults.damaged_files:damaged_files",
    "flips": "elman.bench.faults.flips:flips",
    "memory": "elman.bench.faults.memory:memory",
    "server": "elman.bench.faults.server:server",
    "soak": "elman.bench.faults.soak:soak",
}
"""Functions (plan) -> Iterator[Case]; `plan.target` is the name in this table."""


def chosen(names: Sequence[str]) -> list[str]:
    """The targets with these names; `crash` stands for all that begin with `crash-`."""
    found: dict[str, None] = {}
    for name in names:
        matching = [target for target in TARGETS if f"{target}-".startswith(f"{name}-")]
        if not matching:
            raise UsageError(f"there is no target called '{name}'", nearest(name, TARGETS))
        found |= dict.fromkeys(matching)
    return list(found or TARGETS)


def cases(plan: Plan) -> Iterator[Case]:
    """Run the cases of `plan.target`."""
    function: Any = imported(TARGETS[plan.target])
    for case in function(plan):
        if plan.only in case.name:
            yield case


def faults(
    targets: Annotated[
        list[str] | None,
        argument("[TARGET...]", "What to test, such as crash or crash-lm. [default: everything]"),
    ] = None,
    seed: Annotated[int, option("N", "Random seed.")] = 1,
    minutes: Annotated[
        float | None, option("M", "Time limit per target in minutes. [default: its own length]")
    ] = None,
    quick: Annotated[bool, option(None, "Run a small part of the cases.", "--quick")] = False,
    only: Annotated[str, option("TEXT", "Only cases whose names contain TEXT.")] = "",
    jobs: Annotated[int, option("N", "Cases at a time.", min=1)] = 2,
    folder: Annotated[
        Path | None, option("DIR", "Work in this folder. [default: a temporary one]")
    ] = None,
) -> None:
    """Crash, cut and damage runs, and count what goes wrong.

    A line of JSON for each target. Good ends of a case are a sentence, the same output, and other
    output where that is legal; all others are printed on stderr, and the exit status is 1.
    """
    names = chosen(targets or ())
    if sys.platform != "linux":
        raise UsageError("the campaign needs Linux", "run it in a container")
    from elman.bench.faults.forking import Forks
    from elman.bench.faults.outcomes import Plan, summarise

    num_bad = num_cases = 0
    with work_folder(folder) as at:
        at = at.resolve()
        # The cases have caches of their own, but compile nothing again.
        machine_code = os.environ.get("NUMBA_CACHE_DIR") or str(cache_folder() / "numba")
        with Forks(jobs, {"NUMBA_CACHE_DIR": machine_code}) as forks:
            for name in names:
                plan = Plan(at, forks, name, seed, quick, minutes, only)
                shown = display()
                try:
                    summary = summarise(name, cases(plan), partial(_show, shown))
                finally:
                    shown.close()
                result_json(summary.to_dict())
                sys.stdout.flush()
                num_bad += len(summary.bad)
                num_cases += summary.cases
                if not summary.cases and not only:
                    raise ElmanError(f"no case of {name} was run", "give it more --minutes")
    if not num_cases:
        raise UsageError(f"no case that was run has '{only}' in its name", "see the guide")
    if num_bad:
        talk(f"{counted(num_bad, 'case')} went wrong")
        raise typer.Exit(1)


def _show(shown: Display, summary: Summary, case: Case) -> None:
    if (not case.is_good or case in summary.bad) and len(summary.bad) <= MOST_SHOWN:
        shown.say(f"{case.target}, {case.name}: {case.result}: {case.detail}")
    line = f"{summary.target}: {counted(summary.cases, 'case')}, {len(summary.bad)} bad"
    shown.update(line, None)
