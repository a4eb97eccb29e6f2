"""SyntaxGym (Gauthier and others, 2020; Hu and others, 2020): predictions about regions.

An item of a suite is a sentence in several conditions, each divided into numbered regions. A
prediction is a formula over the summed surprisal of regions, such as

    [(6;%match_sing%) < (6;%mismatch_sing%)] & [(6;%match_plural%) < (6;%mismatch_plural%)]

and an item is right if it holds; it is a tie if that depends on how comparisons of equal values are
decided. Regions are joined by single spaces; a token belongs to the region
in which it ends, so the space before a word counts for that word.
"""

from __future__ import annotations

import json
import math
import operator
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from elman.base.errors import ElmanError
from elman.evaluate.suites import Fit, Part, Sentences, of_suite
from elman.models.interface import LanguageModel
from elman.text.sources import file_lines

Surprisals = Mapping[tuple[str, str], float]
"""By region number and condition; region `*` is the whole sentence."""

_TOKEN = re.compile(r"\s*(?:\(\s*([\d*]+)\s*;\s*%([^%]+)%\s*\)|(\d+(?:\.\d+)?)|([][()&|<>=+*/-]))")
_LEVELS: tuple[dict[str, Callable[[Any, Any], Any]], ...] = (
    {"&": lambda a, b: a and b, "|": lambda a, b: a or b},
    {"<": operator.lt, ">": operator.gt, "=": operator.eq},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": operator.truediv},
)
"""Operators by rising precedence."""
ROUNDING = 1e-6
"""The same tokens, read in different batches, may differ by this much."""


def measure(model: LanguageModel, path: Path, fit: Fit) -> list[Part]:
    """Return the fraction of items for which each prediction of the suite holds."""
    with of_suite(path, "syntaxgym"):
        suite = json.loads("".join(file_lines(path)))
        formulas = [Formula(prediction["formula"]) for prediction in suite["predictions"]]
        items = [
            [
                (
                    str(condition["condition_name"]),
                    [(str(r["region_number"]), str(r["content"])) for r in condition["regions"]],
                )
                for condition in item["conditions"]
            ]
            for item in suite["items"]
        ]
        name = str(suite["meta"]["name"])
        if not items or not formulas:
            raise ValueError("it has no items, or no predictions")
        if not all(regions for item in items for _, regions in item):
            raise ValueError("a condition has no regions")
    read = [_joined(regions) for item in items for _, regions in item]
    sentences = Sentences.scored(model, [text for text, _ in read], fit)
    sums = iter(_sums(sentences, read))
    surprisals: list[Surprisals] = []
    for item in items:
        found: dict[tuple[str, str], float] = {}
        for condition, regions in item:
            totals = next(sums)
            for (number, _), total in zip(regions, totals, strict=True):
                found[number, condition] = total
            found["*", condition] = sum(totals)
        surprisals.append(found)
    parts = []
    for place, formula in enumerate(formulas, start=1):
        with of_suite(path, "syntaxgym"):  # a formula may be nested, or divide by zero
            least, most = (
                [bool(formula(one, equal_holds=equal)) for one in surprisals]
                for equal in (False, True)
            )
        ties = sum(a != b for a, b in zip(least, most, strict=True))
        right = sum(a and b for a, b in zip(least, most, strict=True))
        title = name if len(formulas) == 1 else f"{name} {place}"
        parts.append(Part.of(title, right, ties, len(items), sentences))
    return parts


def _joined(regions: list[tuple[str, str]]) -> tuple[str, list[int]]:
    """The sentence, and where its regions end."""
    text, ends = "", []
    for _, content in regions:
        word = content.strip()
        text += f" {word}" if text and word else word
        ends.append(len(text))
    return text, ends


def _sums(sentences: Sentences, read: list[tuple[str, list[int]]]) -> Iterator[list[float]]:
    """Yield the surprisal of the regions of each sentence, in nats."""
    for (text, ends), logprobs in zip(read, sentences.logprobs, strict=True):
        totals = [0.0] * len(ends)
        _, spans = sentences.tokenizer.encode_spans(text)
        for (_, end), logprob in zip(spans, logprobs, strict=True):
            totals[min(bisect_left(ends, end), len(ends) - 1)] -= logprob
        yield totals


class Formula:
    """A parsed prediction; call it with surprisals to see whether it holds."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._tokens: list[tuple[str, ...]] = []
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                raise self._wrong()
            self._tokens.append(match.groups())
            position = match.end()

    def __call__(self, surprisals: Surprisals, *, equal_holds: bool = False) -> Any:
        """Return a truth value, or a number for a partial formula.

        `equal_holds` is the outcome of `<` and `>` between equal values.
        """
        self._equal_holds = equal_holds
        value, rest = self._read(0, 0, surprisals)
        if rest != len(self._tokens):
            raise self._wrong()
        return value

    def _read(self, level: int, at: int, surprisals: Surprisals) -> tuple[Any, int]:
        if level == len(_LEVELS):
            return self._atom(at, surprisals)
        value, at = self._read(level + 1, at, surprisals)
        while at < len(self._tokens) and self._tokens[at][3] in _LEVELS[level]:
            function = _LEVELS[level][self._tokens[at][3]]
            sign = self._tokens[at][3]
            other, at = self._read(level + 1, at + 1, surprisals)
            if sign in "<>" and math.isclose(value, other, rel_tol=ROUNDING, abs_tol=ROUNDING):
                value = self._equal_holds
            else:
                value = function(value, other)
        return value, at

    def _atom(self, at: int, surprisals: Surprisals) -> tuple[Any, int]:
        if at >= len(self._tokens):
            raise self._wrong()
        region, condition, constant, sign = self._tokens[at]
        if condition:
            if (region, condition) not in surprisals:
                raise ElmanError(
                    f"the prediction {self.text} uses region {region} of {condition}, "
                    "which does not exist",
                    "check the suite",
                )
            return surprisals[region, condition], at + 1
        if constant:
            return float(constant), at + 1
        if sign in ("[", "("):
            value, at = self._read(0, at + 1, surprisals)
            if at < len(self._tokens) and self._tokens[at][3] == {"[": "]", "(": ")"}[sign]:
                return value, at + 1
        raise self._wrong()

    def _wrong(self) -> ElmanError:
        return ElmanError(f"the prediction {self.text} cannot be read", "check the suite")
