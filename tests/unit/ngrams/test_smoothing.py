from __future__ import annotations

import math
from typing import Any, get_args

import numpy as np
import pytest
from by_hand import KneserNey, as_ids, contexts, counts
from hypothesis import given, settings
from hypothesis import strategies as st

from elman.base.errors import UsageError
from elman.ngrams.backoff import BackoffModel
from elman.ngrams.counting import count
from elman.ngrams.interpolation import named
from elman.ngrams.katz import good_turing
from elman.ngrams.kneser_ney import adjusted_counts
from elman.ngrams.smoothing import SMOOTHINGS, build, estimate
from elman.ngrams.trie import Room
from elman.tasks.ngram.settings import Method, NgramConfig

V = 6
NORMALISED = sorted(set(SMOOTHINGS) - {"stupid-backoff"})
lines_of_tokens = st.lists(st.lists(st.integers(1, V - 1), max_size=6), max_size=10)


def model_of(
    lines: list[list[int]], held_out: list[list[int]] | None = None, **settings: object
) -> BackoffModel:
    config = NgramConfig(**settings)  # type: ignore[arg-type]
    trie = count(as_ids(lines), config.order, vocab_size=V, boundary_id=0)
    return build(trie, config, held_out=None if held_out is None else as_ids(held_out))


def probs(model: BackoffModel, context: tuple[int, ...]) -> np.ndarray:
    """P of every token after a context, from the whole distribution."""
    contexts = np.array([context], np.int64).reshape(1, -1)
    return np.exp(model.distributions(contexts)[0].astype(np.float64))


@settings(max_examples=150)
@given(lines_of_tokens, st.integers(1, 5))
def test_kneser_ney_is_its_definition(lines: list[list[int]], order: int) -> None:
    model = model_of(lines, order=order)
    discounts = model.about["discounts"]
    reference = KneserNey(lines, order, V, discounts)
    for context in [*contexts(lines, order)[:20], (0,), (0, 5, 4), (3, 3, 3, 3)]:
        expected = [reference.prob(context, token) for token in range(V)]
        assert probs(model, context) == pytest.approx(expected, rel=1e-5)


cases = st.tuples(
    lines_of_tokens,
    st.integers(1, 5),
    st.sampled_from(NORMALISED),
    st.sampled_from(["open", "closed"]),
    st.sampled_from([(), (0, 1), (0, 0, 2)]),
    st.lists(st.lists(st.integers(0, V - 1), max_size=5), max_size=5),
)


def check_sums(
    lines: list[list[int]],
    order: int,
    smoothing: str,
    vocabulary: str,
    prune: tuple[int, ...],
    others: list[list[int]],
) -> None:
    model = model_of(
        lines,
        lines[::2],
        order=order,
        smoothing=smoothing,
        vocabulary=vocabulary,
        prune=prune[:order],
    )
    for context in [(), *contexts(lines, order)[:10], *map(tuple, others)]:
        assert probs(model, context).sum() == pytest.approx(1, abs=1e-5)


@settings(max_examples=400)
@given(cases)
def test_every_distribution_sums_to_one(case: Any) -> None:
    check_sums(*case)


@pytest.mark.slow
@settings(max_examples=10_000)
@given(cases)
def test_every_distribution_of_ten_thousand_corpora_sums_to_one(case: Any) -> None:
    check_sums(*case)


@settings(max_examples=100)
@given(lines_of_tokens, st.integers(1, 4), st.sampled_from(sorted(SMOOTHINGS)))
def test_scoring_a_text_reads_off_its_distributions(
    lines: list[list[int]], order: int, smoothing: str
) -> None:
    model = model_of(lines, lines, order=order, smoothing=smoothing)
    text = [*lines[::-1], [5, 1, 5]]
    expected = [
        math.log(p) if p else -math.inf
        for context, token in zip(contexts(text, order), as_ids(text), strict=True)
        for p in [probs(model, context)[token]]
    ]
    assert model.score(as_ids(text)) == pytest.approx(np.array(expected), rel=1e-4, abs=1e-5)


LINES = [[1, 2, 3], [1, 2, 4], [2, 3], [1, 2, 3, 2]]


def test_maximum_likelihood_is_relative_frequency() -> None:
    model = model_of(LINES, order=2, smoothing="maximum-likelihood")
    found = counts(LINES, 2)
    after = {token: found[2, token] for token in range(V)}
    assert probs(model, (2,)) == pytest.approx([after[t] / sum(after.values()) for t in range(V)])
    assert probs(model, (5,)) == pytest.approx(probs(model, ())), "an unseen context falls back"


def test_add_delta_is_its_formula() -> None:
    model = model_of(LINES, order=3, smoothing="add-delta", delta=0.5)
    found = counts(LINES, 3)
    for context in [(1, 2), (0, 1), (2, 3)]:
        total = sum(found[(*context, token)] for token in range(V))
        expected = [(found[(*context, t)] + 0.5) / (total + 0.5 * V) for t in range(V)]
        assert probs(model, context) == pytest.approx(expected)
    after_start = [(found[0, t] + 0.5) / (len(LINES) + 0.5 * V) for t in range(V)]
    assert probs(model, (0,)) == pytest.approx(after_start), "a line may be shorter than the order"
    assert probs(model, (5, 5)) == pytest.approx([1 / V] * V)


def test_witten_bell_is_its_formula() -> None:
    model = model_of(LINES, order=2, smoothing="witten-bell")
    found = counts(LINES, 2)
    after = [found[2, token] for token in range(V)]
    total, kinds = sum(after), sum(1 for number in after if number)
    lower = probs(model, ())
    assert probs(model, (2,)) == pytest.approx(
        [(after[t] + kinds * lower[t]) / (total + kinds) for t in range(V)]
    )


def test_absolute_discounting_is_its_formula() -> None:
    model = model_of(LINES, order=2, smoothing="absolute")
    found = counts(LINES, 2)
    bigrams = [number for ngram, number in found.items() if len(ngram) == 2]
    n1, n2 = bigrams.count(1), bigrams.count(2)
    discount = n1 / (n1 + 2 * n2)
    assert model.about["discounts"][1] == pytest.approx(discount)
    after = [found[2, token] for token in range(V)]
    freed = discount * sum(1 for number in after if number) / sum(after)
    lower = probs(model, ())
    assert probs(model, (2,)) == pytest.approx(
        [max(0, after[t] - discount) / sum(after) + freed * lower[t] for t in range(V)]
    )


def test_stupid_backoff_is_its_formula_and_says_that_it_is_not_normalised() -> None:
    model = model_of(LINES, order=2, smoothing="stupid-backoff", backoff_factor=0.3)
    found = counts(LINES, 2)
    total = sum(found[2, token] for token in range(V))
    scores = probs(model, (2,))
    assert scores[3] == pytest.approx(found[2, 3] / total)
    num_tokens = sum(number for ngram, number in found.items() if len(ngram) == 1)
    assert scores[1] == pytest.approx(0.3 * found[1,] / num_tokens)
    assert model.about["normalised"] is False
    assert model_of(LINES).about["normalised"] is True


def test_katz_backs_off_in_proportion_to_the_shorter_context() -> None:
    model = model_of(LINES, order=2, smoothing="katz")
    found = counts(LINES, 2)
    lower = probs(model, ())
    for context in (1, 2, 3):
        after = probs(model, (context,))
        unseen = [token for token in range(V) if (context, token) not in found]
        assert len(unseen) > 1
        ratios = [after[token] / lower[token] for token in unseen]
        assert ratios == pytest.approx([ratios[0]] * len(unseen), rel=1e-4)


def test_katz_discounts_are_good_and_turings() -> None:
    counts_of = np.repeat(np.arange(1, 7), [100, 40, 22, 14, 10, 7]).astype(np.int32)
    factors, valid = good_turing(counts_of)
    assert valid
    excess = 6 * 7 / 100
    assert factors[1] == pytest.approx((2 * 40 / 100 - excess) / (1 - excess))
    assert factors[5] == pytest.approx((6 * 7 / (5 * 10) - excess) / (1 - excess))
    assert not good_turing(counts_of[:120])[1]


def test_jelinek_mercer_weights_are_better_than_others_on_held_out_text() -> None:
    rng = np.random.default_rng(1)
    text = [np.minimum(rng.zipf(1.4, 15), V - 1).tolist() for _ in range(60)]
    lines, held_out = text[:40], text[40:]
    fitted = model_of(lines, held_out, order=3, smoothing="jelinek-mercer")
    alike = model_of(lines, order=3, smoothing="jelinek-mercer")
    assert fitted.score(as_ids(held_out)).sum() > alike.score(as_ids(held_out)).sum()
    assert "no held-out text" in alike.about["notes"][0]
    assert "fitted to the validation text" in fitted.about["notes"][0]


def test_a_fallback_discount_is_noted() -> None:
    model = model_of([[1, 2], [1, 2]], order=3)
    assert "0.5, 1 and 1.5" in model.about["notes"][0]
    assert model.about["discounts"][0] == [0.5, 1.0, 1.5]


def test_a_closed_vocabulary_gives_nothing_to_tokens_never_seen() -> None:
    closed = model_of(LINES, order=2, vocabulary="closed")
    assert probs(closed, (1,))[5] == 0
    assert model_of(LINES, order=2).score(np.array([5]))[0] > -math.inf


def test_pruning_leaves_out_what_occurs_too_seldom() -> None:
    model = model_of(LINES, order=3, prune=(0, 0, 1))
    found = counts(LINES, 3)
    assert model.num_ngrams == [
        V,
        sum(1 for n in found if len(n) == 2),
        sum(1 for n, number in found.items() if len(n) == 3 and number > 1),
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"order": 0},
        {"prune": (1, 1)},
        {"prune": (0, 2, 1)},
        {"order": 2, "prune": (0, 0, 1)},
        {"delta": 0.0},
        {"backoff_factor": 1.5},
        {"fallback_discounts": (0.5, 1.0)},
        {"fallback_discounts": (1.5, 1.0, 1.0)},
    ],
)
def test_settings_out_of_range_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        NgramConfig(**wrong)  # type: ignore[arg-type]


def test_all_names_of_the_config_are_in_the_table() -> None:
    assert set(get_args(Method)) == set(SMOOTHINGS)


def test_lengths_are_named_in_few_words() -> None:
    assert named([2]) == "2-grams"
    assert named([1, 2]) == "1- and 2-grams"
    assert named([1, 3, 4, 5]) == "1- and 3- to 5-grams"
    assert named([1, 2, 4, *range(6, 301)]) == "1-, 2-, 4- and 6- to 300-grams"


@pytest.mark.parametrize("last", [(), (3, 1, 2)])
def test_counts_are_freed_on_the_way_without_a_change_of_the_estimate(
    last: tuple[int, ...],
) -> None:
    ids = np.random.default_rng(0).integers(0, 9, 3000)
    tries = [count(ids, 3, vocab_size=9, boundary_id=0) for _ in range(2)]
    kept, freed = (
        estimate(tries[i], NgramConfig(order=3), last=last, consume=bool(i))[1] for i in range(2)
    )
    assert [len(level.counts) for level in tries[1].levels] == [0, 0, 0]
    assert len(tries[0].levels[1].counts) > 0
    for one, other in zip(kept.probs + kept.backoffs, freed.probs + freed.backoffs, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("piece", [1, 7, 1 << 17])
@pytest.mark.parametrize("num_threads", [1, 5])
@pytest.mark.parametrize("overwrite", [False, True])
def test_adjusted_counts_are_the_same_in_any_number_of_threads(
    piece: int, num_threads: int, overwrite: bool
) -> None:
    class Small(Room):
        def __init__(self) -> None:
            self.piece = piece

    ids = np.random.default_rng(0).geometric(0.2, 3000) % 30
    trie = count(ids, 4, vocab_size=30, boundary_id=0)
    trie.room = Small()
    plain = [level.counts.copy() for level in trie.levels]
    found = adjusted_counts(trie, num_threads, overwrite=overwrite)
    for length in range(1, 4):
        expected = np.bincount(trie.levels[length].suffix, minlength=len(plain[length - 1]))
        if length > 1:
            kept = slice(*trie.line_starts(length))
            expected[kept] = plain[length - 1][kept]
        is_plain = np.array_equal(trie.levels[length - 1].counts, plain[length - 1])
        assert is_plain != overwrite
        assert found[length - 1].tolist() == expected.tolist()
