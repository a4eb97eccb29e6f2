"""What a case of the campaign can end with, and the summary of many."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from elman.bench.faults.forking import Ended, Forks

Item = TypeVar("Item")
Result = Literal[
    "sentence",
    "same output",
    "legal",
    "not reached",
    "skipped",
    "traceback",
    "hang",
    "crash",
    "unnoticed",
    "over memory",
    "difference",
    "leftover",
]
COLUMNS: dict[Result, str] = {
    "sentence": "sentences",
    "same output": "same_output",
    "legal": "legal",
    "not reached": "not_reached",
    "skipped": "skipped",
    "traceback": "tracebacks",
    "hang": "hangs",
    "crash": "crashes",
    "unnoticed": "unnoticed",
    "over memory": "over_memory",
    "difference": "differences",
    "leftover": "leftovers",
}
"""The results, and their names in the summary."""
GOOD: tuple[Result, ...] = ("sentence", "same output", "legal", "not reached", "skipped")
MOST_NOT_REACHED = 0.1
"""Of the cases of a target: the part whose fault may come at no operation."""


@dataclass(frozen=True)
class Case:
    """One case of a target, and how it ended."""

    target: str
    name: str
    """What was done; `--only NAME` repeats it."""
    result: Result
    detail: str = ""
    """What was found instead of what should be."""

    @property
    def is_good(self) -> bool:
        return self.result in GOOD


@dataclass(frozen=True)
class Plan:
    """What the targets of a campaign need."""

    folder: Path
    """For temporary files; each case has a folder of its own in it."""
    forks: Forks
    target: str
    """The name in the table of targets."""
    seed: int = 1
    quick: bool = False
    """Only a part of the cases, for the test suite."""
    minutes: float | None = None
    """Start no case of a target after this many minutes; None: the target's own length."""
    only: str = ""
    """Run only the cases whose names contain this."""
    began: float = field(default_factory=time.monotonic, init=False)

    @property
    def is_over(self) -> bool:
        """Whether no further case may be started; those that are left are skipped."""
        return self.minutes is not None and time.monotonic() > self.began + 60 * self.minutes

    def random(self, name: object) -> random.Random:
        """Random numbers for one use, which do not depend on the other ones."""
        return random.Random(f"{self.seed} {name}")

    def run(self, *arguments: object, **how: Any) -> Ended:
        """Run `elman ARGUMENTS` in a fork; `how` are fields of `forking.Job`, at least `folder`."""
        return self.forks.run(list(map(str, arguments)), **how)

    def each(
        self,
        work: Callable[[Item, Path], tuple[Result, str]],
        items: Iterable[Item],
        named: Callable[[Item], str] = str,
    ) -> Iterator[Case]:
        """Run `work(item, folder)` for all items, some at a time; yield cases in order.

        `work` returns a result and its detail. The new `folder` is removed afterwards.
        """

        def one(item: Item) -> Case:
            if self.is_over:
                return Case(self.target, named(item), "skipped")
            with self.place() as folder:
                return Case(self.target, named(item), *work(item, folder))

        wanted = [item for item in items if self.only in named(item)]
        with ThreadPoolExecutor(self.forks.number) as pool:
            waiting = [pool.submit(one, item) for item in wanted]
            try:
                for each in waiting:
                    yield each.result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    @contextmanager
    def place(self) -> Iterator[Path]:
        """A new folder, removed afterwards."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        try:
            yield folder
        finally:
            with suppress(OSError):
                shutil.rmtree(folder)


def judge(ended: Ended) -> tuple[Result | None, str]:
    """The result of a command and its detail; None if it succeeded: then compare its output."""
    said = ended.err.strip()
    last = "\n".join(said.splitlines()[-8:])
    if ended.timed_out:
        return "hang", f"no end after {ended.seconds:.0f} s; {last}"
    if ended.code < 0:
        return "crash", f"signal {-ended.code}; {last}"
    if ended.over_memory:
        return "over memory", f"{ended.peak_bytes / 1e6:.0f} MB"
    if "Traceback (most recent call last)" in ended.err:
        return "traceback", last
    if ended.code == 0:
        return None, ""
    if ended.code in (1, 2) and any(line.startswith("error: ") for line in said.splitlines()):
        return "sentence", last
    return "traceback", f"exit {ended.code} without a sentence; {last}"


@dataclass
class Summary:
    """Counts of a target's results."""

    target: str
    counts: Counter[Result] = field(default_factory=Counter)
    bad: list[Case] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, case: Case) -> None:
        self.counts[case.result] += 1
        if not case.is_good:
            self.bad.append(case)

    @property
    def cases(self) -> int:
        """Those that were run."""
        return self.counts.total() - self.counts["skipped"]

    def to_dict(self) -> dict[str, Any]:
        """The line of JSON."""
        counts = {column: self.counts[result] for result, column in COLUMNS.items()}
        return {"target": self.target, "cases": self.cases, **counts} | {
            "seconds": round(self.seconds, 1)
        }


def summarise(
    target: str, cases: Iterable[Case], seen: Callable[[Summary, Case], None] | None = None
) -> Summary:
    """Run all cases of a target; call `seen` with the summary so far and each case."""
    summary, began = Summary(target), time.monotonic()
    for case in cases:
        summary.add(case)
        summary.seconds = time.monotonic() - began
        if seen is not None:
            seen(summary, case)
    summary.seconds = time.monotonic() - began
    if (number := summary.counts["not reached"]) > MOST_NOT_REACHED * summary.cases + 1:
        many = Case(target, "all", "not reached", f"{number} of {summary.cases} cases")
        summary.bad.append(many)
        if seen is not None:
            seen(summary, many)
    return summary
