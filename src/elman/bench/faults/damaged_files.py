"""Damage every file that Elman reads, and run a command that reads it.

A case is named file:mutation, as words/config.json:json-nest; the name and the seed of the campaign
determine the damage. Good ends are an error of one sentence, the output for the sound file, and,
for data that may be legal after the damage (a text with a word less) and for files whose seal was
taken off, other output. Where the format of a data file tells of the damage, as a checksum of
zstandard and the counts of an ARPA file do, it must be noticed: see `may_differ`.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elman.bench.faults.forking import Ended, Forks
from elman.bench.faults.mutations import MUTATIONS
from elman.bench.faults.mutations.arrays import HDF5
from elman.bench.faults.mutations.places import PLACES
from elman.bench.faults.mutations.values import ODD_TEXTS
from elman.bench.faults.outcomes import Case, Plan, Result, judge
from elman.bench.faults.specimens import (
    CACHE,
    MIXTURES,
    SET_IN,
    USES,
    Command,
    Reading,
    make_specimens,
    readings,
)

SECONDS = 60.0
"""That a command may take."""
MEMORY = 2 << 30
"""Bytes that a command may ask for, beyond those of the process it is forked from."""
MOST_MEMORY = 700 << 20
"""Bytes that count as too much; sound specimens take less than 200 MB."""
QUICK = 40
"""Cases in the test suite."""

_CUT = ("truncate", "cut-end", "cut-beginning", "empty", "all-zero", "noise", "device")
_COUNTED = (*_CUT, "counts", "counts-2", "drop-line", "shuffle-lines", "join-lines", "long-line")
NOTICED: dict[str, frozenset[str]] = {
    "arpa": frozenset((*_COUNTED, "sections", "long-word", "empty-line", "repeat-line")),
    "word2vec": frozenset((*_COUNTED, "remove")),
    # Another type or compression with the same shape is legal.
    "hdf5": frozenset((*_CUT, "remove", *HDF5)) - {"hdf5-type", "hdf5-compressed"},
}
"""Damage that the formats of data files tell of."""

_building = threading.Lock()
_warm: set[Forks] = set()
_sound: dict[Path, dict[tuple[str, Command], bytes]] = {}
"""What commands print about sound files, by the folder of specimens."""


@dataclass(frozen=True)
class Damage:
    """One case."""

    reading: Reading
    mutation: str

    def __str__(self) -> str:
        return f"{self.reading.file}:{self.mutation}"


def damaged_files(plan: Plan) -> Iterator[Case]:
    """The target `files`."""
    place = specimens(plan)
    items = [
        Damage(reading, mutation)
        for reading in readings(place)
        for mutation in (*MUTATIONS[reading.kind], *PLACES)
    ]
    # In any order, so that the beginning is a fair part.
    plan.random("order").shuffle(items)
    if plan.quick and not plan.only:
        items = items[:QUICK]
    runner = Runner(plan, place)
    yield from plan.each(runner.damage, items)
    arguments = [*_settings(plan), *_mixtures()]
    if plan.quick and not plan.only:
        arguments = plan.random("quick arguments").sample(arguments, QUICK // 8)
    yield from plan.each(runner.argument, arguments, lambda item: item[0])


def specimens(plan: Plan) -> Path:
    """The folder of sound files, made on the first call in a campaign."""
    place = plan.folder / "specimens"
    done = plan.folder / "specimens.done"
    with _building:
        if not done.exists():
            shutil.rmtree(place, ignore_errors=True)

            def run(folder: Path, command: Command) -> None:
                environment = {"ELMAN_CACHE": str(folder / CACHE)}
                ended = plan.run(*command, folder=folder, environment=environment, seconds=600.0)
                if ended.code:
                    raise RuntimeError(f"elman {' '.join(command)}: {ended.err}")

            make_specimens(place, run)
            done.touch()
    return place


class Runner:
    """Runs commands on copies of specimens, and compares with the sound ones."""

    def __init__(self, plan: Plan, place: Path) -> None:
        self.plan = plan
        self.place = place
        self._sound = _sound.setdefault(place, {})
        with _building:
            if plan.forks not in _warm:
                _warm.add(plan.forks)
                self._warm_up()

    def _warm_up(self) -> None:
        """Let the fork servers import and compile what the commands need."""
        for commands in USES.values():
            words = [
                str(self.place / word) if (self.place / word).exists() else word
                for word in commands[0]
            ]
            with self.plan.place() as folder:
                self.plan.forks.warm_up(words, folder)

    def damage(self, item: Damage, folder: Path) -> tuple[Result, str]:
        """Run one case in `folder`."""
        reading, random = item.reading, self.plan.random(item)
        # The shell opens stdin, and says itself that nothing is there.
        unopened = item.mutation in ("missing", "dangling-link", "link-to-itself", "folder")
        command = random.choice([c for c in reading.commands if not (unopened and "-" in c)])
        expected = self.sound(reading, command)
        self.copy(reading, folder)
        path, fed = folder / reading.file, None
        if item.mutation in PLACES:
            fed = path.read_bytes() if item.mutation == "fifo" and not reading.own else None
            PLACES[item.mutation](path)
        else:
            before = path.read_bytes()
            after = MUTATIONS[reading.kind][item.mutation](random, before)
            path.write_bytes(after)
        fewer = _has_fewer_reports(path, self.place / reading.file)
        with _Feeding(path, fed):
            ended = self.run(reading, command, folder)
        legal = fewer or may_differ(reading, item.mutation)
        result, detail = compared(ended, expected, legal, asked=reading.kind == "toml")
        if command[:2] == ("data", "check") and ended.code == 1 and ended.out and not ended.err:
            result, detail = "legal", ""  # it reports the damage, as it should
        if result in ("sentence", "same output", "legal") and (left := leftovers(folder)):
            result, detail = "leftover", ", ".join(left)
        return result, f"{detail}  [elman {' '.join(command)}]"

    def argument(self, item: tuple[str, Command], folder: Path) -> tuple[Result, str]:
        """Run a command with an odd argument."""
        _, command = item
        needs = ("text.txt", "some.txt", "words", "ngram", *SET_IN.get(command[1], ()))
        reading = Reading("text.txt", (command,), "lines", tuple(dict.fromkeys(needs)))
        self.copy(reading, folder)
        # What the user asks for may take all the memory that there is, which takes its time.
        memory = MEMORY // 4 if self.plan.quick else MEMORY
        ended = self.run(reading, command, folder, memory=memory, most_memory=memory)
        return compared(ended, b"", True, asked=True)

    def sound(self, reading: Reading, command: Command) -> bytes:
        """What the command prints about the sound files."""
        key = reading.needs[0] if reading.own else "", command
        if key not in self._sound:
            with self.plan.place() as folder:
                self.copy(reading, folder)
                ended = self.run(reading, command, folder, seconds=600.0)
            if ended.code:
                raise RuntimeError(f"sound files, elman {' '.join(command)}: {ended.err}")
            self._sound[key] = steady(ended.out)
        return self._sound[key]

    def copy(self, reading: Reading, folder: Path) -> None:
        for name in reading.needs:
            source = self.place / name
            if source.is_dir():
                shutil.copytree(source, folder / name)
            else:
                shutil.copy2(source, folder / name)

    def run(self, reading: Reading, command: Command, folder: Path, **how: Any) -> Ended:
        cache = folder if CACHE in reading.needs else self.plan.folder
        words = [word.replace("@", f"{self.place}/") for word in command]
        return self.plan.run(
            *words,
            folder=folder,
            stdin=reading.file if "-" in command else None,
            environment={"ELMAN_CACHE": str(cache / CACHE)},
            **{"seconds": SECONDS, "memory": MEMORY, "most_memory": MOST_MEMORY, **how},
        )


def may_differ(reading: Reading, mutation: str) -> bool:
    """Whether a file may be sound after this damage, so that other output is right."""
    if reading.own:
        # Changes that take the seal off stand for those made on purpose.
        keeps_seal = "sealed" in mutation or mutation == "json-text"
        return mutation == "header-no-metadata" or (mutation.startswith("json-") and not keeps_seal)
    if reading.kind in ("gz", "zst") and mutation not in ("bomb", "double"):
        if not mutation.startswith("inside-"):
            return False
        mutation = mutation.removeprefix("inside-")
    name = Path(reading.file).name
    kind = next((kind for kind in ("arpa", "word2vec") if kind in name), reading.kind)
    return mutation not in NOTICED.get(kind, ())


def compared(
    ended: Ended, expected: bytes, legal: bool, *, asked: bool = False
) -> tuple[Result, str]:
    """The result of a command about damaged files; `asked`: the user may ask for a huge model."""
    result, detail = judge(ended)
    if result == "sentence" and not asked and "memory of this machine is exhausted" in ended.err:
        return "over memory", f"{ended.peak_bytes / 1e6:.0f} MB; {detail}"
    if result is not None:
        return result, detail
    if steady(ended.out) == expected:
        return "same output", ""
    return ("legal", "") if legal else ("unnoticed", "other output, and no error")


_UNSTEADY = re.compile(
    rb'"(?:\w*seconds\w*|\w*_per_second|per_second|out|speed|\w*_time|path|model)": '
    rb'(?:[-\d.e+]+|"[^"]*"|null)|[\d.,]+ (?:s|ms|min|seconds|tokens/s)\b|\([^()]* on disk\)'
)


def steady(out: bytes) -> bytes:
    """Output without times, folders and the size of compressed files."""
    return re.sub(rb"/\S*/(tmp|specimens)\S*?/", b"", _UNSTEADY.sub(b"", out))


def leftovers(folder: Path) -> list[str]:
    """Temporary files that a command left behind."""
    found = [path for pattern in (".elman-*", ".new-*", ".*.tmp") for path in folder.rglob(pattern)]
    return [str(path.relative_to(folder)) for path in found]


def _has_fewer_reports(path: Path, sound: Path) -> bool:
    """Whether a model that is sound may have this: fewer reports, or none.

    A run may have been stopped early, and a model passed on without its log. Each report has a
    seal, their number has none. The last line may be cut short or end with zeros, as it does after
    a power cut.
    """
    if path.name != "metrics.jsonl":
        return False
    if not path.exists():
        return True
    if not path.is_file():
        return False
    *before, last = path.read_bytes().splitlines(keepends=True) or [b""]
    whole = sound.read_bytes().splitlines(keepends=True)
    return set(before) <= set(whole) and any(line.startswith(last.rstrip(b"\0")) for line in whole)


class _Feeding:
    """Write `data` into a FIFO from a thread, once; nothing if it is None."""

    def __init__(self, path: Path, data: bytes | None) -> None:
        self._path, self._data = path, data
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        if self._data is not None:
            self._thread = threading.Thread(target=self._feed, daemon=True)
            self._thread.start()

    def __exit__(self, *error: object) -> None:
        if self._thread is not None:
            # A reader of our own lets a writer go on that nobody has read from.
            with suppress(OSError):
                reader = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
                while self._thread.is_alive():
                    with suppress(BlockingIOError):
                        os.read(reader, 1 << 20)
                    self._thread.join(0.01)
                os.close(reader)

    def _feed(self) -> None:
        assert self._data is not None
        with suppress(OSError), open(self._path, "wb") as pipe:
            pipe.write(self._data)


def _settings(plan: Plan) -> Iterator[tuple[str, Command]]:
    """Commands with odd values of settings."""
    from elman.recipes.resolve import settings_of
    from elman.tasks import task_named

    for task, data in SET_IN.items():
        for name in settings_of(task_named(task)):
            case = f"set:{task}:{name}"
            value = plan.random(case).choice(ODD_TEXTS)
            length = () if task in ("ngram", "snm", "infinigram") else ("--steps", "1")
            command = ("train", task, *data, "--out", "new", *length, "--json")
            yield case, (*command, "--set", f"{name}={value}")


def _mixtures() -> Iterator[tuple[str, Command]]:
    for number, name in enumerate(MIXTURES, start=1):
        yield f"mixture:{number}", ("score", name, "some.txt")
