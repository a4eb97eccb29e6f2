"""The compact layout answers as the plain one does, to the bit unless it is quantised."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elman.base.errors import ElmanError, UsageError
from elman.ngrams import compact, compact_walking
from elman.ngrams.backoff import BackoffModel
from elman.ngrams.compact import Bits, CompactModel, load_compact, save_compact
from elman.ngrams.counting import count
from elman.ngrams.from_lists import NgramList, model_of_lists
from elman.ngrams.smoothing import build
from elman.ngrams.storage import load, open_model
from elman.tasks.ngram.settings import NgramConfig

V = 300
RNG = np.random.default_rng(0)
IDS = np.minimum(RNG.zipf(1.4, 6_000) - 1, V - 1).astype(np.int32)
TEXT = RNG.permutation(IDS)[:300]


def plain(order: int, ids: np.ndarray = IDS, size: int = V, **settings: object) -> BackoffModel:
    config = NgramConfig(order=order, **settings)  # type: ignore[arg-type]
    return build(count(ids, order, vocab_size=size, boundary_id=0), config)


def packed(folder: Path, model: BackoffModel, bits: Bits | None = None) -> CompactModel:
    save_compact(folder / "m", model, bits)
    return load_compact(folder / "m")


def answers(model: BackoffModel | CompactModel, text: np.ndarray = TEXT) -> list[np.ndarray]:
    rows = text[: len(text) // 3 * 3].reshape(3, -1).astype(np.int64)
    context = np.full((3, model.order - 1), -1)
    return [
        model.score(text, 1),
        model.score_rows(rows, rows[:, ::-1], context),
        model.score_rows(rows[:, :-1], rows[:, 1:], context),
        model.distributions(rows[:, : model.order - 1]),
        model.context_lengths(rows[:, : model.order - 1]),
    ]


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("smoothing", ["kneser-ney", "maximum-likelihood"])
def test_exact_numbers_are_the_same(tmp_path: Path, order: int, smoothing: str) -> None:
    model = plain(order, smoothing=smoothing)
    found = packed(tmp_path, model)
    for ours, expected in zip(answers(found), answers(model), strict=True):
        assert np.array_equal(ours, expected)
    assert found.num_ngrams == model.num_ngrams
    assert found.undefined(TEXT[None, : order - 1]) == model.undefined(TEXT[None, : order - 1])


@pytest.mark.parametrize("order", [1, 2, 4])
def test_it_turns_back_into_the_plain_layout(tmp_path: Path, order: int) -> None:
    model = plain(order)
    found = packed(tmp_path, model).plain()
    for name in ("contexts", "leaves", "words"):
        assert np.array_equal(getattr(found, name), getattr(model, name))
    assert (found.level_starts, found.about) == (model.level_starts, model.about)


def test_a_pruned_model_is_the_same(tmp_path: Path) -> None:
    model = plain(4, prune=(0, 0, 1))
    for ours, expected in zip(answers(packed(tmp_path, model)), answers(model), strict=True):
        assert np.array_equal(ours, expected)


def test_ngrams_whose_suffixes_are_not_stored(tmp_path: Path) -> None:
    """Other toolkits prune by entropy: a trigram may be there without the bigram that ends it."""
    numbers = np.float32([-1.0, -1.5, -2.0, -2.5])
    lists = [
        NgramList(np.arange(4, dtype=np.int32)[:, None], numbers, np.float32([-0.5, -0.25, 0, -1])),
        NgramList(np.int32([[1, 2], [2, 1]]), np.float32([-0.5, -0.75]), np.float32([-0.1, -0.2])),
        NgramList(np.int32([[1, 2, 3], [2, 1, 1]]), np.float32([-0.3, -0.4]), np.zeros(2, "f4")),
    ]
    model = model_of_lists(lists, 0)
    model.about |= {"normalised": True, "notes": []}
    found = packed(tmp_path, model)
    assert not found.closed
    text = RNG.integers(0, 4, 90).astype(np.int32)
    for ours, expected in zip(answers(found, text), answers(model, text), strict=True):
        assert np.array_equal(ours, expected)
    assert packed(tmp_path, plain(3)).closed


@given(data=st.data())
def test_packed_records_are_read_back(data: st.DataObject) -> None:
    widths = np.array([data.draw(st.integers(1, 32)) for _ in range(4)], np.int64)
    number = data.draw(st.integers(1, 70))
    limits = [min(2 ** int(width), 2**31) for width in widths]
    fields = [
        np.array(data.draw(st.lists(st.integers(0, top - 1), min_size=number, max_size=number)))
        for top in limits
    ]
    packed = np.zeros(-(-number * int(widths.sum()) // 64) + 2, np.uint64)
    kinds = (np.int32, np.uint32, np.uint32, np.int32)
    compact_walking.pack(
        *(field.astype(kind) for field, kind in zip(fields, kinds, strict=True)),  # type: ignore[arg-type]
        widths,
        packed,
    )
    whole = sum(int(word) << (64 * i) for i, word in enumerate(packed))
    for i in range(number):
        at = i * int(widths.sum())
        for field, width in zip(fields, widths.tolist(), strict=True):
            assert (whole >> at) & (2**width - 1) == field[i]
            at += width


@given(st.lists(st.integers(0, 50) | st.integers(0, 20_000), min_size=1, max_size=300))
def test_pointers_are_read_back(num_children: list[int]) -> None:
    first_child = np.concatenate([[0], np.cumsum(num_children)]).astype(np.int32)
    pointers = compact._Pointers(first_child)
    bases, offsets = pointers.bases(5), pointers.offsets(0, len(first_child))
    assert offsets.max() < 2**pointers.width
    for i, expected in enumerate(first_child.tolist()):
        base = int(bases[i >> 6])
        found = base + offsets[i] if base >= 0 else pointers.wide[-1 - base - 5, i & 63]
        assert found == expected


def test_quantised_numbers_are_within_the_error_of_the_bins(tmp_path: Path) -> None:
    model = plain(3)
    for bits in (Bits(8, 8), Bits(4, 12), Bits(32, 6)):
        rounded = packed(tmp_path, model, bits).plain()
        for start, end in pairwise(rounded.level_starts[1:]):
            exact, found = model.logprob[start:end], rounded.logprob[start:end]
            values = np.unique(found)
            assert len(values) <= 2**bits.prob
            gap = np.diff(values).max() if len(values) > 1 else 0.0
            widest = max(gap, exact.max() - values.max(), values.min() - exact.min())
            assert (np.abs(found - exact) <= widest + 1e-6).all()
        zero = model.backoff[V:] == 0
        assert (rounded.backoff[V:][zero] == 0).all()
        assert np.array_equal(rounded.unigrams, model.unigrams)


def test_many_bits_round_nothing(tmp_path: Path) -> None:
    model = plain(3)
    found = packed(tmp_path, model, Bits(16, 16))
    assert np.array_equal(found.score(TEXT), model.score(TEXT))
    assert "16 bits" in found.layout


def test_it_is_smaller(tmp_path: Path) -> None:
    model = plain(4)
    whole, exact, few = (
        size.bytes_up_to(4)
        for size in (model, packed(tmp_path, model), packed(tmp_path, model, Bits(8, 8)))
    )
    assert whole > 1.4 * exact > 2 * few
    assert [row["ngrams"] for row in model.growth()] == model.num_ngrams


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("bits", [Bits(), Bits(8, 8)])
def test_its_size_is_that_of_its_arrays(tmp_path: Path, order: int, bits: Bits) -> None:
    found = packed(tmp_path, plain(order), bits)
    arrays = (
        *(found.records, found.bases, found.wide),
        *(found.roots, found.unigram_floats, found.bins),
    )
    assert found.bytes_up_to(order) == sum(array.nbytes for array in arrays)


def test_layouts_are_told_apart(tmp_path: Path) -> None:
    save_compact(tmp_path / "m", plain(2))
    assert isinstance(open_model(tmp_path / "m")[0], CompactModel)
    with pytest.raises(ElmanError, match="format 2"):
        load(tmp_path / "m")


@pytest.mark.parametrize("bits", [0, 1, 25, 33])
def test_bits_that_are_no_use_are_refused(bits: int) -> None:
    with pytest.raises(UsageError, match=f"{bits} bits"):
        Bits(bits, 8)
