"""BLiMP (Warstadt and others, 2020): minimal pairs of sentences that differ only in grammaticality.

A model is right if the grammatical sentence has the higher probability as a whole. Sentences are
read after the boundary token and their ends are not scored, as EleutherAI's evaluation harness does
with a server. The harness takes the first of two equally likely sentences, which is the right one;
here that is a tie.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from elman.evaluate.suites import Fit, Part, Sentences, name_of, of_suite
from elman.models.interface import LanguageModel
from elman.text.sources import file_lines


def measure(model: LanguageModel, path: Path, fit: Fit) -> list[Part]:
    """Measure accuracy on one paradigm: a file of JSON lines."""
    pairs = read_pairs(path)
    found = Sentences.scored(model, [sentence for pair in pairs for sentence in pair], fit)
    totals = [math.fsum(logprobs) for logprobs in found.logprobs]
    right = ties = 0
    for i in range(0, len(totals), 2):
        good, bad = totals[i], totals[i + 1]
        # Sums of the same tokens, read in different batches, may differ by rounding.
        is_tie = good == bad or np.array_equal(found.ids[i], found.ids[i + 1])
        ties += is_tie
        right += good > bad and not is_tie
    return [Part.of(name_of(path), right, ties, len(pairs), found)]


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
