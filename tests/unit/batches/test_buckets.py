"""Buckets: every sequence once an epoch, like lengths together, resumable at any batch."""

from __future__ import annotations

import json
from typing import cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elman.base.errors import ElmanError, UsageError
from elman.batches.batch import TaskBatch
from elman.batches.buckets import Buckets, SentenceBatches, batches_by_length, pad

LENGTHS = st.lists(st.integers(0, 50), min_size=1, max_size=80)


@given(lengths=LENGTHS, batch_size=st.integers(1, 10), seed=st.integers(0, 3))
@settings(deadline=None)
def test_each_epoch_has_every_sequence_once(lengths: list[int], batch_size: int, seed: int) -> None:
    buckets = Buckets(lengths, batch_size=batch_size, seed=seed)
    for epoch in range(2):
        assert buckets.epoch == epoch
        batches = [next(buckets) for _ in range(buckets.batches_per_epoch)]
        assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
        assert all(1 <= len(batch) <= batch_size for batch in batches)
        assert len(batches) == -(-len(lengths) // batch_size)
        assert buckets.position == 0


@given(lengths=LENGTHS, tokens=st.integers(1, 200))
@settings(deadline=None)
def test_a_batch_keeps_to_its_tokens(lengths: list[int], tokens: int) -> None:
    buckets = Buckets(lengths, tokens_per_batch=tokens)
    batches = [next(buckets) for _ in range(buckets.batches_per_epoch)]
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= tokens


@given(lengths=LENGTHS, taken=st.integers(0, 50), seed=st.integers(0, 3))
@settings(deadline=None)
def test_going_on_from_any_batch(lengths: list[int], taken: int, seed: int) -> None:
    buckets = Buckets(lengths, batch_size=4, seed=seed)
    for _ in range(taken):
        next(buckets)
    resumed = Buckets(lengths, batch_size=4, seed=seed)
    resumed.load_state_dict(json.loads(json.dumps(buckets.state_dict())))
    assert [next(resumed) for _ in range(30)] == [next(buckets) for _ in range(30)]


def test_little_is_padded_and_epochs_differ() -> None:
    lengths = [(i * 37) % 100 + 1 for i in range(1000)]
    buckets = Buckets(lengths, batch_size=20)
    first = [next(buckets) for _ in range(buckets.batches_per_epoch)]
    second = [next(buckets) for _ in range(buckets.batches_per_epoch)]
    padded = sum(len(batch) * max(lengths[i] for i in batch) for batch in first)
    assert padded < 1.15 * sum(lengths)
    assert {frozenset(batch) for batch in first} != {frozenset(batch) for batch in second}
    firsts = [max(lengths[i] for i in batch) for batch in first]
    assert firsts != sorted(firsts)


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(UsageError, match="either batch_size or tokens_per_batch"):
        Buckets([1, 2])
    with pytest.raises(UsageError, match="either batch_size or tokens_per_batch"):
        Buckets([1, 2], batch_size=1, tokens_per_batch=1)
    with pytest.raises(ElmanError, match="no sequences"):
        Buckets([], batch_size=1)
    with pytest.raises(ElmanError, match="num_sequences was 2 and is now 3"):
        Buckets([1, 1, 1], batch_size=1).load_state_dict(Buckets([1, 2], batch_size=1).state_dict())


def test_padding() -> None:
    tokens_BT, mask_BT = pad([[5, 6, 7], [], [8]], padding_id=9)
    assert tokens_BT.tolist() == [[5, 6, 7], [9, 9, 9], [8, 9, 9]]
    assert mask_BT.tolist() == [[True] * 3, [False] * 3, [True, False, False]]
    assert tokens_BT.dtype == torch.int64


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=60), st.integers(1, 30))
def test_batches_of_one_length_have_every_sequence_once(lengths: list[int], tokens: int) -> None:
    buckets = Buckets(lengths, tokens_per_batch=tokens, equal=True, seed=2)
    epochs = [[next(buckets) for _ in range(buckets.batches_per_epoch)] for _ in range(2)]
    for batches in epochs:
        assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
        for batch in batches:
            assert len({lengths[i] for i in batch}) == 1
            assert len(batch) == 1 or len(batch) * lengths[batch[0]] <= tokens


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 9), max_size=60), st.integers(1, 30))
def test_reading_meets_every_sequence_that_is_not_empty(lengths: list[int], tokens: int) -> None:
    batches = list(batches_by_length(lengths, tokens, alike=1))
    found = sorted(i for batch in batches for i in batch)
    assert found == [i for i, length in enumerate(lengths) if length]
    assert all(len({lengths[i] for i in batch}) == 1 for batch in batches)
    assert all(len(b) == 1 or len(b) * lengths[b[0]] <= tokens for b in batches)


def test_batches_of_equal_length_weigh_about_the_same() -> None:
    lengths = [1] * 400 + [20] * 20
    made: list[list[int]] = []

    def make(indices: list[int]) -> TaskBatch:
        made.append(indices)
        return cast(TaskBatch, None)

    stream = SentenceBatches.of_equal_length(lengths, make, batch_size=42, seed=1)
    assert stream.tokens_per_epoch == 800
    while stream.epoch == 0:
        next(stream)
    assert sorted(sum(lengths[i] for i in batch) for batch in made) == [80] * 10
