"""`elman embed`: vectors of words, of tokens in context, and of whole lines."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from elman.base.errors import UsageError
from elman.base.files import replacing
from elman.cli.console import result, result_json, result_json_list, table, talk
from elman.cli.next_token import visible
from elman.cli.options import Device, Json, Model
from elman.cli.stdin import read_lines

if TYPE_CHECKING:
    from elman.api.language_model import LM, Kind, Vectors


SUFFIXES = (".npz", ".safetensors")


def embed(
    model: Model,
    items: Annotated[
        list[str],
        typer.Argument(
            metavar="WORD... | FILE|-",
            help="Words to look at; or, with --out or --kind, a file of texts, one per line.",
            show_default=False,
        ),
    ],
    kind: Annotated[
        str | None,
        typer.Option(
            metavar="word|token|sequence",
            help="word: one vector per token, whatever its context; token: one per token in its "
            "left context; sequence: one per line. [default: word, with --out sequence]",
            show_default=False,
        ),
    ] = None,
    neighbours: Annotated[
        int, typer.Option(metavar="K", help="How many nearest words to show.", min=0)
    ] = 10,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the lines' vectors here: .npz or .safetensors."),
    ] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Show neighbours of words, or write vectors of lines.

    In a file of vectors the arrays are named 0, 1, ... for the lines: (hidden,) for a sequence,
    (tokens, width) for words and tokens.
    """
    from elman.api import LM, load

    if out is None and kind in (None, "word"):
        _show_words(load(model, device=device, kind=LM), items, neighbours, json)
        return
    if len(items) != 1:
        raise UsageError("the vectors of lines come from one file", "name one file, or - for stdin")
    if out is None and not json:
        raise UsageError("it is not said where the vectors go", "add --out vectors.npz, or --json")
    if out is not None and out.suffix not in SUFFIXES:
        raise UsageError(
            f"{out} is not a kind of file for vectors", "end the name in .npz or .safetensors"
        )
    lm = load(model, device=device, kind=LM)
    vectors = lm.embeddings(read_lines(items[0]), kind=cast("Kind", kind or "sequence"))
    if out is None:
        result_json_list(vector.tolist() for vector in vectors)
    else:
        talk(f"{_write(out, vectors):,} lines")
        result(str(out))


def _show_words(lm: LM, words: list[str], k: int, json: bool) -> None:
    found = {word: lm.neighbours(word, k) for word in words}
    if json:
        result_json(
            [
                {
                    "word": word,
                    "vector": lm.word_vector(word).tolist(),
                    "neighbours": [{"token": token, "cosine": cosine} for token, cosine in near],
                }
                for word, near in found.items()
            ]
        )
        return
    rows = [
        (visible(word), visible(token), f"{cosine:.4f}")
        for word, near in found.items()
        for token, cosine in near
    ]
    result(table(rows, header=("word", "neighbour", "cosine")))


def _write(path: Path, vectors: Iterator[Vectors]) -> int:
    """Write one array per line; the result is how many. An .npz is written as the arrays come."""
    with replacing(path) as temporary:
        if path.suffix == ".safetensors":
            from safetensors.numpy import save_file

            arrays = {str(index): vector for index, vector in enumerate(vectors)}
            save_file(arrays, temporary)
            return len(arrays)
        from numpy.lib.format import write_array

        count = 0
        with zipfile.ZipFile(temporary, "w") as archive:
            for vector in vectors:
                with archive.open(f"{count}.npy", "w", force_zip64=True) as entry:
                    write_array(entry, vector)
                count += 1
        return count
