"""N-gram models straight from their definitions, with dictionaries: slow, and independent.

A text is a list of lines of token ids; the boundary is id 0.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np

Ngram = tuple[int, ...]


def as_ids(lines: list[list[int]]) -> np.ndarray:
    """The lines one after the other, each ended by the boundary."""
    return np.array([token for line in lines for token in [*line, 0]], np.int32)


def counts(lines: list[list[int]], order: int) -> Counter[Ngram]:
    """Every n-gram up to `order`, contexts reaching back to the beginning of the line."""
    found: Counter[Ngram] = Counter()
    for line in lines:
        tokens = [0, *line, 0]
        for end in range(1, len(tokens)):
            for length in range(1, order + 1):
                if end - length + 1 >= 0:
                    found[tuple(tokens[end - length + 1 : end + 1])] += 1
    return found


class KneserNey:
    """Interpolated modified Kneser-Ney (Chen and Goodman 1998), discounts given."""

    def __init__(
        self,
        lines: list[list[int]],
        order: int,
        vocab_size: int,
        discounts: list[tuple[float, float, float]],
    ) -> None:
        self.order, self.vocab_size, self.discounts = order, vocab_size, discounts
        plain = counts(lines, order)
        left: dict[Ngram, set[int]] = defaultdict(set)
        for ngram in plain:
            left[ngram[1:]].add(ngram[0])
        self.counts = {
            ngram: count
            if len(ngram) == order or (len(ngram) > 1 and ngram[0] == 0)
            else len(left[ngram])
            for ngram, count in plain.items()
        }
        self.following: dict[Ngram, dict[int, int]] = defaultdict(dict)
        for ngram, count in self.counts.items():
            self.following[ngram[:-1]][ngram[-1]] = count

    def prob(self, context: Ngram, token: int) -> float:
        """P(token | context)."""
        context = context[-(self.order - 1) :] if self.order > 1 else ()
        lower = self.prob(context[1:], token) if context else 1 / self.vocab_size
        after = self.following.get(context)
        if not after:
            return lower
        total = sum(after.values())
        taken = [self._discount(len(context), count) for count in after.values()]
        count = after.get(token, 0)
        own = max(0.0, count - self._discount(len(context), count)) / total
        return own + sum(taken) / total * lower

    def _discount(self, length: int, count: int) -> float:
        return 0.0 if count == 0 else self.discounts[length][min(count, 3) - 1]


def contexts(lines: list[list[int]], order: int) -> list[Ngram]:
    """The context of every token, as long as it matters."""
    found = []
    for line in lines:
        tokens = [0, *line]
        found += [tuple(tokens[max(0, end - order + 1) : end]) for end in range(1, len(tokens) + 1)]
    return found
