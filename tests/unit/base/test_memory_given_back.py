"""Memory that is given back."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from elman.base import memory
from elman.base.memory import Consumed, give_back, resident_bytes
from elman.base.threads import in_threads


@pytest.mark.skipif(sys.platform != "linux", reason="gives memory back on Linux alone")
def test_what_was_read_is_given_back() -> None:
    size = (4 << 20) + 5
    array = np.ones(size, np.int32)
    consumed, before = Consumed(array), resident_bytes()
    cuts = [*range(0, size, 100_000), size]
    in_threads(lambda i: consumed.add(cuts[i], cuts[i + 1]), range(len(cuts) - 1), 3)
    assert before - resident_bytes() > 14 << 20
    assert int(array.sum()) < size


@pytest.mark.skipif(sys.platform != "linux", reason="gives memory back on Linux alone")
def test_a_whole_array_is_given_back() -> None:
    array = np.ones(4 << 20, np.int32)
    before = resident_bytes()
    give_back(array)
    assert before - resident_bytes() > 14 << 20
    assert not array[1 << 10 : -1 << 10].any()
    small = np.ones(5)
    give_back(small)
    assert small.all()


def test_what_is_still_to_be_read_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_CONSUMED", 1 << 12)
    array = np.ones(1 << 16, np.int32)
    consumed = Consumed(array)
    for first in range(0, len(array) // 2, 1000):
        consumed.add(first, min(first + 1000, len(array) // 2))
    assert array[len(array) // 2 :].all()


def test_other_systems_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "madvise", lambda: None)
    array = np.ones(1 << 21, np.int32)
    Consumed(array).add(0, len(array))
    assert array.all()
