"""Suffixes in order, against Python's own sorting."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elman.ngrams import suffix_array as module
from elman.ngrams.scratch import Scratch
from elman.ngrams.suffix_array import DEPTH, join_arrays, sort_suffixes, suffix_array

texts = st.lists(st.integers(0, 3), max_size=60)


def by_hand(text: list[int]) -> list[int]:
    return sorted(range(len(text)), key=lambda place: (text[place : place + DEPTH], place))


@settings(max_examples=150)
@given(texts, st.integers(1, 2))
def test_suffixes_are_in_order(text: list[int], num_threads: int) -> None:
    ids = np.array(text, np.uint16)
    assert sort_suffixes(ids, len(ids), 4, num_threads).tolist() == by_hand(text)


@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
@pytest.mark.parametrize("text", [[1] * 300, [0, 1] * 150, [*range(150)] * 2, [7] * 99 + [3]])
def test_repetitive_texts(text: list[int], dtype: type) -> None:
    ids = np.array(text, dtype)
    assert sort_suffixes(ids, len(ids), 200).tolist() == by_hand(text)


def test_suffixes_that_are_equal_to_the_limit_are_in_order_of_position() -> None:
    size = DEPTH + 500
    places = sort_suffixes(np.ones(size, np.uint16), size, 2)
    ending, equal = places[: DEPTH - 1], places[DEPTH - 1 :]
    assert ending.tolist() == list(range(size - 1, size - DEPTH, -1))  # the shortest one first
    assert equal.tolist() == list(range(size - DEPTH + 1))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts, st.integers(3, 40), st.integers(1, 30))
def test_pieces_give_the_same_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: list[int], piece: int, at_once: int
) -> None:
    monkeypatch.setattr(module, "_PIECE_SIZE", piece)
    monkeypatch.setattr(module, "_MERGED_AT_ONCE", at_once)
    ids = np.array(text, np.uint16)
    with Scratch(tmp_path) as scratch:
        parts = list(suffix_array(ids, 4, scratch=scratch, memory=1))
    assert np.concatenate(parts).tolist() == by_hand(text)
    assert len(parts) > 1 or len(text) <= max(piece, at_once)


def test_a_text_that_is_given_twice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    half = np.random.default_rng(0).integers(0, 50, DEPTH + 2_000).astype(np.uint16)
    ids = np.concatenate([half, half])
    monkeypatch.setattr(module, "_PIECE_SIZE", len(half))
    with Scratch(tmp_path) as scratch:
        merged = np.concatenate(list(suffix_array(ids, 50, scratch=scratch, memory=1)))
    assert np.array_equal(merged, sort_suffixes(ids, len(ids), 50))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(texts, min_size=1, max_size=4), st.integers(1, 30))
def test_joined_parts_give_the_same_order(
    monkeypatch: pytest.MonkeyPatch, parts: list[list[int]], at_once: int
) -> None:
    monkeypatch.setattr(module, "_MERGED_AT_ONCE", at_once)
    begins = np.cumsum([0, *map(len, parts)]).tolist()
    done = [
        (begin, iter([np.array(by_hand(part), np.int64) + begin]))
        for begin, part in zip(begins, parts, strict=False)
    ]
    text = [token for part in parts for token in part]
    joined = list(join_arrays(np.array(text, np.uint16), 4, done))
    assert np.concatenate(joined).tolist() == by_hand(text)


def test_equal_parts_are_joined_in_order() -> None:
    half = np.random.default_rng(0).integers(0, 3, DEPTH + 500).astype(np.uint16)
    half[-100:] = half[-1]
    places = sort_suffixes(half, len(half), 3).astype(np.int64)
    ids = np.concatenate([half, half])
    joined = join_arrays(ids, 3, [(0, iter([places])), (len(half), iter([places + len(half)]))])
    assert np.array_equal(np.concatenate(list(joined)), sort_suffixes(ids, len(ids), 3))
