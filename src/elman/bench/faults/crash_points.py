"""SIGKILL, ENOSPC and EIO at each file operation of a run; then go on, and compare.

A run without faults gives the reference and the number of its operations inside `--out`, the
temporary directory and the cache. Then each operation goes wrong once in every way that it can.
Whatever is left, the user's next command must end with the reference's metrics, weights and files,
and nothing else: `--resume`, or the same command again for counting and where nothing was saved.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from elman.bench.faults.forking import Ended
from elman.bench.faults.operations import Operation, read_log
from elman.bench.faults.outcomes import Case, Plan, Result, judge
from elman.bench.faults.subjects import Subject, subjects
from elman.runs.origin import KEY_BYTES, KEY_FILE

QUICK = 16
"""Cases of a subject with --quick."""
WATCHED = ("out", "tmp", "cache")
TIMES = {
    *("seconds", "seconds_left", "tokens_per_second", "update_seconds", "began"),
    *("best_seconds", "validation_seconds", "saving_seconds", "validation_share", "saving_share"),
    *("evaluation_rate", "metrics_bytes", "out", "check", "arpa"),
}
"""Entries of metrics.jsonl and train states that depend on the clock or the folder, or on those
that do."""
CARD_TIMES = re.compile(rb"[\d.,]+ seconds \||<!-- check: \w+ -->")
PROBE = r"^tmp/[a-z0-9_]{8}$"
"""The file that Python's tempfile writes and removes to find a usable temporary directory."""
MADE_LAST = "out/model.arpa"
NOTHING = ("there is no run to resume", "there is no run folder")
"""Sentences of --resume where nothing was saved yet."""
OWNED = r"\.elman-[^/]+"
"""Temporary folders."""


Point = tuple[Operation, str]
"""An operation and a fault."""


@dataclass(frozen=True)
class Trial:
    """A subject with its data and its reference, to run in folders."""

    plan: Plan
    subject: Subject
    command: list[str]
    reference: dict[str, str] = field(default_factory=dict)
    """The fingerprint of each file, by path."""
    operations: list[Operation] = field(default_factory=list)

    def run(self, folder: Path, *arguments: str, **watch: Any) -> Ended:
        """Run a command in `folder`, with its own temporary directory and cache."""
        for name in ("tmp", "cache"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        # The same key gives the same signatures in all folders.
        (folder / "cache" / KEY_FILE).write_bytes(bytes(KEY_BYTES))
        environment = {"TMPDIR": str(folder / "tmp"), "ELMAN_CACHE": str(folder / "cache")}
        given = {
            "folders": [str(folder)],
            "log": str(folder / "log"),
            "constants": dict(self.subject.constants),
        }
        return self.plan.run(
            *arguments,
            folder=folder,
            environment=environment,
            prepare="elman.bench.faults.operations:watch",
            given=given | watch,
        )

    def train(self, folder: Path, **watch: Any) -> Ended:
        return self.run(folder, *self.command, "--out", "out", **watch)

    def go_on(self, folder: Path, *, allowed: str = "") -> tuple[Result, str]:
        """Do what a user does after a crash; compare what is there then with the reference."""
        ended = None
        if not self.subject.counts:
            ended = self.run(folder, "train", self.subject.task, "--out", "out", "--resume")
        if ended is None or (ended.code == 2 and any(words in ended.err for words in NOTHING)):
            ended = self.train(folder)
        result, detail = judge(ended)
        # A counted run may have been complete, but for the file that gets its name after it.
        if result == "sentence" and self.subject.counts and "already holds a run" in ended.err:
            missing = [path for path in self.reference if not (folder / path).exists()]
            for path in missing if missing == [MADE_LAST] else ():
                result, detail = judge(self.run(folder, "convert", "out", path))
            result = None if result == "sentence" else result
            # Its stages are removed after that; what a cut leaves of them does no harm.
            allowed = allowed or "^out/stages(/|$)"
        if result is not None:
            said = f"it cannot go on: {detail}"
            return ("difference" if result == "sentence" else result), said
        return self.compared(folder, allowed=allowed)

    def compared(self, folder: Path, *, allowed: str = "") -> tuple[Result, str]:
        """Compare the files in `folder` with the reference.

        What is missing in the cache does no harm. `allowed` is a pattern of paths that may be left.
        """
        found = fingerprints(folder)
        more = found.keys() - self.reference.keys()
        patterns = [pattern for pattern in (PROBE, allowed) if pattern]
        more = {path for path in more if not any(re.search(one, path) for one in patterns)}
        if more:
            return "leftover", ", ".join(sorted(more))
        differing = [
            path
            for path, value in self.reference.items()
            if found.get(path, value if path.startswith("cache/") else None) != value
        ]
        if differing:
            return "difference", "missing or different: " + ", ".join(differing)
        return "same output", ""


@contextmanager
def trials(plan: Plan) -> Iterator[list[Trial]]:
    """The trials of the task that the target's name ends in, without faults."""
    task = plan.target.partition("-")[2]
    with plan.place() as place:
        found = []
        for number, subject in enumerate(subjects(task)):
            data = place / f"data-{number}"
            data.mkdir()
            command = subject.command(subject.data(data))
            warm = place / f"warm-{number}"
            warm.mkdir()
            plan.forks.warm_up([*command, "--out", "out"], warm, subject.constants)
            trial = Trial(plan, subject, command)
            whole = place / f"whole-{number}"
            whole.mkdir()
            ended = trial.train(whole, keep_data=True)
            if ended.code != 0:
                raise RuntimeError(f"elman {' '.join(command)}: {ended.err}")
            trial.reference.update(fingerprints(whole))
            trial.operations.extend(read_log(whole / "log", whole))
            found.append(trial)
        yield found


def crash_points(plan: Plan) -> Iterator[Case]:
    """Let each operation of each run of a task go wrong in every way."""
    with trials(plan) as found:
        for number, trial in enumerate(found):
            points = [
                (operation, fault) for operation in trial.operations for fault in operation.faults()
            ]
            if plan.quick:
                points = plan.random("points").sample(points, min(QUICK, len(points)))
            yield from plan.each(partial(crash, trial), points, partial(point_name, number))


def point_name(number: int, point: Point) -> str:
    """The name of a case: `EIO at 12 of run 0: write out/card.md`."""
    operation, fault = point
    what = f"{operation.name} {re.sub(OWNED, '.elman-*', operation.path)}"
    return f"{fault} at {operation.number} of run {number}: {what}"


def crash(trial: Trial, point: Point, folder: Path) -> tuple[Result, str]:
    """Run with one fault, and go on."""
    operation, fault = point
    ended = trial.train(folder, fault=fault, at=operation.number)
    if fault.startswith("kill"):
        if ended.timed_out or ended.code not in (0, -9):
            return judge(ended)[0] or "difference", f"before it was killed: {ended.err[-500:]}"
        after = trial.go_on(folder)
        # Threads may have taken turns in another order, so that there was no such operation.
        return ("not reached", "") if ended.code == 0 and after[0] == "same output" else after
    result, detail = judge(ended)
    # Threads may have taken turns in another order than in the run without a fault.
    done = {one.number: one.name for one in read_log(folder / "log", folder)}
    removes = done.get(operation.number, operation.name) in ("unlink", "rmdir")
    if result is None:  # a folder that could not be removed is there until the next run
        return trial.compared(folder, allowed=OWNED if removes else "")
    if result != "sentence":
        return result, detail
    if ended.code != 1:
        return "difference", f"exit {ended.code}: {detail}"
    left = [path for path in fingerprints(folder) if re.search(OWNED, path)]
    if left and not removes:
        return "leftover", f"after the error: {', '.join(left)}"
    result, found = trial.go_on(folder)
    return ("sentence", detail) if result == "same output" else (result, f"{found}; {detail}")


def fingerprints(folder: Path) -> dict[str, str]:
    """A fingerprint of each file and folder below the watched folders, without times."""
    return {
        str(path.relative_to(folder)): fingerprint(path)
        for name in WATCHED
        for path in sorted((folder / name).rglob("*"))
    }


def fingerprint(path: Path) -> str:
    """What must be equal of a file: of cards, metrics and tensors, everything but times."""
    if path.is_dir():
        return "folder"
    data = path.read_bytes()
    if path.name == "card.md":
        data = CARD_TIMES.sub(b"", data)
    with suppress(ValueError):  # a damaged file is compared as it is
        if path.name == "metrics.jsonl":
            lines = (json.dumps(_without_times(json.loads(line))) for line in data.splitlines())
            data = "\n".join(lines).encode()
        elif path.suffix == ".safetensors":
            start = 8 + int.from_bytes(data[:8], "little")
            header = json.loads(data[8:start])
            metadata = _without_times(header.get("__metadata__", {}))
            if "elman" in metadata:
                metadata["elman"] = _without_times(json.loads(metadata["elman"]))
            header["__metadata__"] = metadata
            data = json.dumps(header).encode() + data[start:]
    return hashlib.sha256(data).hexdigest()


def _without_times(values: Any) -> Any:
    if isinstance(values, Mapping):
        return {key: _without_times(value) for key, value in values.items() if key not in TIMES}
    return values
