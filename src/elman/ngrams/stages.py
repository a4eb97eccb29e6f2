"""Count a text in stages over the files of a folder.

    plan      the token ids, cut into shards; the vocabulary, cut into ranges of first tokens
    count     the n-grams that begin in one shard: a sorted run
    merge     the n-grams that begin with one range of tokens, from all runs
    join      all ranges as one trie

The shards are independent of one another, and so are the ranges: processes on several machines can
work on a shared folder. A stage writes to a folder of another name, which is renamed when it is
complete. So a stage that is done is not done again, one that was killed is, and one that runs twice
at the same time does no harm. The trie is that of `counting.count`, bit for bit. The plan says
whether runs are compressed (`packed_runs`).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.base.errors import ElmanError, UsageError
from elman.base.files import owned_folder, write_text
from elman.base.memory import trim
from elman.base.threads import default_threads, in_threads
from elman.ngrams.counting import Ids, count, count_starts
from elman.ngrams.merging import MOST_MEMORY, merge
from elman.ngrams.packed_runs import PackedRun, can_pack, packed_sizes
from elman.ngrams.scratch import Scratch
from elman.ngrams.trie import CountTrie, check_number, link
from elman.ngrams.trie_files import TrieFiles

PLAN_FILE = "plan.json"
FORMAT = 1
IDS_FILE = "text.ids"
_SIZES_FILE = "sizes.json"
_JOINED = "trie"
_STRETCH = 1 << 20
_SAMPLE = 1 << 20
"""Tokens from which the disk that is needed is estimated, at most."""


@dataclass(frozen=True)
class Plan:
    """How a text is divided."""

    order: int
    vocab_size: int
    boundary_id: int
    num_tokens: int
    shards: list[int]
    """(shards + 1,) where each begins in the text."""
    ranges: list[int]
    """(ranges + 1,) the first token of each."""
    about: dict[str, Any] = field(default_factory=dict)
    """What the caller records."""
    packed: bool = False
    """Whether runs are compressed."""
    format: int = FORMAT


class Stages:
    """The stages of counting one text."""

    def __init__(self, folder: Path) -> None:
        """Open a folder that has a plan."""
        self.folder = folder
        try:
            found = json.loads((folder / PLAN_FILE).read_text())
            if found.get("format") != FORMAT:
                raise ElmanError(
                    f"{folder} has format {found.get('format')}; this version reads {FORMAT}",
                    "count the text again",
                )
            self.plan = Plan(**found)
        except FileNotFoundError as error:
            raise UsageError(f"there is no plan in {folder}", "make one with --plan N") from error
        except (ValueError, TypeError, AttributeError) as error:
            raise ElmanError(f"{folder / PLAN_FILE} is damaged", "count the text again") from error

    @classmethod
    def create(
        cls,
        folder: Path,
        ids: Ids,
        order: int,
        *,
        vocab_size: int,
        boundary_id: int,
        num_shards: int,
        num_ranges: int,
        about: dict[str, Any] | None = None,
        packed: bool = False,
    ) -> Stages:
        """Write the ids and the plan, into a folder that may have other files.

        `packed` compresses the runs, which needs zstandard.
        """
        folder.mkdir(parents=True, exist_ok=True)
        counts = np.zeros(vocab_size, np.int64)
        with (folder / IDS_FILE).open("wb") as file:
            for start in range(0, len(ids), _STRETCH):
                some = np.asarray(ids[start : start + _STRETCH])
                counts += np.bincount(some, minlength=vocab_size)
                file.write(some.astype(_dtype(vocab_size)).data)
        plan = Plan(
            order, vocab_size, boundary_id, len(ids),
            _shares(np.linspace(0, len(ids), max(1, min(num_shards, len(ids))) + 1)),
            _balanced(counts, num_ranges), about or {}, packed,
        )  # fmt: skip
        write_text(folder / PLAN_FILE, json.dumps(asdict(plan)))
        return cls(folder)

    @property
    def num_shards(self) -> int:
        return len(self.plan.shards) - 1

    @property
    def num_ranges(self) -> int:
        return len(self.plan.ranges) - 1

    @property
    def is_merged(self) -> bool:
        """Whether all ranges are merged, and maybe joined already."""
        return (self.folder / _SIZES_FILE).exists() or all(
            self.range_files(number).folder.exists() for number in range(self.num_ranges)
        )

    def shards_left(self) -> list[int]:
        """The shards that are still to be counted."""
        if self.is_merged:
            return []
        return [i for i in range(self.num_shards) if not self.run_files(i).folder.exists()]

    def ranges_left(self) -> list[int]:
        """The ranges that are still to be merged."""
        if self.is_merged:
            return []
        return [i for i in range(self.num_ranges) if not self.range_files(i).folder.exists()]

    @property
    def ids_dtype(self) -> np.dtype[Any]:
        return _dtype(self.plan.vocab_size)

    def ids(self, mapped: Callable[..., NDArray[Any]] | None = None) -> Ids:
        """The token ids, as a mapped file."""
        dtype = self.ids_dtype
        if not self.plan.num_tokens:
            return np.empty(0, dtype)
        if mapped is not None:
            return mapped(self.folder / IDS_FILE, dtype)
        return np.memmap(self.folder / IDS_FILE, dtype, "r")

    def count(self, shard: int, num_threads: int | None = None) -> None:
        """Count the n-grams that begin in a shard."""
        self._check("shard", shard, self.num_shards)
        if shard not in self.shards_left():
            return
        plan = self.plan
        start, end = plan.shards[shard : shard + 2]
        dtype = self.ids_dtype
        size = min(end + plan.order - 1, plan.num_tokens) - start
        text = np.fromfile(self.folder / IDS_FILE, dtype, size, offset=start * dtype.itemsize)
        if start == 0:
            text = np.concatenate([np.array([plan.boundary_id], dtype), text])
        run = count_starts(
            text, end - start + (start == 0), plan.order, num_threads=num_threads,
            vocab_size=plan.vocab_size, boundary_id=plan.boundary_id,
        )  # fmt: skip
        if start == 0:
            run.levels[0].counts[plan.boundary_id] -= 1  # the one in front ends no line
        with self.making(self.run_files(shard).folder) as made:
            self.run_files(shard, made).write(run)

    def merge(self, number: int, memory: int = MOST_MEMORY) -> None:
        """Merge a range of first tokens from the runs of all shards."""
        self._check("range", number, self.num_ranges)
        if number not in self.ranges_left():
            return
        if left := self.shards_left():
            raise UsageError(
                f"{len(left)} of {self.num_shards} shards are still to be counted",
                f"count them first; the first is shard {left[0]}",
            )
        runs = [self.run_files(shard) for shard in range(self.num_shards)]
        with self.making(self.range_files(number).folder) as made:
            start, end = self.plan.ranges[number], self.plan.ranges[number + 1]
            merge(runs, start, end, TrieFiles(made, self.plan.order), memory)

    def join(self, num_threads: int | None = None) -> None:
        """Put the merged ranges together; the files of earlier stages are removed."""
        if left := self.ranges_left():
            raise UsageError(
                f"{len(left)} of {self.num_ranges} ranges are still to be merged",
                f"merge them first; the first is range {left[0]}",
            )
        sizes_file = self.folder / _SIZES_FILE
        if not sizes_file.exists():
            sizes = [self.range_files(i).sizes() for i in range(self.num_ranges)]
            write_text(sizes_file, json.dumps(sizes))
        for shard in range(self.num_shards):
            shutil.rmtree(self.run_files(shard).folder, ignore_errors=True)
        starts_RL: NDArray[np.int64] = np.cumsum(
            [[0] * self.plan.order, *json.loads(sizes_file.read_text())], axis=0
        )
        check_number(int(starts_RL[-1].sum()))
        joined = TrieFiles(self.folder / _JOINED, self.plan.order)
        joined.folder.mkdir(exist_ok=True)

        def place(number: int) -> None:
            # A range that is in place has another name until its files are removed.
            files, done = self.range_files(number), self.folder / f"joined-{number:05}"
            if files.folder.exists():
                files.copy_to(joined, starts_RL[number].tolist())
                os.rename(files.folder, done)
            shutil.rmtree(done, ignore_errors=True)

        joined.allocate(starts_RL[-1].tolist())
        in_threads(place, range(self.num_ranges), num_threads)

    def trie(self, scratch: Scratch, num_threads: int | None = None) -> CountTrie:
        """Open the joined trie, with suffix links."""
        trie = TrieFiles(self.folder / _JOINED, self.plan.order).open(
            scratch.open, self.plan.boundary_id
        )
        trie.room = scratch
        link(trie, num_threads)
        return trie

    def clear(self) -> None:
        """Remove the trie: what comes after does not need it."""
        shutil.rmtree(self.folder / _JOINED, ignore_errors=True)

    def run_files(self, shard: int, folder: Path | None = None) -> TrieFiles | PackedRun:
        kind = PackedRun if self.plan.packed else TrieFiles
        return kind(folder or self.folder / f"count-{shard:05}", self.plan.order)

    def range_files(self, number: int) -> TrieFiles:
        return TrieFiles(self.folder / f"merge-{number:05}", self.plan.order)

    def _check(self, what: str, number: int, size: int) -> None:
        if not 0 <= number < size:
            raise UsageError(f"there is no {what} {number}", f"they are 0 to {size - 1}")

    @contextmanager
    def making(self, folder: Path) -> Iterator[Path]:
        """Yield another folder, which is renamed on success."""
        with owned_folder(self.folder) as owned:
            made = owned / "trie"
            made.mkdir()
            yield made
            try:
                os.rename(made, folder)
            except OSError:
                if not folder.exists():  # else another process was faster
                    raise


def count_within(
    ids: Ids,
    order: int,
    scratch: Scratch,
    memory: int,
    *,
    vocab_size: int,
    boundary_id: int,
    num_threads: int | None = None,
) -> CountTrie:
    """Like `counting.count`, in about `memory` bytes, with the trie's arrays on disk."""
    num_shards, num_ranges = divided(len(ids), order, memory, num_threads)
    stages = Stages.create(
        scratch.path(), ids, order,
        vocab_size=vocab_size, boundary_id=boundary_id,
        num_shards=num_shards, num_ranges=num_ranges,
    )  # fmt: skip
    for _ in work(stages, memory, num_threads):
        pass
    return stages.trie(scratch, num_threads)


def work(stages: Stages, memory: int, num_threads: int | None = None) -> Iterator[str]:
    """Run the stages that are left in this process; yield what was done."""
    num_threads = num_threads or default_threads()
    for shard in (left := stages.shards_left()):
        stages.count(shard, num_threads)
    if left:
        trim()
        yield f"counted {len(left)} of {stages.num_shards} shards"
    if left := stages.ranges_left():
        share = min(MOST_MEMORY, memory // num_threads)
        in_threads(lambda number: stages.merge(number, share), left, num_threads)
        trim()
        yield f"merged {len(left)} of {stages.num_ranges} ranges"
    stages.join(num_threads)


def bytes_per_token(order: int) -> int:
    """Estimate the memory that counting and smoothing take per token, without the disk."""
    return 30 + 16 * (order - 1)


def divided(
    num_tokens: int, order: int, memory: int, num_threads: int | None = None
) -> tuple[int, int]:
    """Return the numbers of shards and ranges with which a process can count in `memory` bytes."""
    num_threads = num_threads or default_threads()
    num_shards = -(-num_tokens * bytes_per_token(order) // max(1, memory))
    return max(1, num_shards), 4 * num_threads if num_threads > 1 else 1


@dataclass(frozen=True)
class Needed:
    """Estimates of the bytes that a text takes on disk."""

    packed: bool
    """Whether runs are compressed."""
    runs: int
    """Of the counts of all shards."""
    most: int
    """Of the stages and the model, at most at a time."""
    ngrams: list[int]
    """The number of n-grams of each length."""


def disk_needed(
    ids: Ids,
    order: int,
    num_shards: int,
    *,
    memory: int | None = None,
    packed: bool | None = None,
    **sizes: Any,
) -> Needed:
    """Estimate the disk that the stages and the model take, in about `memory` bytes.

    The number of n-grams of each length grows by a power of that of the tokens (Heaps' law), which
    two samples of the text give. Unless `packed` says it, runs are to be compressed where that
    lowers the most disk at a time: it takes a tenth of the time, and where few shards have few runs
    the model takes more disk than they do.
    """
    large = min(len(ids), _SAMPLE)
    if memory is not None:  # of two tries at a time
        large = min(large, max(1, memory // (2 * bytes_per_token(order))))
    if not large:
        return Needed(False, 0, 0, [0] * order)
    tries = [count(np.asarray(ids[:n]), order, **sizes) for n in (max(1, large // 2), large)]
    found = [np.array([len(level) for level in trie.levels], float) for trie in tries]
    powers = np.clip(np.log2(found[1] / found[0]), 0, 1)

    def ngrams(num_tokens: float) -> NDArray[np.float64]:
        numbers = found[1] * (num_tokens / large) ** powers
        numbers[0] = sizes["vocab_size"]  # every run has them all
        return np.asarray(numbers)

    whole, inner = ngrams(len(ids)), np.arange(order) + 1 < order
    # Of an n-gram: word, count and continuations, which the longest have not. Estimating adds a
    # link, a probability and a back-off, and the model.
    merged = np.where(inner, 12.0, 8.0)
    estimated = merged + np.where(inner, 32.0, 20.0)
    text = len(ids) * _dtype(sizes["vocab_size"]).itemsize

    def needed(packed: bool) -> Needed:
        stored = packed_sizes(tries[1]) / found[1] if packed else merged
        runs = num_shards * float(ngrams(len(ids) / num_shards) @ stored)
        most = text + max(runs + float(whole @ merged), float(whole @ estimated))
        return Needed(packed, int(runs), int(most), [int(number) for number in whole])

    if packed is not None:
        return needed(packed)
    plain = needed(False)
    return min(plain, needed(True), key=lambda one: one.most) if can_pack() else plain


def _dtype(vocab_size: int) -> np.dtype[Any]:
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.int32)


def _shares(cuts: NDArray[np.float64]) -> list[int]:
    found: list[int] = cuts.round().astype(np.int64).tolist()
    return found


def _balanced(counts: NDArray[np.int64], number: int) -> list[int]:
    """Cut the vocabulary into ranges of about as many tokens of the text each."""
    totals = np.cumsum(counts)
    goals = np.arange(1, number) * (int(counts.sum()) / number)
    inner = np.searchsorted(totals, goals, side="left") + 1
    return [0, *np.unique(inner[inner < len(counts)]).tolist(), len(counts)]
