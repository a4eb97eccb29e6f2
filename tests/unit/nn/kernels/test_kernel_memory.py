"""Memory that is used again: only when nothing refers to it any more."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest
import torch

from elman.nn.kernels import memory

SIZE = memory.SMALLEST_BYTES // 4


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    memory._kept.clear()


def test_what_is_let_go_is_used_again() -> None:
    first = memory.room(2, SIZE)
    place, view = first.data_ptr(), first[1:]
    del first
    other = memory.room(2, SIZE)  # a view still refers to the first
    assert other.data_ptr() != place
    del view
    assert memory.room(2, SIZE).data_ptr() == place


def test_a_block_serves_what_it_is_not_far_too_large_for() -> None:
    place = memory.room(3 * SIZE).data_ptr()
    assert memory.room(SIZE).data_ptr() != place
    found = memory.room(2, SIZE)
    assert found.data_ptr() == place
    assert found.shape == (2, SIZE)


def test_no_more_is_kept_than_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "KEPT_BYTES", 2 * memory.SMALLEST_BYTES)
    tensors = [memory.room(SIZE) for _ in range(5)]
    last = tensors[-1].data_ptr()
    while tensors:
        del tensors[0]
    kept = list(memory._kept.values())
    assert sum(block.nbytes for block in kept) == 2 * memory.SMALLEST_BYTES
    assert last in [block.ctypes.data for block in kept]


def test_what_is_released_is_no_longer_kept() -> None:
    used, unused = memory.room(SIZE), memory.room(SIZE)
    used.fill_(3.0)
    del unused
    assert len(memory._kept) == 1
    memory.release()
    assert not memory._kept
    assert used.eq(3.0).all()


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc here")
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc")
def test_the_c_library_keeps_what_is_freed_until_it_is_released() -> None:
    size = 1 << 26
    memory.release()
    before = resident_bytes()
    memory.keep_freed()
    try:
        tensor = torch.ones(size // 4)
        del tensor
        assert resident_bytes() - before > 0.9 * size
    finally:
        memory.release()
    assert resident_bytes() - before < 0.5 * size
