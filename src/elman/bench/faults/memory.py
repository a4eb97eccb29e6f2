"""Give commands less memory than they need, and files that ask for too much.

`need:` cases measure how much memory a command takes, and run it again with a part of that. It must
succeed or end with one sentence, and leave no partial files. `size:` cases put huge numbers into a
run's config.json: they must be refused before memory is taken.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from elman.bench.faults.damaged_files import SECONDS, Runner, leftovers, specimens
from elman.bench.faults.mutations import SEAL
from elman.bench.faults.outcomes import Case, Plan, Result, judge
from elman.bench.faults.specimens import USES, Command, Reading, data_of

SHARES = (0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 1.0)
"""Parts of the memory that a command needs."""
MODELS = ("chars", "maxent", "ngram", "tagger", "classifier", "translator", "conditional", "elmo")
LARGE = (16_000, 1_000_000, 2**31, 2**62)
QUICK = 16
TOO_MUCH = 300 << 20
"""Bytes that a command with a huge number in config.json may take."""

WIDE = ("--set", "model.hidden_size=512", "--set", "model.embedding_size=512", "--steps", "2")
NEEDY: dict[str, Command] = {
    "train": ("train", "lm", "text.txt", *WIDE, "--out", "new", "--json"),
    "count": ("train", "ngram", "long.txt", "--out", "new", "--json"),
    "score": ("score", "words", "long.txt"),
    "evaluate": ("evaluate", "ngram", "long.txt", "--json"),
    "tag": ("tag", "tagger", "long.txt"),
    "arpa": ("convert", "ngram", "new.arpa"),
    "embed": ("embed", "words", "long.txt", "--out", "new.npz"),
}
NEEDS = ("text.txt", "words", "ngram", "tagger")


def memory(plan: Plan) -> Iterator[Case]:
    """The target `memory`."""
    place = specimens(plan)
    runner = Runner(plan, place)
    needs = {name: _need(plan, runner, command) for name, command in NEEDY.items()}
    shares = [(name, share) for name in NEEDY for share in SHARES]
    sizes = [
        (name, key, value)
        for name in MODELS
        for key in _counts(json.loads((place / name / "config.json").read_bytes())["model"])
        for value in LARGE
    ]
    if plan.quick and not plan.only:
        random = plan.random("memory")
        shares, sizes = random.sample(shares, QUICK), random.sample(sizes, QUICK)

    def starve(item: tuple[str, float], folder: Path) -> tuple[Result, str]:
        name, share = item
        _prepare(runner, folder)
        limit = int(needs[name] * share)
        ended = plan.run(*NEEDY[name], folder=folder, memory=limit, seconds=SECONDS)
        result, detail = judge(ended)
        if result is None:
            result = "same output"
        if result in ("sentence", "same output") and (left := leftovers(folder)):
            result, detail = "leftover", ", ".join(left)
        return result, f"{limit / 1e6:.1f} of {needs[name] / 1e6:.1f} MB; {detail}"

    def inflate(item: tuple[str, tuple[str, ...], int], folder: Path) -> tuple[Result, str]:
        name, key, value = item
        command = USES[name][0]
        reading = Reading(f"{name}/config.json", (command,), "json", (name, *data_of(command)))
        runner.copy(reading, folder)
        path = folder / name / "config.json"
        config = json.loads(SEAL.sub(b"", path.read_bytes()))
        inside = config["model"]
        for part in key[:-1]:
            inside = inside[part]
        inside[key[-1]] = value
        path.write_text(json.dumps(config))
        ended = runner.run(reading, command, folder, memory=4 << 30, most_memory=TOO_MUCH)
        result, detail = judge(ended)
        return ("legal", "") if result is None else (result, detail)

    yield from plan.each(starve, shares, lambda item: f"need:{item[0]}:{item[1]}")
    yield from plan.each(
        inflate, sizes, lambda item: f"size:{item[0]}:{'.'.join(item[1])}:{item[2]}"
    )


def _prepare(runner: Runner, folder: Path) -> None:
    runner.copy(Reading("text.txt", (), "lines", NEEDS), folder)
    text = (folder / "text.txt").read_bytes()
    (folder / "long.txt").write_bytes(text * 400)


def _need(plan: Plan, runner: Runner, command: Command) -> int:
    """Bytes that the command takes at its peak; the first call compiles what has to be."""
    for _ in range(2):
        with plan.place() as folder:
            _prepare(runner, folder)
            ended = plan.run(*command, folder=folder, seconds=600.0)
            if ended.code:
                raise RuntimeError(f"elman {' '.join(command)}: {ended.err}")
    return ended.peak_bytes


def _counts(config: dict[str, object], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths to the whole numbers of a config."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _counts(value, (*path, name))
        elif type(value) is int:
            yield (*path, name)
