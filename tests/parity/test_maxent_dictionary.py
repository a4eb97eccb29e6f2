"""The hashed model against a maximum-entropy model kept in a dictionary, one weight per n-gram of
the training text.

In a table with room to spare every n-gram has a slot of its own, and then the two are the same
model: same probabilities after the same steps of gradient descent.
"""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
import torch

from elman.nn.heads.sampled import SampledConfig
from elman.tasks.language_model.maxent import MaxEntLM, MaxEntLMConfig

V, ORDER, RATE = 6, 4, 0.1
TEXT = [0, 3, 1, 4, 1, 5, 2, 0, 3, 1, 4, 2, 0, 3, 5]


class Dictionary:
    """P(w | context) by the formula, in plain Python; weights by n-gram, a tuple of words.

    A slot is a weight's part, the rest is 4 for pairs of words and half of that with each word
    more: the weight moves by the square of that.
    """

    def __init__(self) -> None:
        self.weights: dict[tuple[int, ...], float] = defaultdict(float)
        # Words have a weight each, longer n-grams only where they occur.
        self.known = {(word,) for word in range(V)}
        for time, target in enumerate(TEXT[1:]):
            self.known.update(self._ngrams(time, target))

    def ngrams(self, time: int, word: int) -> list[tuple[int, ...]]:
        return [ngram for ngram in self._ngrams(time, word) if ngram in self.known]

    def _ngrams(self, time: int, word: int) -> list[tuple[int, ...]]:
        padded = [-1] * ORDER + TEXT
        end = time + ORDER + 1
        return [(*padded[end - n + 1 : end], word) for n in range(1, ORDER + 1)]

    def probabilities(self, time: int) -> list[float]:
        scores = [sum(self.weights[f] for f in self.ngrams(time, w)) for w in range(V)]
        total = sum(map(math.exp, scores))
        return [math.exp(score) / total for score in scores]

    def descend(self) -> None:
        """One step along the gradient of the mean log probability of the text."""
        num = len(TEXT) - 1
        changes: dict[tuple[int, ...], float] = defaultdict(float)
        for time, target in enumerate(TEXT[1:]):
            for word, probability in enumerate(self.probabilities(time)):
                for ngram in self.ngrams(time, word):
                    changes[ngram] += ((word == target) - probability) / num
        for ngram, change in changes.items():
            scale = 8 / 2 ** (len(ngram) - 1) if len(ngram) > 1 else 1
            self.weights[ngram] += RATE * scale**2 * change


def hashed(size: int, head: SampledConfig | None = None) -> MaxEntLM:
    config = MaxEntLMConfig(order=ORDER, size=size, **({} if head is None else {"head": head}))
    return config.build(V).double().train()


def step(model: MaxEntLM, optimiser: torch.optim.Optimizer) -> None:
    tokens_BT = torch.tensor([TEXT])
    hidden, _ = model.hidden(tokens_BT[:, :-1], model.initial_state(1))
    losses = model.head.losses(hidden.dropped_BTH, tokens_BT[:, 1:], hidden.contexts_BTO)
    optimiser.zero_grad()
    losses.mean().backward()
    optimiser.step()


def test_the_same_model_after_the_same_steps() -> None:
    ours, theirs = hashed(1_000_000), Dictionary()
    optimiser = torch.optim.SGD(ours.parameters(), lr=RATE)
    for _ in range(4):
        step(ours, optimiser)
        theirs.descend()
    longer = [ngram for ngram in theirs.known if len(ngram) > 1]
    assert int((ours.head.softmax.ngrams.owners > 0).sum()) == len(longer)  # type: ignore[union-attr, operator]
    state = ours.initial_state(1)
    with torch.no_grad():
        for time in range(len(TEXT) - 1):
            logprobs_BV, state = ours.step(torch.tensor([TEXT[time]]), state)
            expected = torch.tensor(theirs.probabilities(time), dtype=torch.double)
            torch.testing.assert_close(logprobs_BV[0].exp(), expected)


def test_in_a_small_table_some_go_without() -> None:
    """N-grams whose slot another has claimed have no weight: the test above would notice."""
    ours, theirs = hashed(30), Dictionary()
    step(ours, torch.optim.SGD(ours.parameters(), lr=RATE))
    longer = [ngram for ngram in theirs.known if len(ngram) > 1]
    assert int((ours.head.softmax.ngrams.owners > 0).sum()) < len(longer)  # type: ignore[union-attr, operator]


@pytest.mark.parametrize("method", ["sampled_softmax", "nce", "blackout"])
def test_sampled_training_moves_the_same_weights(method: str) -> None:
    """With many more draws than words every word is noise; each learns what the full one does."""
    full = hashed(1_000_000)
    sampled = hashed(1_000_000, SampledConfig(method=method, num_samples=20_000, power=0.0))  # type: ignore[arg-type]
    with torch.no_grad():
        for model in (full, sampled):
            model.head.softmax.bias.fill_(-math.log(V))  # type: ignore[union-attr]
    for model in (full.train(), sampled.train()):
        step(model, torch.optim.SGD(model.parameters(), lr=0.0))
    ours, theirs = (m.head.softmax.ngrams.weight.grad for m in (sampled, full))  # type: ignore[union-attr]
    assert (ours != 0).sum() == (theirs != 0).sum()  # type: ignore[union-attr]
    if method == "sampled_softmax":
        torch.testing.assert_close(ours, theirs)
    else:
        cosine = torch.cosine_similarity(ours, theirs, dim=0)  # type: ignore[arg-type]
        assert cosine > 0.9, cosine
