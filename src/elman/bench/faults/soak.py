"""Training, scoring and serving together for a long time, with random kills.

A trainer is killed with SIGKILL after a random time and its run is resumed, until it is finished:
its reports and weights must equal those of a run that nobody disturbed. Beside it a server answers
clients, is killed and started again, and a model is scored again and again: the answers must not
change, and the memory of the server must be the same late and early in its life. Every piece of
work is followed by a pause of the same length, so that the whole takes about half a core.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elman.bench.faults.damaged_files import leftovers, specimens
from elman.bench.faults.forking import ONE_THREAD
from elman.bench.faults.live_server import LiveServer
from elman.bench.faults.outcomes import Case, Plan, Result
from elman.bench.faults.specimens import TRAINED

MINUTES, QUICK_MINUTES = 60.0, 0.4
STEPS = 400
"""Updates of a run that is killed now and then."""
LONGEST = 12.0
"""Seconds after which a trainer is killed at the latest; it starts in about two."""
GROWN = 60.0
"""MB that a server may grow between the first and the last quarter of its life."""
LIFE = 20
"""Rounds that a server lives, about."""
PROMPT = {"prompt": "the student", "max_tokens": 20, "seed": 5, "logprobs": 1}
UNEQUAL = ("seconds", "seconds_left", "tokens_per_second", "resumed", "notes")
"""Fields of a report that depend on the clock."""


def soak(plan: Plan) -> Iterator[Case]:
    """The target `soak`."""
    place = specimens(plan)
    minutes = plan.minutes or (QUICK_MINUTES if plan.quick else MINUTES)
    with plan.place() as folder:
        yield from Soak(plan, place, folder).run(60 * minutes)


class Soak:
    """One soak, in a folder of its own."""

    def __init__(self, plan: Plan, place: Path, folder: Path) -> None:
        self.plan, self.place, self.folder = plan, place, folder
        self.random = plan.random("soak")
        self.number = 0
        self.memory: list[float] = []
        models = [f"{name}={place / name}" for name in ("words", "ngram")]
        self.server = LiveServer(models, folder / "server.log", ("--threads", "1"))

    def run(self, seconds: float) -> Iterator[Case]:
        sound = self.folder / "sound"
        self.train(sound, kill_after=None)
        reports, weights = reports_of(sound), digest(sound)
        scores = self.elman("score", self.place / "words", self.place / "some.txt")
        with self.server:
            answer = self.answer()
            trial = self.folder / "trial"
            kills = 0
            ends = time.monotonic() + seconds
            while time.monotonic() < ends:
                began = time.monotonic()
                try:
                    finished = self.train(trial, kill_after=self.random.uniform(0.0, LONGEST))
                except RuntimeError as error:
                    yield self.case("train", False, "crash", str(error))
                    trial, kills = self.folder / f"trial-{self.number}", 0
                    continue
                kills += not finished
                if finished:
                    yield self.compare(trial, reports, weights, kills)
                    trial, kills = self.folder / f"trial-{self.number}", 0
                yield self.case("score", self.elman_score() == scores)
                yield self.ask(answer)
                self.memory.append(self.server.megabytes)
                if self.random.random() < 1 / LIFE:
                    yield self.flat()
                    self.server.kill()
                    self.server.start()
                time.sleep(min(time.monotonic() - began, 30.0))
            if trial.exists():
                self.train(trial, kill_after=None)
                yield self.compare(trial, reports, weights, kills)
            yield self.flat()
            log = self.server.log.read_text(errors="replace")
        yield self.case("server-log", "Traceback" not in log, "traceback", log[-2000:])

    def case(self, name: str, good: bool, bad: Result = "difference", detail: str = "") -> Case:
        self.number += 1
        return Case("soak", f"{name}:{self.number}", "same output" if good else bad, detail)

    def train(self, out: Path, kill_after: float | None) -> bool:
        """Train or resume; kill it after some seconds. Return whether it finished."""
        if (out / "config.json").exists():
            arguments = ["train", "lm", "--out", out, "--resume"]
        else:
            settings = [
                *("--set", "training.checkpoint_seconds=1", "--set", "training.report_every=10"),
                *("--set", "training.validate_every=50", "--set", "training.sample_length=0"),
            ]
            first = [word for word in TRAINED["words"] if word != "text.txt"]
            first[first.index("--steps") + 1] = str(STEPS)
            first[1:1] = [str(self.place / "text.txt")]
            arguments = ["train", *first, *settings, "--out", out]
        process = self.popen(*arguments)
        try:
            process.wait(kill_after)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return False
        _, err = process.communicate()
        if process.returncode:
            raise RuntimeError(f"training ended with {process.returncode}: {err.decode()}")
        return True

    def popen(self, *arguments: object) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(filter(None, sys.path))
        environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": path}
        environment["ELMAN_CACHE"] = str(self.folder / "cache")
        return subprocess.Popen(
            ["nice", sys.executable, "-m", "elman", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )

    def elman(self, *arguments: object) -> bytes:
        out, err = self.popen(*arguments).communicate()
        return out or err

    def elman_score(self) -> bytes:
        return self.elman("score", self.place / "words", self.place / "some.txt")

    def compare(self, out: Path, reports: Any, weights: str, kills: int) -> Case:
        """Compare a run that was killed some times with the undisturbed one."""
        left = leftovers(out)
        if left:
            return self.case("train", False, "leftover", ", ".join(left))
        found = reports_of(out)
        wrong = [a for a, b in zip(found, reports, strict=False) if a != b]
        same = found == reports and digest(out) == weights
        return self.case("train", same, detail=f"{kills} kills; {len(found)} reports; {wrong[:1]}")

    def answer(self) -> Any:
        status, found = self.server.ask("/v1/completions", PROMPT)
        return status, found.get("choices")

    def ask(self, expected: Any) -> Case:
        for _ in range(20):
            found = self.answer()
            if found != expected:
                return self.case("serve", False, detail=str(found))
        return self.case("serve", True)

    def flat(self) -> Case:
        """Compare the server's memory late and early in its life."""
        memory, self.memory = self.memory, []
        quarter = max(1, len(memory) // 4)
        if len(memory) < 4:
            return self.case("memory", True)
        grown = statistics.median(memory[-quarter:]) - statistics.median(
            memory[quarter : 2 * quarter]
        )
        return self.case("memory", grown < GROWN, "over memory", f"{grown:.0f} MB more")


def reports_of(out: Path) -> list[dict[str, Any]]:
    """The steps, validations and summary of a run, without times."""
    found = []
    for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        report = json.loads(line)
        if report["kind"] in ("step", "valid", "end", "summary"):
            kept = {name: value for name, value in report.items() if name not in UNEQUAL}
            kept.pop("check", None)
            summary = kept.get("summary") or {}
            for name in [name for name in summary if "second" in name]:
                del summary[name]
            found.append(kept)
    return found


def digest(out: Path) -> str:
    """A hash of the numbers of the weights; the header has times."""
    data = (out / "model.safetensors").read_bytes()
    return hashlib.sha256(data[8 + int.from_bytes(data[:8], "little") :]).hexdigest()
