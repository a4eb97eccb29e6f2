"""`elman neighbours`: the words of a text that are nearest to a word in its context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, cast

from elman.base.errors import UsageError
from elman.terminal.console import result, result_json, table
from elman.terminal.options import Device, Json, MaxLine, Model, argument, option
from elman.terminal.stdin import read_lines

if TYPE_CHECKING:
    from elman.evaluate.contextual import Layers, Neighbour

MOST_QUERIES = 20
"""Limit on the occurrences of the word whose neighbours are shown."""
CONTEXT = 6
"""Words shown on either side."""


def neighbours(
    model: Model,
    file: Annotated[str, argument("FILE", "The text to search, one sentence per line.")],
    word: Annotated[str, argument("WORD", "The word to look for.")],
    sentences: Annotated[
        list[str] | None,
        option(
            "SENTENCE",
            "The word in this sentence; may be repeated. [default: in those of FILE]",
            "--in",
        ),
    ] = None,
    k: Annotated[int, option("K", "How many neighbours.", "-k", min=1)] = 5,
    same: Annotated[bool, option(None, "Only other occurrences of the word.", "--same")] = False,
    layers: Annotated[str, option("mix|top", "Vectors of the top layer, or the mean.")] = "top",
    device: Device = "auto",
    max_line: MaxLine = None,
    json: Json = False,
) -> None:
    """Find the words of a text nearest to a word in context.

    Nearest by cosine of the vectors that `elman embed --layers` writes. Those of a language model
    depend on the left context only, those of a bidirectional one on the whole sentence.
    """
    from elman.api import load
    from elman.evaluate.contextual import nearest_in_context

    handle = load(model, device=device)
    if not hasattr(handle, "contextual"):
        raise UsageError(
            f"{model} is {handle.what}, which gives no vectors of words",
            "use a language model, recurrent or bidirectional",
        )
    if file == "-" and not sentences:
        raise UsageError("stdin can be read only once", "add --in SENTENCE")
    wanted = handle.words(word)
    if not wanted:
        raise UsageError("there is no word to look for", "write one after FILE")
    queries = [
        (words, place)
        for words in map(handle.words, sentences or read_lines(file))
        for place, other in enumerate(words)
        if [other] == wanted
    ][:MOST_QUERIES]
    if not queries:
        raise UsageError(
            f"'{word}' does not occur in {'the sentence' if sentences else file}",
            "words are compared as written"
            if len(wanted) == 1
            else f"the model splits it: {' | '.join(wanted)}",
        )
    found = nearest_in_context(
        handle.embedder,
        queries,
        map(handle.words, read_lines(file)),
        k=k,
        layers=cast("Layers", layers),
        keep=(lambda words, place: [words[place]] == wanted) if same else None,
    )
    if json:
        result_json([_values(*query, near) for query, near in zip(queries, found, strict=True)])
        return
    for (words, place), near in zip(queries, found, strict=True):
        result(_shown(words, place))
        rows = [(f"  {n.cosine:.4f}", n.line, _shown(n.words, n.place)) for n in near]
        result(table(rows) if rows else "  no other")


def _values(words: Sequence[str], place: int, near: list[Neighbour]) -> dict[str, object]:
    return {
        "sentence": " ".join(words),
        "word": words[place],
        "neighbours": [
            {"cosine": n.cosine, "word": n.word, "line": n.line, "sentence": " ".join(n.words)}
            for n in near
        ],
    }


def _shown(words: Sequence[str], place: int) -> str:
    """Put the word in brackets, between some of its context."""
    start, end = max(0, place - CONTEXT), place + CONTEXT + 1
    parts = [f"[{w}]" if i == place else w for i, w in enumerate(words) if start <= i < end]
    return " ".join(["..."] * (start > 0) + parts + ["..."] * (end < len(words)))
