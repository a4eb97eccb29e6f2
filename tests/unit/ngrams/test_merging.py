from __future__ import annotations

from pathlib import Path

import numpy as np
from by_hand import as_ids
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elman.base.memory import resident_bytes
from elman.ngrams.counting import count
from elman.ngrams.scratch import Scratch
from elman.ngrams.smoothing import about, estimate
from elman.ngrams.stages import Stages, count_within, work
from elman.ngrams.storage import save_estimate
from elman.ngrams.trie import CountTrie
from elman.tasks.ngram.settings import NgramConfig

lines_of_tokens = st.lists(st.lists(st.integers(1, 5), max_size=7), max_size=12)


def assert_same(one: CountTrie, other: CountTrie) -> None:
    assert one.order == other.order
    for mine, theirs in zip(one.levels, other.levels, strict=True):
        for name in ("words", "counts", "first_child", "suffix"):
            assert np.array_equal(getattr(mine, name), getattr(theirs, name)), name


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines_of_tokens, st.integers(1, 5), st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_shards_merge_to_what_counting_at_once_gives(
    tmp_path: Path, lines: list[list[int]], order: int, num_shards: int, num_ranges: int,
    packed: bool,
) -> None:  # fmt: skip
    ids, sizes = as_ids(lines), {"vocab_size": 7, "boundary_id": 0}
    with Scratch(tmp_path) as scratch:
        numbers = {"num_shards": num_shards, "num_ranges": num_ranges}
        stages = Stages.create(scratch.path(), ids, order, packed=packed, **numbers, **sizes)
        assert stages.num_shards <= num_shards
        assert stages.num_ranges <= num_ranges
        assert np.array_equal(stages.ids(), ids)
        list(work(stages, memory=1))
        assert_same(stages.trie(scratch), count(ids, order, **sizes))


def test_a_model_made_on_disk_is_the_same_to_the_last_bit(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    ids = np.minimum(rng.zipf(1.2, 30_000) - 1, 499).astype(np.int32)
    config = NgramConfig(order=4)
    sizes = {"vocab_size": 500, "boundary_id": 0}
    trie, found = estimate(count(ids, 4, **sizes), config)
    save_estimate(tmp_path / "memory", trie, found, about(config, found))
    with Scratch(tmp_path, limit=0) as scratch:
        trie = count_within(ids, 4, scratch, 500_000, **sizes)
        assert len(list(scratch.folder.rglob("*.counts"))) == 4, "it did not use the disk"
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
