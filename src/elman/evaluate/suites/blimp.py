"""BLiMP (Warstadt and others, 2020): minimal pairs of sentences that differ only in grammaticality.

A model is right if the grammatical sentence has the higher probability as a whole. Sentences are
read after the boundary token and their ends are not scored, as EleutherAI's evaluation harness does
with a server. If both sentences are equally likely, mostly because the words that differ are
unknown, it counts as wrong here; the harness takes the first of equals, which is the right one, so
ties are reported separately.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from elman.evaluate.suites import Part, of_suite, token_logprobs
from elman.models.interface import LanguageModel
from elman.text.sources import file_lines
from elman.tokens.tokenizer import Tokenizer


def measure(model: LanguageModel, tokenizer: Tokenizer, path: Path) -> list[Part]:
    """Measure accuracy on one paradigm: a file of JSON lines."""
    pairs = read_pairs(path)
    sentences = [sentence for pair in pairs for sentence in pair]
    totals = [math.fsum(logprobs) for logprobs in token_logprobs(model, tokenizer, sentences)]
    right = ties = 0
    for (good, bad), of_good, of_bad in zip(pairs, totals[::2], totals[1::2], strict=True):
        # Sums of the same tokens, read in different batches, may differ by rounding.
        is_tie = of_good == of_bad or np.array_equal(tokenizer.encode(good), tokenizer.encode(bad))
        ties += is_tie
        right += of_good > of_bad and not is_tie
    return [Part(path.stem, right / len(pairs), len(pairs), ties=ties)]


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """Return (grammatical, ungrammatical) of every line."""
    pairs: list[tuple[str, str]] = []
    with of_suite(path, "blimp"):
        for number, line in enumerate(file_lines(path), start=1):
            try:
                pair = json.loads(line)
                pairs.append((str(pair["sentence_good"]), str(pair["sentence_bad"])))
            except (ValueError, LookupError, TypeError, RecursionError) as error:
                raise ValueError(f"line {number} is not a pair of sentences") from error
        if not pairs:
            raise ValueError("it is empty")
    return pairs
