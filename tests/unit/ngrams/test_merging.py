from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from by_hand import as_ids
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elman.base.errors import UsageError
from elman.ngrams import merging
from elman.ngrams.counting import count
from elman.ngrams.merging import count_within, merge, shards
from elman.ngrams.scratch import Scratch, resident_bytes
from elman.ngrams.smoothing import about, estimate
from elman.ngrams.storage import save_estimate
from elman.ngrams.trie import CountTrie, link
from elman.tasks.ngram.settings import NgramConfig

lines_of_tokens = st.lists(st.lists(st.integers(1, 5), max_size=7), max_size=12)


def assert_same(one: CountTrie, other: CountTrie) -> None:
    assert one.order == other.order
    for mine, theirs in zip(one.levels, other.levels, strict=True):
        for name in ("words", "counts", "first_child", "suffix"):
            assert np.array_equal(getattr(mine, name), getattr(theirs, name)), name


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines_of_tokens, st.integers(1, 5), st.integers(1, 9), st.integers(1, 30))
def test_shards_merge_to_what_counting_at_once_gives(
    tmp_path: Path, lines: list[list[int]], order: int, shard_size: int, max_ngrams: int
) -> None:
    ids = as_ids(lines)[: 8 * shard_size]  # files are opened for each shard
    with Scratch(tmp_path) as scratch:
        parts = list(shards(ids, order, shard_size, 7, 0))
        merged = merge(parts, scratch, max_ngrams)
        link(merged)
        assert_same(merged, count(ids, order, vocab_size=7, boundary_id=0))


def test_a_model_made_on_disk_is_the_same_to_the_last_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "SMALLEST_MEMORY", 0)
    rng = np.random.default_rng(0)
    ids = np.minimum(rng.zipf(1.2, 30_000) - 1, 499).astype(np.int32)
    config = NgramConfig(order=4)
    sizes = {"vocab_size": 500, "boundary_id": 0}
    trie, found = estimate(count(ids, 4, **sizes), config)
    save_estimate(tmp_path / "memory", trie, found, about(config, found))
    with Scratch(tmp_path, limit=0) as scratch:
        trie = count_within(ids, 4, scratch, 500_000, **sizes)
        assert len(list(scratch.folder.iterdir())) > 20, "it did not use the disk"
        trie, found = estimate(trie, config)
        save_estimate(tmp_path / "disk", trie, found, about(config, found))
        del trie, found
    assert (tmp_path / "memory").read_bytes() == (tmp_path / "disk").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "memory"]


def test_pages_given_back_come_again(tmp_path: Path) -> None:
    with Scratch(tmp_path) as scratch:
        array = scratch.empty(1 << 20)
        array[:] = np.arange(1 << 20)
        before = resident_bytes()
        scratch.release()
        assert resident_bytes() <= before - (3 << 20)
        assert np.array_equal(array, np.arange(1 << 20))


def test_too_little_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="too few"), Scratch(tmp_path) as scratch:
        count_within(np.array([1]), 2, scratch, 1000, vocab_size=2, boundary_id=0)
    assert not list(tmp_path.iterdir())
