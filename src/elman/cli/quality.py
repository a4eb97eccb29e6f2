"""`elman quality`: measures of generated text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from elman.terminal.console import (
    number,
    reading_notes,
    result,
    result_json,
    table,
    talk_notes,
    visible,
)
from elman.terminal.options import AsIs, Column, Device, Json, argument, option
from elman.terminal.stdin import in_columns

if TYPE_CHECKING:
    from elman.evaluate.text_quality import TextQuality

LONGEST_QUOTE = 60


def quality(
    text: Annotated[list[str], argument("TEXT...", "Generated texts to compare; - is stdin.")],
    by: Annotated[
        str | None,
        option("MODEL", "Measure the surprisal of the text under this other language model."),
    ] = None,
    against: Annotated[
        list[str] | None,
        option("FILE", "The training text, to see what is copied from it; may be repeated."),
    ] = None,
    unit: Annotated[str, option("word|char", "The unit of n-grams.")] = "word",
    column: Column = None,
    as_is: AsIs = False,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Measure the quality and the diversity of generated text.

    Surprisal under another model, the share of distinct n-grams, repetition, and the share that is
    copied from the training text. Compare texts of the same length with one another, and with a
    text that people wrote.
    """
    from elman.api import LM, load
    from elman.api import quality as measure
    from elman.evaluate.text_quality import check_unit

    check_unit(unit)
    lm = None if by is None else load(by, device=device, kind=LM)
    *texts, training = in_columns(column, *([name] for name in text), against or ())
    found = []
    for names in texts:
        found.append(measure(names, by=lm, against=training, unit=unit, as_is=as_is))
    talk_notes(sorted({note for one in found for note in reading_notes(one.reads_as)}))
    if json:
        objects = [{"text": name, **asdict(one)} for name, one in zip(text, found, strict=True)]
        result_json(objects if len(objects) > 1 else objects[0])
        return
    rows = list(_rows(found))
    result(table(rows, header=("", *text)))


def _rows(found: list[TextQuality]) -> Iterator[list[str]]:
    first = found[0]
    unit = f"{first.unit}s"
    if first.unknown is not None:
        yield ["unknown to the model", *(_share(one.unknown) for one in found)]
    yield [unit, *(number(one.tokens) for one in found)]
    if first.nats_per_token is not None:
        for name in ("nats_per_token", "nats_per_character"):
            yield [name.replace("_", " "), *(f"{getattr(one, name):.4f}" for one in found)]
    for n in max((one.distinct for one in found), key=len):
        yield [f"distinct {n}-grams", *(_share(one.distinct.get(n)) for one in found)]
    yield [f"repeated {first.repeated_order}-grams", *(_share(one.repeated) for one in found)]
    if first.copied is None:
        return
    for n in max((one.copied or {} for one in found), key=len):
        yield [f"copied {n}-grams", *(_share((one.copied or {}).get(n)) for one in found)]
    yield ["longest copied", *(f"{number(one.longest_copied or 0)} {unit}" for one in found)]
    if len(found) == 1:
        text = first.longest_copied_text or ""
        cut = text if len(text) <= LONGEST_QUOTE else text[:LONGEST_QUOTE] + "..."
        yield ["", visible(cut) if cut else ""]


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2%}"
