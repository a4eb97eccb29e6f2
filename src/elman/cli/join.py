"""`elman join`: one index of several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from elman.base.errors import UsageError
from elman.terminal.console import result, result_json, table, talk_notes
from elman.terminal.options import Json, Threads, argument, option


def join(
    models: Annotated[list[str], argument("MODEL...", "Two or more folders of indexes.")],
    out: Annotated[str, option("DIR", "The folder of the index of all texts.")],
    memory: Annotated[
        str | None, option("SIZE", "Merge in this much memory (2G), beyond it on disk.")
    ] = None,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Join indexes of several texts into one.

    All must have the same tokenizer: index each with --tokenizer FILE. The result is the index that
    `elman index` makes of all files in this order.
    """
    if len(models) < 2:
        raise UsageError("there is nothing to join to one index", "name another one")
    from elman.api import load
    from elman.tasks.infinigram.handle import InfinigramHandle
    from elman.tasks.infinigram.joining import join as join_indexes
    from elman.tasks.infinigram.task import summary_rows

    handles = [load(name, kind=InfinigramHandle) for name in models]
    for report in join_indexes(handles, Path(out), memory=memory, num_threads=threads):
        if report.note:
            talk_notes([report.note])
        if report.summary is not None:
            summary = report.summary
    if json:
        result_json(summary)
    else:
        result(table(summary_rows(summary)))
