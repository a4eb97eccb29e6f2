"""`elman pairs`: minimal pairs, and conditions by item, from a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from elman.base.counting import counted
from elman.base.errors import ElmanError, UsageError, nearest
from elman.cli.sentences import (
    Column,
    Regions,
    Separator,
    With,
    check_separator,
    in_utf8,
    open_readers,
    opened,
    regions_of,
)
from elman.evaluate.policies import Policies
from elman.terminal.console import result, result_json, table, talk_notes
from elman.terminal.options import (
    AsIs,
    Device,
    Encoding,
    Json,
    Label,
    Model,
    Shown,
    argument,
    option,
    with_options,
)
from elman.text.tables import Row, Table

if TYPE_CHECKING:
    from elman.evaluate.pairs import Contrast
    from elman.evaluate.predictors import Item

NAMES = (("sentence_good", "sentence_bad"), ("good", "bad"), ("grammatical", "ungrammatical"))
"""Columns of pairs that need not be named."""


@with_options(
    Policies, "base", "boundary", "include_end", "context", include_end=Shown(default="no-end")
)
def pairs(
    model: Model,
    file: Annotated[str, argument("TABLE|-", "A table: CSV, TSV or JSON lines, with a header.")],
    *,
    options: dict[str, Any],
    good: Annotated[str | None, option("NAME", "The column of expected sentences.")] = None,
    bad: Annotated[str | None, option("NAME", "The column of the others.")] = None,
    column: Column = None,
    item: Annotated[
        str, option("NAME", "With --column: the column that says which sentences belong together.")
    ] = "item",
    condition: Annotated[str, option("NAME", "With --column: the column of conditions.")] = (
        "condition"
    ),
    expected: Annotated[
        str | None, option("NAME", "The condition to compare the others with. [default: the first]")
    ] = None,
    regions: Regions = None,
    separator: Separator = None,
    region: Annotated[
        str | None, option("NAME|N", "Compare this region; else the whole sentence.")
    ] = None,
    by: Annotated[str | None, option("NAME", "Report each value of this column too.")] = None,
    beside: With = None,
    as_is: AsIs = False,
    label: Label = None,
    encoding: Encoding = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Compare the surprisal of sentences that differ in one thing.

    A row of the table is a pair, with a column for each sentence (--good, --bad), or one sentence
    with its item and condition (--column). Accuracy is the share of items whose expected sentence
    is less surprising (ties count as half), and the difference is the mean over items of the other
    sentence's surprisal minus the expected one's, both with 95 % intervals.
    """
    from elman.evaluate.predictors import Asked, Item, measure

    policies = {"include_end": False, **options}
    Policies(**policies)
    check_separator(separator)
    if region is not None and regions is None and separator is None:
        raise UsageError("--region needs --regions or --separator", "say how sentences are divided")
    with opened(in_utf8(file, encoding)) as rows:
        if column is None and regions is None:
            read = _in_pairs(rows, good, bad, separator)
        else:
            if good or bad:
                raise UsageError("--good and --bad are columns of pairs", "drop --column")
            parts = regions_of(rows, column, regions, separator)
            read = _in_conditions(rows, parts, item, condition)
        if by is not None:
            rows.check([by])

        def items() -> Iterator[Item]:
            return (
                Item({"key": key, "condition": name, "group": row[by] if by else ""}, line, texts)
                for line, row, sentences in read()
                for key, name, texts in sentences
            )

        names = [model, *(beside or ())]
        readers = open_readers(names, file, items, device=device, as_is=as_is, label=label)
        unit = "region" if region is not None else "line"
        asked = Asked(unit=unit, policies=policies)
        found = _Found()
        for sentence, row in measure(items(), readers, asked):
            found.regions[row.get("region", "")] = None
            if region is None or row["region"] == region:
                surprisals = [row[f"surprisal{reader.suffix}"] for reader in readers]
                found.add(**sentence.carried, surprisals=surprisals)
    contrasts = found.contrasts(names, expected, region)
    if json:
        result_json([asdict(one) for one in contrasts])
        return
    result(table(*_rows(contrasts, Policies(**policies).base)))
    if any(one.ties for one in contrasts):
        talk_notes(["ties are equally surprising sentences; they count as half"])
    if any(one.items == 1 for one in contrasts):
        talk_notes(["one item has no interval of the difference"])
    talk_notes(found.notes)


Sentence = tuple[Any, str, list[tuple[str, str]]]
"""The item, the condition, and the regions."""
Read = Callable[[], Iterator[tuple[int, Row, list[Sentence]]]]


def _in_pairs(rows: Table, good: str | None, bad: str | None, separator: str | None) -> Read:
    """Read a table with two sentences in a row."""
    if good is None and bad is None:
        known = [pair for pair in NAMES if set(pair) <= set(rows.names)]
        if not known:
            raise UsageError(
                f"which columns of {rows.path} have the sentences?",
                "name two with --good and --bad, or one with --column; it has "
                + ", ".join(rows.names),
            )
        good, bad = known[0]
    if good is None or bad is None:
        raise UsageError("a pair has two columns", "give both --good and --bad")
    divided = [(name, regions_of(rows, name, None, separator)) for name in (good, bad)]
    return lambda: (
        (line, row, [(line, name, parts(row)) for name, parts in divided]) for line, row in rows
    )


def _in_conditions(
    rows: Table, parts: Callable[[Row], list[tuple[str, str]]], item: str, condition: str
) -> Read:
    """Read a table with one sentence in a row."""
    rows.check([item, condition])
    return lambda: ((line, row, [(row[item], row[condition], parts(row))]) for line, row in rows)


@dataclass
class _Means:
    total: float = 0.0
    number: int = 0


class _Found:
    """Surprisals by model, item and condition."""

    def __init__(self) -> None:
        self.groups: dict[str, None] = {}
        self.conditions: dict[str, None] = {}
        self.regions: dict[str, None] = {}
        self.notes: list[str] = []
        self._values: dict[tuple[int, str, Any, str], _Means] = {}
        self._keys: dict[tuple[str, Any], None] = {}

    def add(self, *, key: Any, condition: str, group: str, surprisals: list[float | None]) -> None:
        self.groups[group] = self.conditions[condition] = None
        self._keys[group, key] = None
        for place, surprisal in enumerate(surprisals):
            means = self._values.setdefault((place, group, key, condition), _Means())
            means.total += math.nan if surprisal is None else surprisal
            means.number += 1

    def contrasts(
        self, models: list[str], expected: str | None, region: str | None
    ) -> list[Contrast]:
        from elman.evaluate.pairs import contrast

        if not self.conditions and region is not None:
            known = list(self.regions)
            raise UsageError(f"no sentence has the region '{region}'", nearest(region, known))
        if not self.conditions:
            raise ElmanError("the table has no sentences", "check the names of the columns")
        names = list(self.conditions)
        first = names[0] if expected is None else expected
        if first not in names:
            raise UsageError(f"no sentence has the condition '{first}'", nearest(first, names))
        if len(names) < 2:
            raise UsageError(f"all sentences have the condition '{first}'", "give two conditions")
        made, left_out = [], 0
        groups = [*self.groups, *([None] if len(self.groups) > 1 else [])]
        for place, model in enumerate(models):
            for other in (name for name in names if name != first):
                for group in groups:
                    keys = [key for key in self._keys if group is None or key[0] == group]
                    found = [
                        (self._mean(place, key, first), self._mean(place, key, other))
                        for key in keys
                    ]
                    whole = [
                        (one, two) for one, two in found if not (math.isnan(one) or math.isnan(two))
                    ]
                    left_out += len(found) - len(whole) if group is None or len(groups) == 1 else 0
                    if whole:
                        name = "all" if group is None else group
                        about = {"model": model, "group": name, "expected": first, "other": other}
                        made.append(contrast(whole, **about))
        if left_out:
            self.notes.append(f"{counted(left_out, 'item')} left out: a sentence is missing")
        if not made:
            raise ElmanError(
                "no item has sentences in two conditions",
                "check --item, or fill both columns of each pair",
            )
        return made

    def _mean(self, place: int, key: tuple[str, Any], condition: str) -> float:
        means = self._values.get((place, *key, condition))
        return means.total / means.number if means else math.nan


def _rows(contrasts: list[Contrast], base: str) -> tuple[list[tuple[Any, ...]], list[str]]:
    """The rows and the header of the printed table; columns with one value are left out."""
    from elman.evaluate.surprisal import UNITS

    header = ["model", "group", "contrast", "items", "ties", "accuracy", "95 %"]
    header += [f"difference in {UNITS[base]}", "95 %"]
    rows = [
        (
            one.model,
            one.group,
            f"{one.other} - {one.expected}",
            one.items,
            one.ties,
            f"{one.accuracy:.1%}",
            f"{one.accuracy_low:.1%} to {one.accuracy_high:.1%}",
            f"{one.difference:.3f}",
            "none"
            if math.isinf(one.low) and math.isinf(one.high)
            else f"{one.low:.3f} to {one.high:.3f}",
        )
        for one in contrasts
    ]
    kept = [i for i in range(len(header)) if i > 2 or len({row[i] for row in rows}) > 1 or i == 2]
    return [tuple(row[i] for i in kept) for row in rows], [header[i] for i in kept]
