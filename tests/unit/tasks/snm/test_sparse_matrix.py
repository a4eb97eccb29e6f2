"""The sparse matrix model against its definition in dictionaries, and its gradient against
differences."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from elman.base.errors import ElmanError, UsageError
from elman.tasks.snm import adjustment
from elman.tasks.snm.adjustment import Adjustment, adjusted, find_events, fit_adjustment, gradient
from elman.tasks.snm.settings import SNMConfig
from elman.tasks.snm.skipgrams import (
    NOTHING,
    Counts,
    Template,
    count_skipgrams,
    reach,
    templates,
    with_context,
)
from elman.tasks.snm.sparse_matrix import (
    SparseMatrixModel,
    estimate_matrix,
    load_matrix,
    save_matrix,
)

V = 6
TEXT = np.array([1, 2, 3, 0, 1, 2, 4, 0, 2, 3, 0, 1, 2, 3, 2, 0, 5, 1, 2, 3, 0])
SKIPPING = templates(3, 2, 2, 1)


class Dictionary:
    """Counts and the adjusted matrix, straight from the definitions; `without` leaves one event
    out."""

    def __init__(
        self, wanted: list[Template], across: bool, table: np.ndarray, without: int | None = None
    ) -> None:
        self.wanted, self.across, self.table = wanted, across, table
        self.text = [0, *TEXT.tolist()]
        self.rows: dict[tuple[object, ...], Counter[int]] = defaultdict(Counter)
        for place in range(1, len(self.text)):
            if place != without:
                for context in self.contexts(self.text[:place]):
                    self.rows[context][self.text[place]] += 1

    def contexts(self, before: list[int]) -> list[tuple[object, ...]]:
        if not self.across and 0 in before:  # a line begins with the boundary that ended the last
            before = before[len(before) - 1 - before[::-1].index(0) :]
        found = []
        for kind, (remote, skip, adjacent) in enumerate(self.wanted):
            if remote + skip + adjacent <= len(before):
                words = before[len(before) - remote - skip - adjacent :]
                found.append((kind, *words[:remote], "_", *words[remote + skip :]))
        return found

    def matrix(self, context: tuple[object, ...]) -> dict[int, float]:
        row = self.rows.get(context, Counter())
        total = sum(row.values())
        table = self.table[context[0]]  # type: ignore[index]
        return {
            word: count / total * math.exp(table[bin_of(total), bin_of(count)])
            for word, count in row.items()
        }

    def probability(self, before: list[int], word: int, uniform: float = 1.0) -> float:
        rows = [self.matrix(context) for context in self.contexts(before)]
        top = uniform / V + sum(row.get(word, 0.0) for row in rows)
        return top / (uniform + sum(sum(row.values()) for row in rows))


def bin_of(count: int) -> int:
    return count - 1 if count < 5 else int(2 * math.log2(count))


def random_adjustment(num_templates: int) -> Adjustment:
    random = np.random.default_rng(0)
    found = Adjustment.neutral(num_templates)
    for part in (found.log_K, found.log_KI, found.log_KII):
        part += random.normal(size=part.shape)
    found.log_uniform = 0.3
    return found


def counted(wanted: list[Template], across: bool = False) -> Counts:
    return count_skipgrams(TEXT, wanted, boundary_id=0, across_lines=across, num_threads=1)


def model(wanted: list[Template], across: bool, chosen: Adjustment) -> SparseMatrixModel:
    matrix = counted(wanted, across)
    weights, sums = adjusted(matrix, chosen)
    return SparseMatrixModel(
        templates=wanted,
        row_starts=matrix.row_starts,
        keys=matrix.keys,
        first=matrix.first,
        words=matrix.words,
        weights=weights,
        sums=sums,
        uniform=math.exp(chosen.log_uniform),
        vocab_size=V,
        boundary_id=0,
        across_lines=across,
    )


def test_templates_are_all_within_the_bounds() -> None:
    assert templates(3, 0, 4, 2) == [(0, 0, 0), (0, 0, 1), (0, 0, 2)]
    assert templates(1, 2, 1, 1) == [(0, 0, 0), (1, 1, 0), (1, 1, 1), (2, 1, 0), (2, 1, 1)]
    assert reach(templates(2, 2, 3, 1)) == 6


def test_an_example_by_hand() -> None:
    """Unigrams and bigrams, nothing adjusted: after 2 come 3 (4 times), 4 and 0 (once each).

    P(3 | 2) = (1/6 + 4/21 + 4/6) / 3: the uniform distribution, 4 of 21 tokens, 4 of 6 after 2.
    """
    made = model(templates(2, 0, 0, 0), False, Adjustment.neutral(2))
    logprobs_BV = made.distributions(np.array([[2]]))
    assert math.exp(logprobs_BV[0, 3]) == pytest.approx((1 / 6 + 4 / 21 + 4 / 6) / 3)
    assert math.exp(logprobs_BV[0, 5]) == pytest.approx((1 / 6 + 1 / 21 + 0) / 3)
    # After a token never seen, only two distributions are left to speak.
    never = model(templates(2, 0, 0, 0), False, Adjustment.neutral(2))
    never.keys = never.keys + np.uint64(1)
    assert math.exp(never.distributions(np.array([[2]]))[0, 3]) == pytest.approx(1 / 6)


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("wanted", [templates(4, 0, 0, 0), SKIPPING], ids=["n-grams", "skip-grams"])
def test_the_model_is_its_definition(wanted: list[Template], across: bool) -> None:
    chosen = random_adjustment(len(wanted))
    ours, theirs = model(wanted, across, chosen), Dictionary(wanted, across, chosen.table)
    uniform = math.exp(0.3)
    num_before = ours.order - 1
    new = [3, 1, 0, 2, 3, 5, 5, 0, 1, 4, 1, 2]
    padded = with_context(np.array(new), num_before, 0)
    contexts = np.stack([padded[i : i + num_before] for i in range(len(new))])
    logprobs_BV, logprobs_T = ours.distributions(contexts), ours.score(np.array(new))
    for time, target in enumerate(new):
        expected = [theirs.probability([0, *new[:time]], word, uniform) for word in range(V)]
        np.testing.assert_allclose(np.exp(logprobs_BV[time]), expected, rtol=1e-5)
        assert logprobs_T[time] == pytest.approx(math.log(expected[target]), rel=1e-5)


@pytest.mark.parametrize("across", [False, True])
def test_leaving_one_out_is_counting_without_it(across: bool) -> None:
    """The probability of each event, and every slope that is not zero, by the long way round."""
    chosen = random_adjustment(len(SKIPPING))
    matrix = counted(SKIPPING, across)
    text = with_context(TEXT, reach(SKIPPING), 0)
    places = np.arange(reach(SKIPPING), len(text))
    events = find_events(matrix, text, places, NOTHING if across else 0)

    def total(table: np.ndarray, log_uniform: float) -> float:
        nats = 0.0
        for place in range(1, len(TEXT) + 1):
            left = Dictionary(SKIPPING, across, table, without=place)
            before, word = left.text[:place], left.text[place]
            nats += math.log(left.probability(before, word, math.exp(log_uniform)))
        return nats

    batch = np.arange(len(places))
    masses = adjustment.masses_of(matrix)
    logprob, slopes_KII, to_uniform = gradient(matrix, masses, events, batch, chosen, V)
    table = chosen.table
    assert logprob == pytest.approx(total(table, 0.3), rel=1e-9)
    h = 1e-5
    assert to_uniform == pytest.approx((total(table, 0.3 + h) - total(table, 0.3 - h)) / (2 * h))
    places_with_slopes = np.argwhere(slopes_KII)
    assert len(places_with_slopes) > 30
    for kind, row, column in places_with_slopes:
        up, down = table.copy(), table.copy()
        up[kind, row, column] += h
        down[kind, row, column] -= h
        expected = (total(up, 0.3) - total(down, 0.3)) / (2 * h)
        assert slopes_KII[kind, row, column] == pytest.approx(expected, rel=1e-4, abs=1e-8)


def test_learning_raises_the_probability_of_what_is_left_out() -> None:
    matrix = counted(SKIPPING)
    text = with_context(TEXT, reach(SKIPPING), 0)
    options = {"wall": 0, "vocab_size": V, "num_events": 1000, "learning_rate": 0.3}
    chosen, perplexities = fit_adjustment(matrix, text, num_epochs=30, seed=1, **options)  # type: ignore[arg-type]
    assert perplexities[-1] < 0.9 * perplexities[0]
    again, _ = fit_adjustment(matrix, text, num_epochs=30, seed=1, **options)  # type: ignore[arg-type]
    assert np.array_equal(chosen.table, again.table)
    few, _ = fit_adjustment(matrix, text, num_epochs=2, seed=1, **(options | {"num_events": 5}))  # type: ignore[arg-type]
    assert not np.array_equal(few.table, np.zeros_like(few.table))


def test_counts_in_bins() -> None:
    masses = adjustment.masses_of(counted(templates(1, 0, 0, 0)))
    counts = Counter(TEXT.tolist())
    by_bin: Counter[int] = Counter()
    for count in counts.values():
        by_bin[bin_of(count)] += count
    found = zip(masses.bins.tolist(), masses.sums.tolist(), strict=True)
    assert dict(found) == dict(by_bin)
    assert masses.first.tolist() == [0, len(by_bin)]


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, V - 1), max_size=40),
    st.tuples(st.integers(1, 4), st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)),
    st.booleans(),
    st.lists(st.integers(-1, V - 1), max_size=8),
)
def test_distributions_of_any_text_sum_to_one(
    text: list[int], sizes: tuple[int, int, int, int], across: bool, context: list[int]
) -> None:
    order, remote, skip, adjacent = sizes
    config = SNMConfig(
        order=order,
        num_remote=remote,
        max_skip=skip,
        num_adjacent=adjacent,
        across_lines=across,
        num_epochs=2,
    )
    ids = np.array(text, np.int64)
    made = estimate_matrix(ids, config, vocab_size=V, boundary_id=0, num_threads=1)
    tokens = ([NOTHING] * made.order + context)[len(context) + 1 :]
    logprobs_BV = made.distributions(np.array([tokens], np.int64).reshape(1, made.order - 1))
    assert np.exp(logprobs_BV.astype(np.float64)).sum() == pytest.approx(1, abs=1e-5)
    assert np.isfinite(made.score(ids)).all()


def test_rows_are_found_wherever_their_keys_lie() -> None:
    """Guessing where a key is must not miss one, at the ends least of all."""
    made = model(SKIPPING, True, Adjustment.neutral(len(SKIPPING)))
    total = 0
    for kind in range(len(SKIPPING)):
        low, high = made.row_starts[kind : kind + 2]
        assert np.array_equal(made.keys[low:high], np.unique(made.keys[low:high]))
        total += high - low
    assert total == len(made.keys)
    seen = made.by_template()
    assert sum(row["contexts"] for row in seen) == total
    assert sum(row["entries"] for row in seen) == len(made.words)


def test_a_model_comes_back_as_it_was(tmp_path: Path) -> None:
    saved = estimate_matrix(TEXT, SNMConfig(order=3), vocab_size=V, boundary_id=0)
    path = tmp_path / "m.safetensors"
    save_matrix(path, saved, {"tokenizer": "abc"})
    loaded, header = load_matrix(path)
    assert header["tokenizer"] == "abc"
    assert np.array_equal(loaded.score(TEXT), saved.score(TEXT))
    contexts = np.array([[NOTHING] * (loaded.order - 3) + [1, 2]])
    assert np.array_equal(loaded.distributions(contexts), saved.distributions(contexts))
    assert (loaded.templates, loaded.about) == (saved.templates, saved.about)
    with safe_open(path, framework="numpy") as file:
        assert np.array_equal(file.get_tensor("weights"), saved.weights)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ElmanError, match="damaged"):
        load_matrix(path)
    saved.row_starts = [0, 1]
    save_matrix(path, saved)
    with pytest.raises(ElmanError, match="do not belong together"):
        load_matrix(path)


def test_tokens_outside_the_vocabulary_are_refused() -> None:
    made = model(SKIPPING, False, Adjustment.neutral(len(SKIPPING)))
    with pytest.raises(UsageError, match="token 6 is not"):
        made.score(np.array([1, 6]))
    with pytest.raises(UsageError, match="token -2 is not"):
        made.distributions(np.full((1, made.order - 1), -2))


@pytest.mark.parametrize(
    ("name", "value"), [("order", 0), ("max_skip", -1), ("learning_rate", 0.0), ("num_events", 0)]
)
def test_values_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"model.{name} cannot be {value}"):
        SNMConfig(**{name: value})  # type: ignore[arg-type]
