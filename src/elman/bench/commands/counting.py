"""`elman bench counting` and `elman bench index`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from elman.base.errors import UsageError
from elman.bench.measuring import work_folder
from elman.bench.rows import show
from elman.bench.sizes import parse_count
from elman.terminal.options import Json, argument, option


def counting(
    files: Annotated[
        list[str] | None,
        argument(
            "[FILE...]", "Text of words between spaces. [default: sampled from built-in corpora]"
        ),
    ] = None,
    tokens: Annotated[str, option("N,N...", "Tokens of sampled text.")] = "1M",
    order: Annotated[int, option("N", "Length of the n-grams.", min=2)] = 5,
    memory: Annotated[str, option("SIZE", "Memory to count in.")] = "1G",
    workers: Annotated[
        str | None, option("N,N...", "Measure N processes of this machine instead.")
    ] = None,
    lmplz: Annotated[
        str | None, option("SIZE", "Measure text to ARPA instead, beside lmplz -S SIZE.")
    ] = None,
    compressed: Annotated[
        bool, option(None, "Measure compressed runs beside plain ones instead.", "--compressed")
    ] = False,
    project: Annotated[
        str | None, option("BYTES", "Compute what a text of this size needs (1T), from one.")
    ] = None,
    machines: Annotated[int, option("N", "With --project: workers that count.", min=1)] = 100,
    gigabytes: Annotated[
        float, option("GB", "With --project: GB/s of the network to a worker.")
    ] = 1.0,
    repeat: Annotated[int, option("N", "With --lmplz or --compressed: rounds.", min=1)] = 3,
    folder: Annotated[
        Path | None, option("DIR", "Keep all files here. [default: a temporary folder]")
    ] = None,
    json: Json = False,
) -> None:
    """Count n-grams within a limit of memory: time, memory and disk.

    From text to a model that answers, once for each size. With --workers, on processes of this
    machine: workers of Dask, or without it the commands of elman ngram, one process for each worker
    and stage. With --project, each stage is measured and a larger text computed from it.
    """
    from elman.bench import counting as bench

    sizes = [parse_count(size) for size in tokens.split(",")]
    if len(sizes) > 1 and (workers or project or lmplz or compressed or files):
        raise UsageError("several sizes need sampled text, and no other option", "give one size")
    if gigabytes <= 0:
        raise UsageError("--gigabytes must be above 0", "1 is a network of 10 Gbit/s")
    with work_folder(folder) as at:
        if project:
            found = bench.rates(files or (), at, sizes[0], order)
            rows = bench.project(found, parse_count(project), machines, gigabytes * 1e9)
        elif lmplz:
            rows = bench.beside(files or (), at, sizes[0], order, memory, lmplz, repeat)
        elif compressed:
            rows = bench.compressed(files or (), at, sizes[0], order, repeat)
        elif workers:
            numbers = [parse_count(number) for number in workers.split(",")]
            rows = bench.scaling(files or (), at, sizes[0], order, numbers)
        else:
            rows = bench.curve(files or (), at, sizes, order, memory)
        show(rows, json=json)


def index(
    file: Annotated[
        str | None, argument("[FILE]", "Text. [default: sampled from built-in corpora]")
    ] = None,
    tokens: Annotated[str, option("N", "Tokens of sampled text.")] = "1M",
    memory: Annotated[str, option("SIZE", "Memory to sort in.")] = "1G",
    queries: Annotated[int, option("N", "Searches of each length.", min=1)] = 500,
    join: Annotated[
        int, option("N", "Index N parts of the text and join them, beside all at once.", min=0)
    ] = 0,
    made: Annotated[
        bool, option(None, "Only search in the index that the folder has.", "--made")
    ] = False,
    folder: Annotated[
        Path | None, option("DIR", "Keep all files here. [default: a temporary folder]")
    ] = None,
    json: Json = False,
) -> None:
    """Index a text: time, memory, size, and how soon it answers."""
    from elman.bench import indexing as bench

    with work_folder(folder) as at:
        files, size = [file] if file else (), parse_count(tokens)
        if join:
            show(bench.joined(files, at, size, memory, join), json=json)
        else:
            show(bench.measure(files, at, size, memory, queries, made), json=json)
