"""The longest match mixed into a back-off model: a distribution, and the same one in every way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elman.base.documents import read_json, write_json
from elman.base.errors import ElmanError
from elman.ngrams.counting import count
from elman.ngrams.smoothing import KneserNey, build
from elman.ngrams.text_index import TextIndex
from elman.ngrams.unbounded import (
    COUNTS,
    LENGTHS,
    UnboundedModel,
    fit_weights,
    fixed_weights,
    load_weights,
    save_weights,
)

V = 6
SIZES: dict[str, Any] = {"vocab_size": V, "boundary_id": 0}
texts = st.lists(st.integers(0, V - 1), min_size=1, max_size=60)
weights = st.integers(0, 2**32 - 1).map(
    lambda seed: np.random.default_rng(seed).random((len(LENGTHS) + 1, len(COUNTS) + 1, 2)) * 0.99
)


def made(ids: list[int], order: int, weights_LN2: np.ndarray | None = None) -> UnboundedModel:
    text = np.array(ids, np.int32)
    index = TextIndex.build(text, newlines_V=np.zeros(V, int), **SIZES)
    backoff = build(count(text, order, **SIZES), KneserNey())
    chosen = fixed_weights() if weights_LN2 is None else weights_LN2.astype(np.float32)
    chosen[0] = 0
    return UnboundedModel(index, backoff, chosen)


@settings(max_examples=80)
@given(texts, st.integers(1, 4), st.lists(texts, min_size=1, max_size=3), weights)
def test_probabilities_of_all_tokens_sum_to_one(
    ids: list[int], order: int, read: list[list[int]], weights_LN2: np.ndarray
) -> None:
    model = made(ids, order, weights_LN2)
    states = np.zeros((len(read), 2), np.int64)
    for row, tokens in enumerate(read):
        if tokens[:-1]:
            states[row] = model.read(np.array([tokens[:-1]]), states[row : row + 1])[0]
    logprobs_BV, _ = model.distributions(np.array([tokens[-1] for tokens in read]), states)
    assert np.exp(logprobs_BV.astype(np.float64)).sum(axis=1) == pytest.approx(1, abs=1e-4)


@settings(max_examples=60)
@given(texts, st.integers(1, 4), texts, weights)
def test_scores_of_a_text_rows_and_distributions_are_the_same(
    ids: list[int], order: int, text: list[int], weights_LN2: np.ndarray
) -> None:
    model = made(ids, order, weights_LN2)
    scored = model.score(np.array(text))
    tokens, targets = np.array([[0, *text[:-1]]]), np.array([text])
    state = np.zeros((1, 2), np.int64)
    rows, after = model.score_rows(tokens, targets, state)
    assert rows[0] == pytest.approx(scored, abs=1e-4)
    for t in range(len(text)):
        logprobs, state = model.distributions(tokens[:, t], state)
        assert logprobs[0, text[t]] == pytest.approx(float(scored[t]), abs=1e-4)
    assert state[0, 1] == after[0, 1]


def test_by_hand() -> None:
    """The text has 1 2 3 twice, and 1 2 4 once; 5 1 2 was followed by 4 alone."""
    weights_LN2 = np.zeros((len(LENGTHS) + 1, len(COUNTS) + 1, 2))
    weights_LN2[2:4] = 0.5
    model = made([1, 2, 3, 0, 1, 2, 3, 5, 1, 2, 4], 1, weights_LN2)
    context = np.zeros((1, 2), np.int64)
    for target, share in ((3, 2 / 3), (4, 1 / 3), (5, 0.0)):
        # After 4, which nothing follows, 1 2 is the longest match.
        logprob, _ = model.score_rows(np.array([[4, 1, 2]]), np.array([[1, 2, target]]), context)
        single = float(np.exp(model.backoff.distributions(np.empty((1, 0), int))[0, target]))
        assert np.exp(logprob[0, 2]) == pytest.approx(0.5 * share + 0.5 * single, rel=1e-4)
    logprob, state = model.score_rows(np.array([[5, 1, 2]]), np.array([[1, 2, 4]]), context)
    assert state[0, 1] == 3
    single = float(np.exp(model.backoff.distributions(np.empty((1, 0), int))[0, 4]))
    assert np.exp(logprob[0, 2]) == pytest.approx(0.5 + 0.5 * single, rel=1e-4)


def test_fitted_weights_predict_the_held_out_text_better() -> None:
    rng = np.random.default_rng(0)
    phrases = [rng.integers(0, V, 12).tolist() for _ in range(5)]
    mixed = [token for choice in rng.integers(0, 5, 300) for token in phrases[choice]]
    train, held_out = mixed[:2_400], np.array(mixed[2_400:])
    model = made(train, 3)
    fitted = fit_weights(model.index, model.backoff, held_out)
    assert not fitted[0].any()
    assert fitted.max() > 0.5  # long matches go on as they did
    alone = model.backoff.score(held_out).sum()
    assert UnboundedModel(model.index, model.backoff, fitted).score(held_out).sum() > alone + 50


def test_agreement_by_length() -> None:
    model = made([1, 2, 3, 4] * 30, 2)
    rows = model.agreement(np.array([1, 2, 3, 4] * 10))
    assert sum(row["tokens"] for row in rows) == 40
    assert all(row["agreement"] == 1 for row in rows if row["length"] > 3)
    assert rows[-1]["single_agreement"] == 1


def test_weights_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "weights.json"
    save_weights(path, fixed_weights())
    assert load_weights(path) == pytest.approx(fixed_weights(), abs=1e-5)
    for key, value in (("format", 2), ("weights", [[[2.0, 0.0]]]), ("weights", "none")):
        write_json(path, {**read_json(path), key: value}, seal=True)
        with pytest.raises(ElmanError, match=r"weights\.json"):
            load_weights(path)
