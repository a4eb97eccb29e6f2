"""Training, scoring and serving together for a long time, with random kills.

A trainer is killed with SIGKILL after a random time and its run is resumed, until it is finished:
its reports and weights must equal those of a run that nobody disturbed. Beside it a server answers
clients, is killed and started again, and a model is scored again and again: the answers must not
change, and the memory of the server must be the same late and early in its life. Every piece of
work is followed by a pause of the same length, so that the whole takes about half a core.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from elman.bench.faults.crash_points import fingerprints
from elman.bench.faults.damaged_files import leftovers, specimens
from elman.bench.faults.forking import ONE_THREAD, SAME_PATH
from elman.bench.faults.live_server import FAILURES, LiveServer
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
HANGS = 600.0
"""Seconds after which a command that is not killed counts as hanging."""


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
        self.number = self.trials = 0
        self.memory: list[float] = []
        models = [f"{name}={place / name}" for name in ("words", "ngram")]
        self.server = LiveServer(models, folder / "server.log", ("--threads", "1"))

    def run(self, seconds: float) -> Iterator[Case]:
        sound = self.new_trial()
        self.train(sound, kill_after=None)
        expected, scores = fingerprints(sound), self.score()
        with self.server:
            answer = self.answer()
            trial, kills = self.new_trial(), 0
            ends = time.monotonic() + seconds
            while time.monotonic() < ends:
                began = time.monotonic()
                try:
                    finished = self.train(trial, kill_after=self.random.uniform(0.0, LONGEST))
                except RuntimeError as error:
                    yield self.case("train", "crash", str(error))
                    trial, kills = self.new_trial(), 0
                    continue
                kills += not finished
                if finished:
                    yield self.compare(trial, expected, kills)
                    trial, kills = self.new_trial(), 0
                yield self.score_again(scores)
                yield self.ask(answer)
                if not self.server.is_running:  # it crashed
                    self.memory.clear()
                    self.server.start()
                self.memory.append(self.server.megabytes)
                if self.random.random() < 1 / LIFE:
                    yield from self.flat()
                    self.server.kill()
                    self.server.start()
                time.sleep(min(time.monotonic() - began, 30.0))
            if (trial / "out").exists():
                try:
                    self.train(trial, kill_after=None)
                    yield self.compare(trial, expected, kills)
                except RuntimeError as error:
                    yield self.case("train", "crash", str(error))
            yield from self.flat()
            log = self.server.log.read_text(errors="replace")
        yield self.case("server-log", "traceback" if "Traceback" in log else None, log[-2000:])

    def new_trial(self) -> Path:
        """A new folder for a run, which is called `out` as in the other targets."""
        self.trials += 1
        folder = self.folder / f"trial-{self.trials}"
        folder.mkdir()
        return folder

    def case(self, name: str, bad: Result | None, detail: str = "") -> Case:
        self.number += 1
        return Case("soak", f"{name}:{self.number}", bad or "same output", detail)

    def train(self, trial: Path, kill_after: float | None) -> bool:
        """Train or resume; kill it after some seconds. Return whether it finished."""
        out = trial / "out"
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
            _, err = process.communicate(timeout=HANGS if kill_after is None else kill_after)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            if kill_after is None:
                raise RuntimeError(f"training did not end in {HANGS:.0f} s") from None
            return False
        if process.returncode:
            raise RuntimeError(f"training ended with {process.returncode}: {err.decode()}")
        return True

    def popen(self, *arguments: object) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": SAME_PATH}
        environment["ELMAN_CACHE"] = str(self.folder / "cache")
        return subprocess.Popen(
            ["nice", sys.executable, "-m", "elman", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )

    def score(self) -> bytes:
        process = self.popen("score", self.place / "words", self.place / "some.txt")
        try:
            out, err = process.communicate(timeout=HANGS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise RuntimeError(f"scoring did not end in {HANGS:.0f} s") from None
        if process.returncode:
            raise RuntimeError(f"scoring ended with {process.returncode}: {err.decode()}")
        return out

    def score_again(self, expected: bytes) -> Case:
        try:
            return self.case("score", None if self.score() == expected else "difference")
        except RuntimeError as error:
            return self.case("score", "crash", str(error))

    def compare(self, trial: Path, expected: Mapping[str, str], kills: int) -> Case:
        """Compare a run that was killed some times with the undisturbed one."""
        if left := leftovers(trial):
            return self.case("train", "leftover", ", ".join(left))
        found = fingerprints(trial)
        paths = sorted(found.keys() | expected.keys())
        wrong = [path for path in paths if found.get(path) != expected.get(path)]
        detail = f"{kills} kills; different: {', '.join(wrong)}"
        return self.case("train", "difference" if wrong else None, detail)

    def answer(self) -> Any:
        status, found = self.server.ask("/v1/completions", PROMPT)
        if status != 200:
            raise RuntimeError(f"the server answered {status}: {found}")
        return found["choices"]

    def ask(self, expected: Any) -> Case:
        try:
            for _ in range(20):
                if (found := self.answer()) != expected:
                    return self.case("serve", "difference", str(found))
        except FAILURES as error:
            return self.case("serve", self.server.failure(error), str(error))
        return self.case("serve", None)

    def flat(self) -> Iterator[Case]:
        """Compare the server's memory late and early in its life, if it was long enough."""
        memory, self.memory = self.memory, []
        if (quarter := len(memory) // 4) == 0:
            return
        early, late = memory[quarter : 2 * quarter], memory[-quarter:]
        grown = statistics.median(late) - statistics.median(early)
        yield self.case("memory", None if grown < GROWN else "over memory", f"{grown:.0f} MB more")
