"""Test suites of grammatical knowledge, computed directly.

    blimp        minimal pairs: is the grammatical sentence more likely?
    syntaxgym    surprisal by region: do a suite's predictions hold?

A suite is a function `measure(model, tokenizer, file) -> list[Part]`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from elman.base.documents import intact
from elman.base.tables import Table, look_up
from elman.batches.buckets import batches_by_length
from elman.evaluate.sequences import TOKENS_PER_BATCH, score_tokens
from elman.models.interface import LanguageModel
from elman.tokens.tokenizer import Tokenizer

SUITES: Table = {
    "blimp": "elman.evaluate.suites.blimp:measure",
    "syntaxgym": "elman.evaluate.suites.syntaxgym:measure",
}


@dataclass(frozen=True)
class Part:
    """One file of a suite: a phenomenon."""

    name: str
    accuracy: float
    """Fraction of items with the expected result."""
    items: int
    ties: int = 0
    """Items that cannot be right because both sides are equally likely: mostly because the words
    that differ are unknown to the model."""


@dataclass(frozen=True)
class SuiteReport:
    suite: str
    accuracy: float
    """Unweighted mean over parts, as the suites' authors average."""
    parts: list[Part]
    seconds: float = field(compare=False)


def run_suite(
    suite: str, model: LanguageModel, tokenizer: Tokenizer, files: Sequence[Path]
) -> SuiteReport:
    measure = look_up(SUITES, suite, "suite")
    started = time.monotonic()
    parts = [part for file in files for part in measure(model, tokenizer, file)]
    accuracy = math.fsum(part.accuracy for part in parts) / len(parts)
    return SuiteReport(suite, accuracy, parts, time.monotonic() - started)


def token_logprobs(
    model: LanguageModel, tokenizer: Tokenizer, texts: Sequence[str]
) -> list[list[float]]:
    """Return log P of every token of each text, read after the boundary token; the end is not
    scored."""
    sequences = [tokenizer.encode(text) for text in texts]
    logprobs: list[list[float]] = [[] for _ in texts]
    for batch in batches_by_length([len(ids) for ids in sequences], TOKENS_PER_BATCH):
        scores, _ = score_tokens(
            model, [sequences[i] for i in batch], previous=tokenizer.boundary_id
        )
        for i, score in zip(batch, scores, strict=True):
            logprobs[i] = score.logprobs
    return logprobs


def of_suite(path: Path, suite: str) -> AbstractContextManager[None]:
    """Raise an error that names the suite where its file cannot be read."""
    return intact(path, f"is not a file of the suite {suite}", "check the file")
