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

from elman.base.files import explain
from elman.evaluate.suites import Part, not_of_suite, token_logprobs
from elman.models.interface import LanguageModel
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
    try:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                pair = json.loads(line)
                pairs.append((str(pair["sentence_good"]), str(pair["sentence_bad"])))
    except OSError as error:
        raise explain(error, path) from error
    except (ValueError, KeyError, TypeError) as error:
        raise not_of_suite(
            path, "blimp", f"line {len(pairs) + 1} is not a pair of sentences"
        ) from error
    if not pairs:
        raise not_of_suite(path, "blimp", "it is empty")
    return pairs
