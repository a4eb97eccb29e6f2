"""Compressed runs: the same numbers come back, in less room, and errors say what is wrong."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from elman.base.errors import ElmanError
from elman.ngrams import packed_runs
from elman.ngrams import stages as stages_module
from elman.ngrams.counting import count, count_starts
from elman.ngrams.packed_runs import PackedRun, can_pack, packed_sizes
from elman.ngrams.stages import Stages, bytes_per_token, disk_needed
from elman.ngrams.trie import CountTrie
from elman.ngrams.trie_files import TrieFiles

pytest.importorskip("zstandard")

ORDER, SIZES = 3, {"vocab_size": 500, "boundary_id": 0}


@pytest.fixture
def ids() -> np.ndarray:
    found = np.random.default_rng(0).zipf(1.2, 30_000)
    return np.minimum(found - 1, 499).astype(np.int32)


@pytest.fixture
def trie(ids: np.ndarray) -> CountTrie:
    return count_starts(ids, len(ids), ORDER, **SIZES)


@pytest.fixture
def chunked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small chunks, so that reading crosses many of them."""
    monkeypatch.setattr(packed_runs, "CHUNK", 128)


@pytest.mark.usefixtures("chunked")
def test_any_stretch_reads_as_from_plain_files(trie: CountTrie, tmp_path: Path) -> None:
    plain, packed = TrieFiles(tmp_path / "plain", ORDER), PackedRun(tmp_path / "packed", ORDER)
    for files in (plain, packed):
        files.folder.mkdir()
        files.write(trie)
    rng = np.random.default_rng(1)
    for level, made in enumerate(trie.levels):
        for _ in range(20):
            first, end = np.sort(rng.integers(0, len(made) + 1, 2)).tolist()
            found = [np.zeros((3, end - first), np.int32) for _ in range(2)]
            plain.read(level, first, list(found[0]))
            packed.read(level, first, list(found[1]))
            assert np.array_equal(*found)
            if level + 1 < ORDER:
                assert packed.first_child(level, end) == plain.first_child(level, end)
    sizes = [sum(file.stat().st_size for file in f.folder.iterdir()) for f in (plain, packed)]
    assert sizes[1] < sizes[0] / 2


def test_a_damaged_run_is_an_error(trie: CountTrie, tmp_path: Path) -> None:
    run = PackedRun(tmp_path, ORDER)
    run.write(trie)
    file = tmp_path / "2.packed"
    file.write_bytes(file.read_bytes()[:-9])
    into = [np.zeros(len(trie.levels[1]), np.int32) for _ in range(3)]
    with pytest.raises(OSError, match=r"2\.packed is damaged"):
        run.read(1, 0, into)


def test_the_disk_that_is_needed(ids: np.ndarray, trie: CountTrie, tmp_path: Path) -> None:
    numbers = {"num_shards": 4, "num_ranges": 2}
    needed = {}
    for packed in (True, False):
        stages = Stages.create(
            tmp_path / str(packed), ids, ORDER, packed=packed, **numbers, **SIZES
        )
        needed[packed] = disk_needed(ids, ORDER, 4, packed=packed, **SIZES)
        assert needed[packed].ngrams == [len(level) for level in count(ids, ORDER, **SIZES).levels]
        for shard in range(4):
            stages.count(shard)
        runs = sum(file.stat().st_size for file in stages.folder.glob("count-*/*"))
        assert runs == pytest.approx(needed[packed].runs, rel=0.3)
    assert needed[True].runs < needed[False].runs / 2
    assert sum(packed_sizes(trie)) < needed[False].runs


def test_the_sample_for_the_estimate_keeps_to_the_memory(
    ids: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []

    def watched(ids: np.ndarray, order: int, **sizes: int) -> CountTrie:
        counted.append(len(ids) * bytes_per_token(order))
        return count(ids, order, **sizes)

    monkeypatch.setattr(stages_module, "count", watched)
    disk_needed(ids, ORDER, 4, memory=100_000, **SIZES)
    assert 50_000 < sum(counted) <= 100_000


def test_runs_are_compressed_where_it_lowers_the_disk_that_is_needed(
    ids: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = (disk_needed(ids, ORDER, number, **SIZES) for number in (2, 100))
    assert [few.packed, many.packed] == [False, True]
    assert many.most < disk_needed(ids, ORDER, 100, packed=False, **SIZES).most
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert not disk_needed(ids, ORDER, 100, **SIZES).packed


def test_without_zstandard(
    ids: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = {"num_shards": 2, "num_ranges": 2}
    stages = Stages.create(tmp_path, ids, ORDER, packed=True, **numbers, **SIZES)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setattr(packed_runs, "_OWN", threading.local())
    assert not can_pack()
    with pytest.raises(ElmanError, match="zstandard"):
        stages.count(0)
