"""Buckets: every sequence once an epoch, like lengths together, resumable at any batch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elman.base.errors import ElmanError
from elman.batches.buckets import SentenceBatch, SentenceBatches, batches_by_length, beginning, pad
from elman.batches.wording import Spelled, Wording

LENGTHS = st.lists(st.integers(0, 50), min_size=1, max_size=80)


def buckets_of(lengths: list[int], **settings: Any) -> SentenceBatches[list[int]]:
    """Batches that are the indices themselves."""
    return SentenceBatches(lengths, list, **settings)


def epoch_of(buckets: SentenceBatches[list[int]]) -> list[list[int]]:
    """The batches up to the end of the epoch."""
    epoch, batches = buckets.epoch, []
    while buckets.epoch == epoch:
        batches.append(next(buckets))
    return batches


@given(lengths=LENGTHS, batch_size=st.integers(1, 10), seed=st.integers(0, 3))
def test_each_epoch_has_every_sequence_once(lengths: list[int], batch_size: int, seed: int) -> None:
    buckets = buckets_of(lengths, batch_size=batch_size, seed=seed)
    for epoch in range(2):
        assert buckets.epoch == epoch
        batches = epoch_of(buckets)
        assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
        assert all(1 <= len(batch) <= batch_size for batch in batches)
        assert len(batches) == -(-len(lengths) // batch_size)
        assert buckets.position == 0


@given(lengths=LENGTHS, taken=st.integers(0, 50), seed=st.integers(0, 3))
def test_going_on_from_any_batch(lengths: list[int], taken: int, seed: int) -> None:
    buckets = buckets_of(lengths, batch_size=4, seed=seed)
    for _ in range(taken):
        next(buckets)
    resumed = buckets_of(lengths, batch_size=4, seed=seed)
    resumed.load_state_dict(json.loads(json.dumps(buckets.state_dict())))
    assert [next(resumed) for _ in range(30)] == [next(buckets) for _ in range(30)]


def test_little_is_padded_and_epochs_differ() -> None:
    lengths = [(i * 37) % 100 + 1 for i in range(1000)]
    buckets = buckets_of(lengths, batch_size=20)
    first = epoch_of(buckets)
    second = epoch_of(buckets)
    padded = sum(len(batch) * max(lengths[i] for i in batch) for batch in first)
    assert padded < 1.15 * sum(lengths)
    assert {frozenset(batch) for batch in first} != {frozenset(batch) for batch in second}
    firsts = [max(lengths[i] for i in batch) for batch in first]
    assert firsts != sorted(firsts)


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(ElmanError, match="no sequences"):
        buckets_of([], batch_size=1)
    with pytest.raises(ElmanError, match="num_sequences was 2 and is now 3"):
        buckets_of([1, 1, 1], batch_size=1).load_state_dict(
            buckets_of([1, 2], batch_size=1).state_dict()
        )


def test_padding() -> None:
    tokens_BT, mask_BT = pad([[5, 6, 7], [], [8]], padding_id=9)
    assert tokens_BT.tolist() == [[5, 6, 7], [9, 9, 9], [8, 9, 9]]
    assert mask_BT.tolist() == [[True] * 3, [False] * 3, [True, False, False]]
    assert tokens_BT.dtype == torch.int64


@settings(max_examples=40)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=60), st.integers(1, 30))
def test_batches_of_one_length_have_every_sequence_once(lengths: list[int], size: int) -> None:
    buckets = buckets_of(lengths, batch_size=size, equal=True, seed=2)
    tokens = -(-sum(lengths) * size // len(lengths))
    epochs = [epoch_of(buckets) for _ in range(2)]
    for batches in epochs:
        assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
        for batch in batches:
            assert len({lengths[i] for i in batch}) == 1
            assert len(batch) == 1 or len(batch) * lengths[batch[0]] <= tokens


@settings(max_examples=40)
@given(st.lists(st.integers(0, 9), max_size=60), st.integers(1, 30))
def test_reading_meets_every_sequence_that_is_not_empty(lengths: list[int], tokens: int) -> None:
    batches = list(batches_by_length(lengths, tokens, alike=1))
    found = sorted(i for batch in batches for i in batch)
    assert found == [i for i, length in enumerate(lengths) if length]
    assert all(len({lengths[i] for i in batch}) == 1 for batch in batches)
    assert all(len(b) == 1 or len(b) * lengths[b[0]] <= tokens for b in batches)


def test_batches_of_equal_length_weigh_about_the_same() -> None:
    lengths = [1] * 400 + [20] * 20
    stream = buckets_of(lengths, batch_size=42, equal=True, seed=1)
    assert stream.tokens_per_epoch == 800
    assert sorted(sum(lengths[i] for i in batch) for batch in epoch_of(stream)) == [80] * 10


@pytest.mark.parametrize(("limit", "number"), [(None, 3), (100, 3), (7, 3), (6, 2), (4, 2), (3, 1)])
def test_a_beginning_is_the_fewest_whole_texts_with_enough_tokens(
    limit: int | None, number: int
) -> None:
    texts = ["abc", "abc", "ab"]
    assert list(beginning(texts, len, limit)) == texts[:number]


@dataclass(frozen=True, kw_only=True)
class Labelled(SentenceBatch):
    tokens_BT: torch.Tensor
    labels_B: torch.Tensor
    table_UC: torch.Tensor


def test_rows_of_a_batch_are_as_long_as_they_need_to_be() -> None:
    batch = Labelled(
        tokens_BT=torch.tensor([[1, 2, 3], [4, 0, 0], [5, 6, 0]]),
        lengths_B=torch.tensor([3, 1, 2]),
        labels_B=torch.tensor([7, 8, 9]),
        table_UC=torch.zeros(4, 2),
        wording=Wording.of([Spelled.of_words([letter]) for letter in "abc"]),
    )
    assert (batch.num_rows, batch.num_tokens, batch.num_targets, batch.fresh) == (3, 6, 3, True)
    some = batch.to("cpu").rows(slice(1, 3))
    assert some.tokens_BT.tolist() == [[4, 0], [5, 6]]
    assert (some.lengths_B.tolist(), some.labels_B.tolist()) == ([1, 2], [8, 9])
    assert some.wording is not None
    assert some.wording.words == [("b",), ("c",)]
    assert some.table_UC.shape == (4, 2)
