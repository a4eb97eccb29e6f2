"""Surprisal and other predictors of reading times, for sentences from a table.

A sentence may be divided into regions. Rows are words, tokens, regions or whole sentences; each has
its place, and then:

    surprisal, unknown                  for each model
    entropy, entropy_reduction          for each model, if asked for
    length                              characters, without the marks around a word
    log_frequency                       log of (count + 1) / (words + types + 1) of a corpus
    prev1_surprisal, prev2_length, ...  the same of the rows before it in the sentence: spill-over

In a region, surprisal and entropy reduction are summed, entropy is that before its first word,
length counts all characters, and log frequency is the mean over words.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from elman.base.errors import UsageError
from elman.evaluate.surprisal import BASES, Row, surprisals
from elman.models.interface import LanguageModel
from elman.text.sources import file_lines
from elman.tokens.tokenizer import Tokenizer

CHUNK = 512
"""Sentences that are scored together."""
_AROUND = re.compile(r"^[\W_]+|[\W_]+$")


@dataclass(frozen=True)
class Item:
    """A sentence in regions, and what is carried through with it."""

    carried: Mapping[str, Any]
    line: int
    """Line number in the file, from 1."""
    regions: Sequence[tuple[str, str]]
    """Names and texts; a whole sentence is a single region."""

    @property
    def text(self) -> str:
        return " ".join(text for _, text in self.regions if text)

    def ends(self) -> list[int]:
        """Where the regions end in the text."""
        ends, place = [], 0
        for _, text in self.regions:
            place += len(text) + bool(place and text)
            ends.append(place)
        return ends


@dataclass(frozen=True)
class Reader:
    """A model that reads the sentences."""

    model: LanguageModel
    tokenizer: Tokenizer
    suffix: str = ""
    """Of its columns, where there are several models."""


class Frequencies:
    """Word counts of a corpus, without case and without the marks around words."""

    def __init__(self, files: Iterable[Path]) -> None:
        self.counts: Counter[str] = Counter()
        for file in files:
            for line in file_lines(file):
                self.counts.update(map(bare, line.lower().split()))
        self.total = self.counts.total()

    def log(self, word: str, base: str) -> float:
        share = (self.counts[bare(word.lower())] + 1) / (self.total + len(self.counts) + 1)
        return math.log(share) / BASES[base]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What rows are, and which predictors they have."""

    unit: str = "word"
    """word, token, region or line (the whole sentence)."""
    policies: Mapping[str, Any] = field(default_factory=dict)
    """Those of `surprisals`, without the unit."""
    spillover: int = 0
    """Number of rows before, whose predictors are repeated."""
    frequencies: Frequencies | None = None

    @property
    def base(self) -> str:
        return str(self.policies.get("base", "2"))


def bare(word: str) -> str:
    """A word without the marks around it; marks alone stay."""
    return _AROUND.sub("", word) or word


def measure(
    items: Iterable[Item], readers: Sequence[Reader], asked: Asked
) -> Iterator[tuple[Item, dict[str, Any]]]:
    """Yield rows, each with its item, in order."""
    if asked.unit == "token" and len({reader.tokenizer.hash for reader in readers}) > 1:
        raise UsageError(
            "the models have different tokens, which do not fit in one table",
            "use --unit word, or models with the same tokenizer",
        )
    waiting = iter(items)
    # Sentences that are read as one text are scored in one go.
    size = None if asked.policies.get("carry") else CHUNK
    while chunk := list(islice(waiting, size)):
        texts = [item.text.replace("\n", " ") for item in chunk]
        found = [_rows(reader, texts, asked) for reader in readers]
        for number, item in enumerate(chunk):
            rows = list(_item_rows(item, [one[number] for one in found], readers, asked))
            _spill(rows, asked.spillover)
            yield from ((item, row) for row in rows)


def _rows(reader: Reader, texts: list[str], asked: Asked) -> list[list[Row]]:
    """The rows of each text."""
    unit = "word" if asked.unit == "region" else asked.unit
    found: list[list[Row]] = [[] for _ in texts]
    for row in surprisals(reader.model, reader.tokenizer, texts, unit=unit, **asked.policies):
        found[row.line - 1].append(row)
    return found


def _item_rows(
    item: Item, found: Sequence[list[Row]], readers: Sequence[Reader], asked: Asked
) -> Iterator[dict[str, Any]]:
    if not item.text and asked.unit != "region":
        return
    ends, several = item.ends(), len(item.regions) > 1 or bool(item.regions[0][0])
    groups: list[tuple[str, str, list[list[Row]]]] = []  # region, text, rows of each model
    if asked.unit == "region":
        for place, (name, text) in enumerate(item.regions):
            of_models = [
                [r for r in rows if min(bisect_left(ends, r.end), len(ends) - 1) == place]
                for rows in found
            ]
            groups.append((name, text, of_models if text else [[] for _ in found]))
    else:
        # A model of characters has no row for the end: it is part of the last word.
        for index in range(max(map(len, found))):
            of_models = [rows[index : index + 1] for rows in found]
            first = next(rows[0] for rows in of_models if rows)
            region = item.regions[min(bisect_left(ends, first.end), len(ends) - 1)][0]
            groups.append((region, first.text, of_models))
    for index, (region, text, of_models) in enumerate(groups, start=1):
        row: dict[str, Any] = {"line": item.line}
        if asked.unit != "line":
            row |= {"region": region} if several else {}
            row |= {"index": index, "text": text}
        for reader, rows in zip(readers, of_models, strict=True):
            values = _summed(rows, asked)
            row |= {f"{name}{reader.suffix}": value for name, value in values.items()}
        yield row | _of_text(text, asked)


def _summed(rows: list[Row], asked: Asked) -> dict[str, Any]:
    read = [row for row in rows if row.num_tokens]
    values: dict[str, Any] = {
        "surprisal": _sum(row.surprisal for row in read),
        "unknown": int(any(row.unknown for row in rows)),
    }
    if asked.unit == "line":
        values |= {
            "num_tokens": sum(row.num_tokens for row in rows),
            "num_unknown": sum(row.num_unknown for row in rows),
            "without_unknown": math.fsum(row.without_unknown for row in rows),
        }
    if asked.policies.get("entropy"):
        values["entropy"] = read[0].entropy if read else None
        values["entropy_reduction"] = _sum(row.entropy_reduction for row in read)
    return values


def _of_text(text: str, asked: Asked) -> dict[str, Any]:
    """Predictors that no model is needed for."""
    words = text.split()
    several = asked.unit in ("region", "line")
    values: dict[str, Any] = {"length": len(text) if several else len(bare(text))}
    if asked.frequencies is not None:
        logs = [asked.frequencies.log(word, asked.base) for word in words]
        values["log_frequency"] = sum(logs) / len(logs) if logs else None
    return values


def _sum(values: Iterable[float | None]) -> float | None:
    """The sum; None if a value is missing, or all are."""
    found = list(values)
    present = [value for value in found if value is not None]
    return math.fsum(present) if present and len(present) == len(found) else None


def _spill(rows: list[dict[str, Any]], spillover: int) -> None:
    """Add the predictors of the rows before."""
    kinds = ("surprisal", "entropy", "length", "log_frequency")
    names = [
        name
        for name in (rows[0] if rows else ())
        if name.startswith(kinds) and not name.startswith("entropy_reduction")
    ]
    values = [{name: row[name] for name in names} for row in rows]
    for place, row in enumerate(rows):
        for back in range(1, spillover + 1):
            before = values[place - back] if place >= back else dict.fromkeys(names)
            row |= {f"prev{back}_{name}": before[name] for name in names}
