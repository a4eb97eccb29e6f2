"""`elman bench counting`: n-gram counts within a limit of memory, over the size of the text.

    curve       text to a model that answers, at several sizes: time, memory, disk
    scaling     the same on a cluster of processes, by their number
    rates       each stage by itself, as the commands of `elman ngram` run it

Programs run in fresh processes. The kernel reports their largest memory; the files in their folders
are added up four times a second. `project` computes from the rates what a larger text would need.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from elman.base.threads import usable_cores
from elman.bench.measuring import Cost, run_program
from elman.bench.ngram import SOURCES
from elman.bench.rows import Row, less_is_better, note
from elman.bench.sampled_text import write_sampled_text
from elman.text.sources import expand

_PAUSE = 0.25
_MOST_NGRAMS = 2**31 - 1
"""The limit of `elman.ngrams.trie.check_number`."""
_PROGRAM = (sys.executable, "-m", "elman.cli")


def text_of(files: Sequence[str], folder: Path, num_tokens: int) -> list[str]:
    """The files, or sampled text, which is kept in the folder."""
    if files:
        return list(files)
    path = folder / f"sampled-{num_tokens}.txt"
    if not path.exists():
        note(f"sampling {num_tokens:,} tokens")
        write_sampled_text(path, expand(SOURCES), num_tokens)
    return [str(path)]


def curve(
    files: Sequence[str], folder: Path, sizes: Sequence[int], order: int, memory: str
) -> Iterator[Row]:
    """Text to a model that answers, within `memory`; one run of each size."""
    for size in sizes:
        text = text_of(files, folder, size)
        more = ("--memory", memory)
        cost, disk, summary = _run(folder, [*_train(folder, text, order), *more])
        tokens = summary["tokens"]
        note(f"{tokens:,} tokens: {cost.seconds:,.0f} s, {disk / 1e9:.1f} GB of disk")
        yield less_is_better(
            f"{tokens:,} tokens within {memory}",
            cost.seconds,
            None,
            "s",
            tokens=tokens,
            order=order,
            memory=memory,
            threads=usable_cores(),
            **vars(cost),
            peak_disk=disk,
            disk_estimate=summary.get("disk_estimate"),
            ngrams=summary["ngrams"],
            model_bytes=(folder / "run" / "ngram.safetensors").stat().st_size,
        )


def scaling(
    files: Sequence[str], folder: Path, num_tokens: int, order: int, workers: Sequence[int]
) -> Iterator[Row]:
    """The time on clusters of this machine; the peer of each is the first."""
    text = text_of(files, folder, num_tokens)
    first: float | None = None
    for number in workers:
        more = ("--cluster", f"local:{number}")
        cost, _, summary = _run(folder, [*_train(folder, text, order), *more])
        seconds = summary["tokens"] / summary["tokens_per_second"]
        plural = "s" if number > 1 else ""
        yield less_is_better(
            f"count and estimate, {number} worker{plural}",
            seconds,
            first,
            "s",
            tokens=summary["tokens"],
            order=order,
            workers=number,
            cores=usable_cores(),
            whole_program=cost.seconds,
        )
        first = first or seconds


@dataclass(frozen=True)
class Rates:
    """What the stages of counting a text cost, measured."""

    text_bytes: int
    tokens: int
    order: int
    ngrams: int
    """Of all lengths, merged."""
    read: float
    """Seconds of one job: text to ids and a plan."""
    count: float
    """CPU seconds of all shards."""
    merge: float
    """CPU seconds of all ranges."""
    estimate: float
    """Seconds of one job, with this machine's threads: counts to a run folder."""
    run_bytes: int
    """Of all shards' counts."""
    disk: int
    """Largest size of the run folder."""
    memory: int
    """Largest of a process that counts or merges."""


def rates(files: Sequence[str], folder: Path, num_tokens: int, order: int, shards: int) -> Rates:
    """Run each stage as a command, and measure it."""
    text = text_of(files, folder, num_tokens)
    run = folder / "run"
    planned, most, summary = _run(folder, [*_train(folder, text, order), "--plan", str(shards)])
    costs: dict[str, Cost] = {}
    run_bytes = 0
    for stage in ("count", "merge", "estimate", "join"):
        note(stage)
        more = ("--threads", "1") if stage == "count" else ()
        with _watched([run]) as found:
            costs[stage] = run_program([*_PROGRAM, "ngram", stage, str(run), *more])
        most = max(most, found[0])
        if stage == "count":
            run_bytes = _size(sorted((run / "stages").glob("count-*")))
    described = folder / "described.json"
    run_program([*_PROGRAM, "info", str(run), "--json"], stdout=described)
    levels = json.loads(described.read_text())["ngrams"]
    return Rates(
        text_bytes=sum(os.stat(file).st_size for file in text),
        tokens=summary["tokens"],
        order=order,
        ngrams=sum(level["ngrams"] for level in levels),
        read=planned.seconds,
        count=costs["count"].cpu_seconds,
        merge=costs["merge"].cpu_seconds,
        estimate=costs["estimate"].seconds + costs["join"].seconds,
        run_bytes=run_bytes,
        disk=most,
        memory=max(costs["count"].peak_bytes, costs["merge"].peak_bytes),
    )


def project(found: Rates, text_bytes: float, workers: int, bandwidth: float) -> Iterator[Row]:
    """What a text of this size needs, by proportion: n-grams as many to a token as were measured.

    That is an upper limit, since n-grams repeat in more text. `workers` count and merge; each of
    them reads its shard and writes its run, and every run is read once again to be merged, over a
    network of `bandwidth` bytes/s to each. Reading the text, and estimating, are one job each.
    """
    times = text_bytes / found.text_bytes
    traffic = times * (2 * found.run_bytes + 16 * found.ngrams + 4 * found.tokens)
    hours = {
        "read the text, one job": times * found.read,
        f"count, {workers} workers": times * found.count / workers,
        f"merge, {workers} workers": times * found.merge / workers,
        f"network, {bandwidth / 1e9:g} GB/s to each": traffic / workers / bandwidth,
        "estimate, one job": times * found.estimate,
    }
    settings: dict[str, Any] = {
        "text_bytes": text_bytes,
        "workers": workers,
        "measured": vars(found),
    }
    for name, seconds in hours.items():
        yield Row(name, seconds / 3600, None, None, "hours", settings)
    amounts = {
        "tokens": (times * found.tokens / 1e9, "billion"),
        "n-grams": (times * found.ngrams / 1e9, "billion"),
        "compressed counts": (times * found.run_bytes / 1e12, "TB"),
        "disk at most": (times * found.disk / 1e12, "TB"),
        "network": (traffic / 1e12, "TB"),
        "memory of a worker": (found.memory / 1e9, "GB"),
        "shards of this size": (math.ceil(times), ""),
    }
    for name, (amount, unit) in amounts.items():
        yield Row(name, amount, None, None, unit, settings)
    if times * found.ngrams > _MOST_NGRAMS:
        note(
            f"a model has at most {_MOST_NGRAMS:,} n-grams: counts of this text can be merged, but "
            "not estimated as one model"
        )


def _train(folder: Path, text: Sequence[str], order: int) -> list[str]:
    return [
        *("train", "ngram", *text, "--out", str(folder / "run"), "--order", str(order), "--json"),
        *("--set", "tokenizer.kind=pretokenized"),
    ]


def _run(folder: Path, command: Sequence[str]) -> tuple[Cost, int, dict[str, Any]]:
    """Run our program in a new run folder; return its cost, the largest disk and its summary."""
    temporary = folder / "temporary"
    for old in (folder / "run", temporary):
        shutil.rmtree(old, ignore_errors=True)
    temporary.mkdir(parents=True)
    told = folder / "summary.json"
    with _watched([folder / "run", temporary]) as found, _temporary_files_in(temporary):
        cost = run_program([*_PROGRAM, *command], stdout=told)
    summary: dict[str, Any] = json.loads(told.read_text())
    return cost, found[0], summary


@contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """Have programs that are started write their temporary files there."""
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(folder)
    try:
        yield
    finally:
        del os.environ["TMPDIR"]
        if before is not None:
            os.environ["TMPDIR"] = before


@contextmanager
def _watched(folders: Sequence[Path]) -> Iterator[list[int]]:
    """Yield a list whose entry is the largest size of the folders so far, in bytes on disk."""
    largest, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(_PAUSE):
            largest[0] = max(largest[0], _size(folders))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield largest
    finally:
        done.set()
        watcher.join()
        largest[0] = max(largest[0], _size(folders))


def _size(folders: Sequence[Path]) -> int:
    """Bytes on disk; a file with two names counts once, one that goes away meanwhile not."""
    blocks: dict[tuple[int, int], int] = {}
    for folder in folders:
        for place, _, names in os.walk(folder):
            for status in map(partial(_status, place), names):
                if status is not None:
                    blocks[status.st_dev, status.st_ino] = status.st_blocks
    return 512 * sum(blocks.values())


def _status(place: str, name: str) -> os.stat_result | None:
    try:
        return os.stat(os.path.join(place, name), follow_symlinks=False)
    except OSError:
        return None
