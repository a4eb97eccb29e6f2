"""`elman bench counting`: n-gram counts within a limit of memory, over the size of the text.

    curve       text to a model that answers, at several sizes: time, memory, disk
    beside      text to ARPA, beside `lmplz -S`
    scaling     the same on a cluster of processes, or an array of jobs, by their number
    rates       each stage by itself, as the commands of `elman ngram` run it
    compressed  counting and merging with compressed runs, beside plain ones

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
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from elman.base.errors import UsageError
from elman.base.threads import in_threads, usable_cores
from elman.bench.measuring import Cost, Work, in_turns, run_program
from elman.bench.ngram import SOURCES, KenLM
from elman.bench.rows import Row, less_is_better, note
from elman.bench.sampled_text import write_sampled_text
from elman.ngrams.reading import read_stretches, word_tokenizer
from elman.ngrams.stages import Stages
from elman.text.sources import expand

_PAUSE = 0.25
_MOST_NGRAMS = 2**31 - 1
"""The limit of `elman.ngrams.trie.check_number`."""
SHARDS = 8
"""Of `compressed`, and as many ranges."""
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


def beside(
    files: Sequence[str],
    folder: Path,
    num_tokens: int,
    order: int,
    memory: str,
    lmplz_memory: str,
    repeat: int,
) -> Iterator[Row]:
    """Text to ARPA within `memory`, beside lmplz: time and memory, and our disk."""
    lmplz = KenLM.find(None).lmplz
    if lmplz is None:
        raise UsageError("there is no lmplz on the PATH", "install KenLM, or leave out --lmplz")
    text, arpa = text_of(files, folder, num_tokens), folder / "ours.arpa"
    theirs, temporary = folder / "theirs.arpa", folder / "temporary"
    disk, tokens = 0, 0

    def ours() -> Cost:
        nonlocal disk, tokens
        arpa.unlink(missing_ok=True)
        command = [*_train(folder, text, order), "--memory", memory, "--arpa", str(arpa)]
        cost, disk, summary = _run(folder, command)
        tokens = summary["tokens"]
        return cost

    def peer() -> Cost:
        shutil.rmtree(folder / "run", ignore_errors=True)
        command = [lmplz, "-o", str(order), "-S", lmplz_memory, "-T", f"{temporary}/"]
        cost = run_program([*command, "--discount_fallback"], stdin=Path(text[0]), stdout=theirs)
        theirs.unlink()
        return cost

    if len(text) > 1:
        raise UsageError("lmplz reads one file", "join the files, or leave out --lmplz")
    works: dict[str, Work] = {"ours": ours, "lmplz": peer}
    costs = in_turns(works, repeat)
    mine, other = costs["ours"], costs["lmplz"]
    settings = {
        "tokens": tokens,
        "order": order,
        "memory": memory,
        "lmplz_memory": lmplz_memory,
        "threads": usable_cores(),
    }
    cpu = {"cpu_seconds": mine.cpu_seconds, "peer_cpu_seconds": other.cpu_seconds}
    yield less_is_better("text to ARPA", mine.seconds, other.seconds, "s", **settings, **cpu)
    mega, peers = mine.peak_bytes / 1e6, other.peak_bytes / 1e6
    yield less_is_better("memory, text to ARPA", mega, peers, "MB", **settings)
    # lmplz unlinks its files while it uses them: their size is not seen from outside.
    yield less_is_better("disk, without the ARPA file", disk / 1e6, None, "MB", **settings)


def scaling(
    files: Sequence[str], folder: Path, num_tokens: int, order: int, workers: Sequence[int]
) -> Iterator[Row]:
    """The time by the number of processes of this machine; the peer of each is the first.

    They are workers of a Dask cluster. Where Dask is not installed, they are the commands of
    `elman ngram`, started as an array of jobs is, and the settings say so.
    """
    text = text_of(files, folder, num_tokens)
    has_dask = find_spec("distributed") is not None
    if not has_dask:
        note("Dask is not installed: each stage runs as plain processes, as an array of jobs does")
    first: float | None = None
    for number in workers:
        if has_dask:
            more = ("--cluster", f"local:{number}")
            cost, _, summary = _run(folder, [*_train(folder, text, order), *more])
            tokens, whole = summary["tokens"], cost.seconds
            stages = {"all": tokens / summary["tokens_per_second"]}
        else:
            tokens, stages = _as_jobs(folder, text, order, number)
            whole = sum(stages.values())
        seconds = sum(seconds for stage, seconds in stages.items() if stage != "plan")
        plural = "s" if number > 1 else ""
        yield less_is_better(
            f"count and estimate, {number} worker{plural}",
            seconds,
            first,
            "s",
            tokens=tokens,
            order=order,
            workers=number,
            cores=usable_cores(),
            through="Dask" if has_dask else "plain processes",
            stages=stages,
            whole_program=whole,
        )
        first = first or seconds


def _as_jobs(
    folder: Path, text: Sequence[str], order: int, workers: int
) -> tuple[int, dict[str, float]]:
    """Run each stage as one process for each worker; return the tokens, and each stage's seconds.

    A worker counts one shard and merges one range, with one thread. Planning and estimating are one
    process each, with as many threads as there are workers.
    """
    run, threads = str(folder / "run"), ("--threads", str(workers))
    planned, _, summary = _run(
        folder, [*_train(folder, text, order), "--plan", str(workers), *threads]
    )
    seconds = {"plan": planned.seconds}
    for stage, option in (("count", "--shard"), ("merge", "--range")):
        more = ("--threads", "1") if stage == "count" else ()
        number = summary["shards" if stage == "count" else "ranges"]
        jobs = [(*_PROGRAM, "ngram", stage, run, option, str(i), *more) for i in range(number)]
        # All start at once: a text is cut into at most as many shards and ranges as asked for.
        seconds[stage] = max(cost.seconds for cost in in_threads(run_program, jobs, workers))
    seconds["estimate"] = run_program([*_PROGRAM, "ngram", "estimate", run, *threads]).seconds
    seconds["join"] = run_program([*_PROGRAM, "ngram", "join", run]).seconds
    return summary["tokens"], seconds


def compressed(
    files: Sequence[str], folder: Path, num_tokens: int, order: int, repeat: int
) -> Iterator[Row]:
    """Count and merge with compressed runs; the peer is the same with plain ones."""
    stretches = read_stretches([Path(name) for name in text_of(files, folder, num_tokens)])
    tokenizer = word_tokenizer(stretches, "pretokenized")
    ids = stretches.ids(tokenizer)
    run_bytes: dict[bool, int] = {}

    def stages(packed: bool) -> Stages:
        return Stages(folder / f"stages-{packed}")

    def count(packed: bool) -> None:
        shutil.rmtree(folder / f"stages-{packed}", ignore_errors=True)
        made = Stages.create(
            folder / f"stages-{packed}", ids, order, packed=packed,
            vocab_size=tokenizer.vocab_size, boundary_id=tokenizer.boundary_id,
            num_shards=SHARDS, num_ranges=SHARDS,
        )  # fmt: skip
        for shard in made.shards_left():
            made.count(shard)
        run_bytes[packed] = _size(sorted(made.folder.glob("count-*")))

    def merge(packed: bool) -> None:
        made = stages(packed)
        in_threads(made.merge, made.ranges_left())

    works: dict[str, Work] = {
        f"{name}|{packed}": partial(work, packed)
        for packed in (True, False)
        for name, work in (("count", count), ("merge", merge))
    }
    costs = in_turns(works, repeat)
    settings = {"tokens": len(ids), "order": order, "shards": SHARDS, "threads": usable_cores()}
    for name in ("count", "merge"):
        ours, peer = costs[f"{name}|True"], costs[f"{name}|False"]
        cpu = {"cpu_seconds": ours.cpu_seconds, "peer_cpu_seconds": peer.cpu_seconds}
        yield less_is_better(
            f"{name}, compressed", ours.seconds, peer.seconds, "s", **settings, **cpu
        )
    ours_bytes, peer_bytes = run_bytes[True] / 1e6, run_bytes[False] / 1e6
    yield less_is_better("runs, compressed", ours_bytes, peer_bytes, "MB", **settings)


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


def rates(files: Sequence[str], folder: Path, num_tokens: int, order: int) -> Rates:
    """Run each stage as a command, and measure it."""
    text = text_of(files, folder, num_tokens)
    run = folder / "run"
    planned, most, summary = _run(folder, [*_train(folder, text, order), "--plan", "4"])
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

    That is an upper limit, since n-grams repeat in more text. `workers` count and merge, over a
    network of `bandwidth` bytes/s to each: ids are read, runs written and read, merged counts
    (12 bytes an n-gram) written and read. Reading the text, and estimating, are one job each. That
    a merge takes as long for an n-gram of many more runs is assumed, not measured.
    """
    times = text_bytes / found.text_bytes
    traffic = times * (4 * found.tokens + 2 * found.run_bytes + 2 * 12 * found.ngrams)
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
        "times the measured text": (math.ceil(times), ""),
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
