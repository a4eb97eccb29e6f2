"""`elman bench`: side-by-side measurements against peers."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elman.base.errors import UsageError
from elman.cli.console import number, result, result_json, table, talk
from elman.cli.options import Json

if TYPE_CHECKING:
    from elman.evaluate.measuring import Row

app = typer.Typer(help="Measure side by side with peers.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass


@app.command()
def ngram(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE...]",
            help="Text to measure on, words between spaces; none: sampled from built-in corpora.",
            show_default=False,
        ),
    ] = None,
    tokens: Annotated[str, typer.Option(metavar="N", help="How many tokens to count.")] = "1M",
    order: Annotated[int, typer.Option(metavar="N", min=2, help="Length of the n-grams.")] = 5,
    repeat: Annotated[int, typer.Option(metavar="N", min=1, help="How often, in turns.")] = 3,
    kenlm: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where KenLM's programs are. [default: PATH]"),
    ] = None,
    lmplz_memory: Annotated[
        str, typer.Option(metavar="SIZE", help="What lmplz may use (-S); its own default is 80%.")
    ] = "1G",
    curve: Annotated[
        str | None,
        typer.Option(metavar="N,N...", help="Instead: the cost of a token at sizes 1M,3M,10M."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Work here, and leave it all there. [default: nowhere]"),
    ] = None,
    json: Json = False,
) -> None:
    """Estimate and score n-gram models beside KenLM.

    From text to an ARPA file, to a file that answers queries, and how quickly it answers them. A
    ratio above 1 says that Elman is quicker, or uses less.
    """
    from elman.evaluate import bench_ngram

    def note(text: str) -> None:
        talk(f"· {text}")

    sizes = [_number(size) for size in (curve or tokens).split(",")]
    if len(sizes) > 1 and not curve:
        raise UsageError("--tokens is one number", "give several to --curve")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    place = nullcontext(folder) if folder else tempfile.TemporaryDirectory(prefix="elman-bench-")
    with place as at:
        if curve:
            rows = bench_ngram.curve(
                files or (), Path(at), sizes, order=order, repeat=repeat, note=note
            )
        else:
            found = bench_ngram.KenLM.find(kenlm)
            if found.missing:
                note(found.missing)
            rows = bench_ngram.bench(
                files or (),
                Path(at),
                num_tokens=sizes[0],
                order=order,
                repeat=repeat,
                kenlm=found,
                lmplz_memory=lmplz_memory,
                note=note,
            )
        show(rows, json=json)


def show(rows: Iterable[Row], *, json: bool) -> None:
    """Print the rows of a bench: as a table, or as JSON a line each as they come."""
    if json:
        for row in rows:
            result_json(asdict(row))
        return
    lines = [
        (
            row.name,
            number(row.ours),
            "" if row.peer is None else number(row.peer),
            "" if row.ratio is None else f"{row.ratio:.2f}",
            row.unit,
        )
        for row in rows
    ]
    result(table(lines, header=("what", "ours", "peer", "ratio", "unit")))


def _number(text: str) -> int:
    """A number such as 1000000, 1M or 300k."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM]?)", text.strip())
    if found is None or not float(found[1]):
        raise UsageError(f"'{text}' is not a number of tokens", "write it as 300k or 10M")
    return int(float(found[1]) * {"": 1, "k": 10**3, "m": 10**6}[found[2].lower()])
