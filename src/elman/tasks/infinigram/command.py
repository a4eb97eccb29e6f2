"""`elman find`: look words up in the text of an index. `elman join`: one index of several."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from elman.terminal.console import reading_notes, result, result_json, table, talk_notes, visible
from elman.terminal.options import AsIs, Json, Threads, argument, option

if TYPE_CHECKING:
    from elman.evaluate.provenance import Occurrence
    from elman.tasks.infinigram.handle import InfinigramHandle
    from elman.tokens.tokenizer import Tokenizer


def find(
    handle: InfinigramHandle,
    text: Annotated[str, argument("TEXT", "The words to look for.")],
    k: Annotated[int, option("K", "How many continuations to show.", "-k", min=0)] = 10,
    places: Annotated[int, option("N", "How many places to show.", min=0)] = 5,
    as_is: AsIs = False,
    json: Json = False,
) -> None:
    """Find words in the training text, and what follows them.

    MODEL is the folder of an index, which `elman index` or `elman train` made.
    """
    found = handle.find(text, k=k, num_places=places, as_is=as_is)
    if not as_is:
        talk_notes(reading_notes(handle.fitted(text).reads_as))
    talk_notes(_unknown(text, handle.tokenizer if as_is else handle.fitted(text)))
    if json:
        names = ("token", "count", "share")
        objects = [dict(zip(names, row, strict=True)) for row in found.continuations]
        result_json({**asdict(found), "continuations": objects})
        return
    result(f"{found.count:,} in {handle.model.counts.index.num_tokens - 1:,} tokens")
    if found.continuations:
        rows = [
            (visible(token), f"{number:,}", f"{share:.2%}")
            for token, number, share in found.continuations
        ]
        if (more := found.num_continuations - len(rows)) > 0:
            rows.append((f"... {more:,} more", "", ""))
        result("\n" + table(rows, header=("next", "count", "share")))
    if found.places:
        shown = [(_where(one), _quote(one.before, one.text, one.after)) for one in found.places]
        result("\n" + table(shown, header=("place", "text")))


def join(
    handles: list[InfinigramHandle],
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
    from elman.tasks.infinigram.joining import join as join_indexes
    from elman.tasks.infinigram.task import summary_rows

    for report in join_indexes(handles, Path(out), memory=memory, num_threads=threads):
        if report.note:
            talk_notes([report.note])
        if report.summary is not None:
            summary = report.summary
    if json:
        result_json(summary)
    else:
        result(table(summary_rows(summary)))


def _unknown(text: str, tokenizer: Tokenizer) -> list[str]:
    """Say which words of a text are found as the unknown token; not if it was asked for."""
    if tokenizer.unknown_id is None:
        return []
    name = tokenizer.token(tokenizer.unknown_id)
    ids, spans = tokenizer.encode_spans(text)
    read = zip(ids.tolist(), spans, strict=True)
    words = [text[start:end] for id_, (start, end) in read if id_ == tokenizer.unknown_id]
    listed = ", ".join(dict.fromkeys(word for word in words if word != name))
    found_as = f"unknown, so looked up as {name}, like every unknown word of the text"
    return [f"{found_as}: {listed}"] if listed else []


def _where(one: Occurrence) -> str:
    return f"token {one.position:,}" if one.file is None else f"{one.file}:{one.line}"


def _quote(before: str, text: str, after: str) -> str:
    inside = text.strip()
    start = text.index(inside)
    quoted = f"{before}{text[:start]}[{inside}]{text[start + len(inside) :]}{after}"
    return " ".join(quoted.split())
