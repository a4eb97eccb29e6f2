"""`elman neighbours`: which words of a text mean most nearly what a word means in its sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, cast

import typer

from elman.base.errors import UsageError
from elman.terminal.console import result, result_json, table
from elman.terminal.options import Device, Json, Model
from elman.terminal.stdin import read_lines

if TYPE_CHECKING:
    from elman.evaluate.contextual import Layers, Neighbour

MOST_QUERIES = 20
"""Occurrences of the word in the file whose neighbours are shown."""
CONTEXT = 6
"""Words that are shown to either side."""


def neighbours(
    model: Model,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="The text to look in, a sentence a line; words are cut as the model cuts them.",
            show_default=False,
        ),
    ],
    word: Annotated[
        str, typer.Argument(metavar="WORD", help="The word to look for.", show_default=False)
    ],
    sentences: Annotated[
        list[str] | None,
        typer.Option(
            "--in",
            metavar="SENTENCE",
            help="The word in this sentence; may be repeated. [default: in those of FILE]",
            show_default=False,
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", metavar="K", help="How many neighbours.", min=1)] = 5,
    same: Annotated[
        bool, typer.Option("--same", help="Only other occurrences of the word: which are alike?")
    ] = False,
    layers: Annotated[
        str, typer.Option(metavar="mix|top", help="The vectors: the top layer's, or the mean's.")
    ] = "top",
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Find the words of a text that are nearest to a word in context.

    By cosine of the vectors that `elman embed --layers` writes, of ELMo or, with what stands to the
    left alone, of a language model.
    """
    from elman.api import load
    from elman.evaluate.contextual import nearest_in_context

    handle = load(model, device=device)
    if not hasattr(handle, "contextual"):
        raise UsageError(
            f"{model} is {handle.what}, which gives no vectors of words",
            "use a run of `elman train elmo` or `elman train lm`",
        )
    if file == "-" and not sentences:
        raise UsageError("stdin can be read once, not twice", "add --in SENTENCE")
    wanted = handle.words(word)
    queries = [
        (words, place)
        for words in map(handle.words, sentences or read_lines(file))
        for place, other in enumerate(words)
        if [other] == wanted
    ][:MOST_QUERIES]
    if not queries:
        where = file if not sentences else "the sentence"
        hint = "words are compared as written"
        if len(wanted) != 1:
            hint = f"the model cuts it: {' | '.join(wanted)}"
        raise UsageError(f"'{word}' does not occur in {where}", hint)
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
            {
                "cosine": n.cosine,
                "word": n.word,
                "line": n.line,
                "sentence": " ".join(n.words),
            }
            for n in near
        ],
    }


def _shown(words: Sequence[str], place: int) -> str:
    """The word in brackets, with some of what stands around it."""
    start, end = max(0, place - CONTEXT), place + CONTEXT + 1
    parts = [f"[{w}]" if i == place else w for i, w in enumerate(words) if start <= i < end]
    return " ".join(["..."] * (start > 0) + parts + ["..."] * (end < len(words)))
