"""Stages whose files pass through an address: the same trie, from file systems of several kinds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from elman.base.errors import ElmanError, UsageError
from elman.ngrams import exchange as exchanges
from elman.ngrams import packed_runs
from elman.ngrams.cluster import Cluster
from elman.ngrams.counting import count
from elman.ngrams.exchange import Exchange, count_there, merge_there
from elman.ngrams.scratch import Scratch
from elman.ngrams.stages import IDS_FILE, Stages, work

pytest.importorskip("fsspec")

ORDER, SIZES = 3, {"vocab_size": 500, "boundary_id": 0}


@pytest.fixture
def ids() -> np.ndarray:
    found = np.random.default_rng(0).zipf(1.2, 5_000)
    return np.minimum(found - 1, 499).astype(np.int32)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("kind", ["memory://{}", "file://{}", "{}"])
def test_workers_without_a_folder_make_the_same_trie(
    ids: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, packed: bool
) -> None:
    if packed:
        pytest.importorskip("zstandard")
    for module in (packed_runs, exchanges):
        monkeypatch.setattr(module, "CHUNK", 128)
    numbers = {"num_shards": 3, "num_ranges": 3}
    stages = Stages.create(tmp_path / "own", ids, ORDER, packed=packed, **numbers, **SIZES)
    exchange = Exchange.of(kind.format(tmp_path / "there"), stages)
    exchange.share(stages)
    assert exchange.left("count", 3) == [0, 1, 2]
    for shard in (0, 1, 2, 1):  # twice does no harm
        count_there(exchange.address, shard)
    assert exchange.left("count", 3) == []
    for number in (2, 0):
        merge_there(exchange.address, number)
    assert exchange.left("merge", 3) == [1]
    merge_there(exchange.address, 1)
    exchange.get_ranges(stages)
    assert stages.ranges_left() == []
    exchange.remove()
    assert not exchange.exists("plan.json")
    list(work(stages, 1 << 20))
    with Scratch(tmp_path) as scratch:
        made, whole = stages.trie(scratch), count(ids, ORDER, **SIZES)
        for mine, theirs in zip(made.levels, whole.levels, strict=True):
            assert np.array_equal(mine.words, theirs.words)
            assert np.array_equal(mine.counts, theirs.counts)
        del made, mine


def test_a_worker_fetches_its_part_of_the_text(ids: np.ndarray, tmp_path: Path) -> None:
    numbers = {"num_shards": 4, "num_ranges": 1}
    stages = Stages.create(tmp_path / "own", ids, ORDER, **numbers, **SIZES)
    exchange = Exchange.of(str(tmp_path / "there"), stages)
    exchange.share(stages)
    part = tmp_path / "part"
    exchange.get_part(IDS_FILE, 2_000, 4_000, part)
    assert part.read_bytes()[2_000:] == ids.astype(np.uint16).tobytes()[2_000:4_000]
    with pytest.raises(ElmanError, match="cut short"):
        exchange.get_part(IDS_FILE, 9_000, 11_000, part)


def test_what_a_killed_run_left_is_removed_when_it_continues(
    ids: np.ndarray, tmp_path: Path
) -> None:
    stages = Stages.create(tmp_path / "own", ids, ORDER, num_shards=1, num_ranges=1, **SIZES)
    exchange = Exchange.of(str(tmp_path / "there"), stages)
    exchange.share(stages)
    count_there(exchange.address, 0)
    merge_there(exchange.address, 0)
    exchange.get_ranges(stages)  # and here the process was killed
    for _ in range(2):  # twice: nothing is there to remove
        assert list(Cluster(client=None).work_through(exchange, stages)) == []
        assert not Path(exchange.path).exists()


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (ImportError("No module named 'fsspec'", name="fsspec"), "pip install fsspec"),
        (ImportError("Install s3fs to access S3"), "with pip"),
        (PermissionError("denied"), "allow"),
        (ConnectionResetError("lost"), "--resume"),
        (FileNotFoundError("gone"), "--resume"),
        (ValueError("Protocol not known"), "s3://"),
        (OSError("full"), "can be written to"),
    ],
)
def test_hints_fit_the_error(tmp_path: Path, error: Exception, hint: str) -> None:
    with pytest.raises(ElmanError) as found, Exchange(str(tmp_path))._explained():
        raise error
    assert hint in found.value.hint


def test_an_address_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be used"):
        Exchange("nonsense://there")
    (tmp_path / "file").touch()
    exchange = Exchange(f"file://{tmp_path}/file/below")
    with pytest.raises(UsageError, match="cannot be used"):
        exchange.put(tmp_path / "file", "a")
