"""How good an output is, token ids against token ids, from 0 to 1: what decoding-based training
raises.

The ids stand for whatever the tokenizer cuts, so these are relatives of the published metrics, not
the metrics: those are computed on text, by `elman evaluate`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

Reward = Callable[[Sequence[int], Sequence[int]], float]


def bleu(said: Sequence[int], wanted: Sequence[int]) -> float:
    """BLEU of one sentence, orders 1 to 4, one added to the counts of orders above 1.

    Without the addition (Lin and Och 2004) nearly every sentence would have 0, and nothing to
    learn from. Where both are shorter than an order, that order does not count.
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
    """1 minus the edit distance (insertions, deletions, substitutions) over the longer's length."""
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
