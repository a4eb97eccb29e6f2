"""`elman ngram`: the stages of counting, one command each, for arrays of jobs on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from elman.base.errors import UsageError
from elman.base.threads import spare_numpy_threads
from elman.terminal.console import result, result_json, table, talk
from elman.terminal.options import Json, Threads, argument, option

Run = Annotated[Path, argument("RUN", "The run folder of elman train ngram --plan N.")]
Memory = Annotated[str | None, option("SIZE", "Keep the memory of the process below this (2G).")]


def count(
    run: Run,
    shard: Annotated[int | None, option("I", "The shard, from 0 on. [default: all left]")] = None,
    threads: Threads = None,
) -> None:
    """Count the n-grams of one shard of the text."""
    stages = _staged(run).stages
    for number in stages.shards_left() if shard is None else [shard]:
        stages.count(number, threads)
    talk(f"{stages.num_shards - len(stages.shards_left())} of {stages.num_shards} shards counted")


def merge(
    run: Run,
    range: Annotated[int | None, option("I", "The range, from 0 on. [default: all left]")] = None,
) -> None:
    """Merge the counts of all shards for one range of first tokens."""
    stages = _staged(run).stages
    for number in stages.ranges_left() if range is None else [range]:
        stages.merge(number)
    talk(f"{stages.num_ranges - len(stages.ranges_left())} of {stages.num_ranges} ranges merged")


def estimate(run: Run, memory: Memory = None, threads: Threads = None) -> None:
    """Estimate probabilities from the merged counts."""
    from elman.ngrams.scratch import check_memory, memory_size

    staged = _staged(run)
    limit = None if memory is None else memory_size(memory)
    if limit is not None:
        check_memory(limit)
    staged.estimate(limit, threads)
    talk("probabilities estimated")


def join(run: Run, json: Json = False) -> None:
    """Complete the run folder, and remove the files of the stages."""
    from elman.runs.lock import locked
    from elman.tasks.ngram.task import fit, summary_rows
    from elman.terminal.progress import Progress

    staged = _staged(run)
    if not staged.is_estimated:
        raise UsageError(
            f"the probabilities of {run} are still to be estimated", f"elman ngram estimate {run}"
        )
    summary: dict[str, Any] = {}
    with locked(run), Progress() as progress:
        for report in fit(staged.config, run, resume=True):
            progress.show(report)
            summary = report.summary or summary
    if json:
        result_json(summary)
    else:
        result(table(summary_rows(summary)))


def _staged(run: Path) -> Any:
    spare_numpy_threads()
    from elman.tasks.ngram.staged import StagedRun

    staged = StagedRun(run)
    if not staged.is_planned:
        raise UsageError(
            f"there are no stages in {run}",
            f"plan them: elman train ngram DATA --out {run} --plan 8",
        )
    return staged
