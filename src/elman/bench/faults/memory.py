"""Give commands less memory than they need, and files that ask for too much.

`need:` cases limit the memory of a command. It must print and write what it does with enough, or
end with one sentence and leave no partial files. `size:` cases put huge numbers into the
config.json of a run: they must be refused before memory is taken.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from elman.bench.faults.crash_points import fingerprint
from elman.bench.faults.damaged_files import SECONDS, Runner, compared, leftovers, specimens, steady
from elman.bench.faults.forking import Ended
from elman.bench.faults.mutations.values import SEAL
from elman.bench.faults.outcomes import Case, Plan, Result
from elman.bench.faults.specimens import USES, Command, Reading, data_of

LIMITS = (16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 128, 192, 256)
"""MB that a command may take: from far too little to enough.

With less, Python waits without end for a thread that could not start, and LLVM aborts.
"""
MODELS = ("chars", "maxent", "ngram", "tagger", "classifier", "translator", "conditional", "elmo")
LARGE = (16_000, 1_000_000, 2**31, 2**62)
QUICK = 4
TOO_MUCH = 300 << 20
"""Bytes that a command with a huge number in config.json may take."""

WIDE = ("--set", "model.hidden_size=512", "--set", "model.embedding_size=512", "--steps", "2")
NEEDY: dict[str, Command] = {
    "train": ("train", "lm", "@text.txt", *WIDE, "--out", "new", "--json"),
    "count": ("train", "ngram", "@long.txt", "--out", "new", "--json"),
    "score": ("score", "@words", "@long.txt"),
    "evaluate": ("evaluate", "@ngram", "@long.txt", "--json"),
    "tag": ("tag", "@tagger", "@long.txt"),
    "arpa": ("convert", "@ngram", "new.arpa"),
    "embed": ("embed", "@words", "@long.txt", "--out", "new.npz"),
}
"""Commands that need memory; @ stands for the folder of specimens, or that of the campaign."""
LONG = "long.txt"


def memory(plan: Plan) -> Iterator[Case]:
    """The target `memory`."""
    place = specimens(plan)
    runner = Runner(plan, place)
    (plan.folder / LONG).write_bytes(
        (place / "text.txt").read_bytes() * (100 if plan.quick else 400)
    )
    limits = [(name, limit) for name in NEEDY for limit in LIMITS]
    sizes = [
        (name, key, value)
        for name in MODELS
        for key in _counts(json.loads((place / name / "config.json").read_bytes())["model"])
        for value in LARGE
    ]
    if plan.quick and not plan.only:
        random = plan.random("memory")
        limits, sizes = random.sample(limits, QUICK), random.sample(sizes, QUICK)
    for name in dict.fromkeys(name for name, _ in limits):
        with plan.place() as folder:
            plan.forks.warm_up(_words(runner, name), folder)

    @cache
    def sound(name: str) -> bytes:
        with plan.place() as folder:
            ended = _needy(runner, name, folder)
        if ended.code:
            raise RuntimeError(f"elman {' '.join(NEEDY[name])}: {ended.err}")
        return steady(ended.out)

    def starve(item: tuple[str, int], folder: Path) -> tuple[Result, str]:
        name, limit = item
        expected = sound(name)
        ended = _needy(runner, name, folder, memory=limit << 20)
        result, detail = compared(ended, expected, legal=False, asked=True)
        if result in ("sentence", "same output") and (left := leftovers(folder)):
            result, detail = "leftover", ", ".join(left)
        return result, detail

    def inflate(item: tuple[str, tuple[str, ...], int], folder: Path) -> tuple[Result, str]:
        name, key, value = item
        command = USES[name][0]
        reading = Reading(f"{name}/config.json", (command,), "json", data_of((name, *command)))
        runner.copy(reading, folder)
        path = folder / name / "config.json"
        config = json.loads(SEAL.sub(b"", path.read_bytes()))
        inside = config["model"]
        for part in key[:-1]:
            inside = inside[part]
        inside[key[-1]] = value
        path.write_text(json.dumps(config))
        expected = runner.sound(reading, command)
        ended = runner.run(reading, command, folder, memory=4 << 30, most_memory=TOO_MUCH)
        return compared(ended, expected, legal=True)

    yield from plan.each(starve, limits, lambda item: f"need:{item[0]}:{item[1]}")
    yield from plan.each(
        inflate, sizes, lambda item: f"size:{item[0]}:{'.'.join(item[1])}:{item[2]}"
    )


def _needy(runner: Runner, name: str, folder: Path, **how: Any) -> Ended:
    """Run a command that needs memory; its output is followed by hashes of the files it makes."""
    ended = runner.plan.run(*_words(runner, name), folder=folder, seconds=SECONDS, **how)
    made = [path for top in sorted(folder.glob("new*")) for path in (top, *sorted(top.rglob("*")))]
    hashes = [f"{path.relative_to(folder)} {fingerprint(path)}\n" for path in made]
    return replace(ended, out=ended.out + "".join(hashes).encode())


def _words(runner: Runner, name: str) -> list[str]:
    """The command, with whole paths: configurations have those of the data in them."""
    places = {f"@{LONG}": runner.plan.folder}
    return [
        str(places.get(word, runner.place) / word[1:]) if word.startswith("@") else word
        for word in NEEDY[name]
    ]


def _counts(config: dict[str, object], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths to the whole numbers of a config."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _counts(value, (*path, name))
        elif type(value) is int:
            yield (*path, name)
