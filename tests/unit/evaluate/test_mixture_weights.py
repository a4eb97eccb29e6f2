from __future__ import annotations

import math

import numpy as np
import pytest

from elman import testing
from elman.base.errors import ElmanError
from elman.batches.encoded import EncodedText
from elman.evaluate.mixture_weights import SMALLEST_WEIGHT, fit_weights, maximise, token_logprobs
from elman.evaluate.perplexity import evaluate
from elman.models.mixture import Mixture
from elman.ngrams.backoff import BackoffModel
from elman.ngrams.counting import count
from elman.ngrams.smoothing import build
from elman.tasks.counted_model import CountedLM
from elman.tasks.ngram.settings import NgramConfig
from tiny_models import TINY

V = testing.VOCAB_SIZE


def text(num_tokens: int, seed: int) -> EncodedText:
    rng = np.random.default_rng(seed)
    ids = np.minimum(rng.zipf(1.3, num_tokens) - 1, V - 1)
    ids[1::2] = (ids[::2][: len(ids[1::2])] + 3) % V  # every second token follows from the first
    return EncodedText(ids, num_bytes=num_tokens)


def ngram(order: int, seed: int) -> CountedLM[BackoffModel]:
    trie = count(text(3_000, seed).ids, order, vocab_size=V, boundary_id=2)
    return CountedLM(build(trie, NgramConfig(order=order)))


def test_weights_are_the_best_there_are() -> None:
    models = [testing.build(TINY["lstm"]), ngram(1, 0), ngram(2, 1)]
    held_out = text(2_000, 2)
    found = fit_weights(models, held_out, boundary_id=2)
    assert sum(found.weights) == pytest.approx(1)
    assert found.tokens == 2_000
    perplexity = evaluate(Mixture(models, found.weights), held_out, boundary_id=2).perplexity
    assert found.perplexity == pytest.approx(perplexity, rel=1e-4)
    for model, alone in zip(models, found.perplexities, strict=True):
        assert evaluate(model, held_out, boundary_id=2).perplexity == pytest.approx(alone, rel=1e-4)
        assert found.perplexity <= alone + 1e-6
    rng = np.random.default_rng(0)
    logprobs_MN = token_logprobs(models, held_out, boundary_id=2)
    for _ in range(50):
        other = rng.dirichlet(np.ones(3))
        assert np.log(other @ np.exp(logprobs_MN)).mean() <= -math.log(found.perplexity) + 1e-6


def test_two_models_by_hand() -> None:
    """Each model is sure of its half of the tokens: the best weights are the halves' sizes."""
    probs_MN = np.array([[0.9] * 3 + [1e-9], [1e-9] * 3 + [0.9]])
    weights_M, mean, _ = maximise(np.log(probs_MN))
    assert weights_M == pytest.approx([0.75, 0.25], abs=1e-4)
    expected = (3 * math.log(0.75 * 0.9) + math.log(0.25 * 0.9)) / 4
    assert mean == pytest.approx(expected, abs=1e-6)


def test_a_useless_model_keeps_next_to_nothing() -> None:
    logprobs_MN = np.log(np.array([[0.5] * 10, [0.1] * 10]))
    weights_M, _, _ = maximise(logprobs_MN)
    assert 0 < weights_M[1] < 1e-4
    assert weights_M[1] >= SMALLEST_WEIGHT / 2


def test_tokens_that_no_model_thinks_possible_have_no_say() -> None:
    with np.errstate(divide="ignore"):
        logprobs_MN = np.log(np.array([[0.9, 0.0, 0.0], [0.1, 0.0, 0.2]]))
    weights_M, mean, _ = maximise(logprobs_MN)
    assert np.isfinite(weights_M).all()
    assert mean == -math.inf
    weights_M, mean, _ = maximise(np.full((2, 3), -np.inf))
    assert weights_M.tolist() == [0.5, 0.5]


def test_no_text_is_refused() -> None:
    with pytest.raises(ElmanError, match="empty"):
        fit_weights(
            [ngram(1, 0)] * 2, EncodedText(np.array([], np.int64), num_bytes=0), boundary_id=2
        )
