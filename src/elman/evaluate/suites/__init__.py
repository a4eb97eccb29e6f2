"""Test suites of grammatical knowledge, computed directly.

    blimp        minimal pairs: is the grammatical sentence more likely?
    syntaxgym    surprisal by region: do a suite's predictions hold?

A suite is a function `measure(model, file, fit) -> list[Part]`; `fit` chooses the tokenizer that
reads its sentences.

If a model cannot tell two sentences apart, mostly because the words that differ are unknown to it,
the item is a tie and counts as half: the accuracy of a model that knows nothing is that of
guessing. Ties are reported, and so is the accuracy without them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from elman.base.documents import intact
from elman.base.tables import Table, look_up
from elman.batches.buckets import batches_by_length
from elman.evaluate.sequences import TOKENS_PER_BATCH, score_tokens
from elman.models.interface import LanguageModel
from elman.tokens.kind import Ids
from elman.tokens.tokenizer import Tokenizer

SUITES: Table = {
    "blimp": "elman.evaluate.suites.blimp:measure",
    "syntaxgym": "elman.evaluate.suites.syntaxgym:measure",
}

Fit = Callable[[Sequence[str]], Tokenizer]
"""Chooses the tokenizer that reads sentences."""


@dataclass(frozen=True)
class Part:
    """One file of a suite: a phenomenon."""

    name: str
    accuracy: float
    """Fraction of items with the expected result; ties count as half."""
    items: int
    ties: int = 0
    """Items whose sides are equally likely."""
    accuracy_without_ties: float | None = None
    """Fraction among the other items; None if there are none."""
    tokens: int = 0
    """Number of tokens of all sentences."""
    unknown: int = 0
    """Number of them that are unknown to the model."""
    reads_as: str = ""
    """How sentences were changed to the form of the training text; empty: not at all."""

    @staticmethod
    def of(name: str, right: int, ties: int, items: int, sentences: Sentences) -> Part:
        apart = items - ties
        return Part(
            name,
            (right + ties / 2) / items,
            items,
            ties,
            right / apart if apart else None,
            sum(map(len, sentences.ids)),
            sentences.num_unknown,
            sentences.tokenizer.reads_as,
        )


@dataclass(frozen=True)
class SuiteReport:
    suite: str
    accuracy: float
    """Unweighted mean over parts, as the suites' authors average."""
    parts: list[Part]
    seconds: float = field(compare=False)


def run_suite(
    suite: str,
    model: LanguageModel,
    tokenizer: Tokenizer,
    files: Sequence[Path],
    *,
    fit: Fit | None = None,
) -> SuiteReport:
    """Measure a model; `fit` chooses a tokenizer for sentences, None: always `tokenizer`."""
    measure = look_up(SUITES, suite, "suite")
    started = time.monotonic()
    fit = fit or (lambda sentences: tokenizer)
    parts = [part for file in files for part in measure(model, file, fit)]
    accuracy = math.fsum(part.accuracy for part in parts) / len(parts)
    return SuiteReport(suite, accuracy, parts, time.monotonic() - started)


@dataclass(frozen=True)
class Sentences:
    """Scored sentences."""

    tokenizer: Tokenizer
    ids: list[Ids]
    logprobs: list[list[float]]
    """Log P of every token of each sentence, read after the boundary token; the end is not
    scored."""

    @property
    def num_unknown(self) -> int:
        return sum(int((ids == self.tokenizer.unknown_id).sum()) for ids in self.ids)

    @staticmethod
    def scored(model: LanguageModel, texts: Sequence[str], fit: Fit) -> Sentences:
        tokenizer = fit(texts)
        ids = [tokenizer.encode(text) for text in texts]
        logprobs: list[list[float]] = [[] for _ in texts]
        for batch in batches_by_length([len(one) for one in ids], TOKENS_PER_BATCH):
            scores, _ = score_tokens(model, [ids[i] for i in batch], previous=tokenizer.boundary_id)
            for i, score in zip(batch, scores, strict=True):
                logprobs[i] = score.logprobs
        return Sentences(tokenizer, ids, logprobs)


def name_of(path: Path) -> str:
    """The name of a file without its suffixes."""
    bare = path.with_suffix("") if path.suffix in (".gz", ".zst") else path
    return bare.stem


def of_suite(path: Path, suite: str) -> AbstractContextManager[None]:
    """Raise an error that names the suite where its file cannot be read."""
    return intact(path, f"is not a file of the suite {suite}", "check the file")
