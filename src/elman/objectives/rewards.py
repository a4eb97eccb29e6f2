"""Rewards of decoding-based training: output ids compared with reference ids, from 0 to 1.

They depend on the tokenizer, so they are not the published metrics; `elman evaluate` computes those
on text.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

Reward = Callable[[Sequence[int], Sequence[int]], float]


def bleu(said: Sequence[int], wanted: Sequence[int]) -> float:
    """Return sentence BLEU, orders 1 to 4, with 1 added to the counts of orders above 1.

    Without the addition (Lin and Och 2004) nearly every sentence would score 0. Orders longer than
    both sequences are left out.
    """
    if not said or not wanted:
        return float(not said and not wanted)
    orders = min(4, max(len(said), len(wanted)))
    total = 0.0
    for order in range(1, orders + 1):
        ours, theirs = _ngrams(said, order), _ngrams(wanted, order)
        matches = (ours & theirs).total()
        more = order > 1
        if matches + more == 0:
            return 0.0
        total += math.log((matches + more) / (ours.total() + more))
    brevity = min(0.0, 1 - len(wanted) / len(said))
    return math.exp(brevity + total / orders)


def edits(said: Sequence[int], wanted: Sequence[int]) -> float:
    """Return 1 minus the edit distance divided by the longer length."""
    if not said or not wanted:
        return float(not said and not wanted)
    row = list(range(len(wanted) + 1))
    for i, token in enumerate(said, start=1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(wanted, start=1):
            diagonal, row[j] = (
                row[j],
                min(row[j] + 1, row[j - 1] + 1, diagonal + (token != other)),
            )
    return 1 - row[-1] / max(len(said), len(wanted))


REWARDS: dict[str, Reward] = {"bleu": bleu, "edits": edits}


def _ngrams(tokens: Sequence[int], order: int) -> Counter[tuple[int, ...]]:
    return Counter(tuple(tokens[i : i + order]) for i in range(len(tokens) - order + 1))
