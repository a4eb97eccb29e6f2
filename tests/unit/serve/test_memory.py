from __future__ import annotations

import pytest

from elman.base.errors import UsageError
from elman.base.memory import return_free_memory
from elman.serve.limits import Limits
from elman.serve.memory import LARGE_BYTES, Memory
from elman.serve.refusals import Overloaded

MB = 1 << 20


def test_one_request_and_all_together_are_bounded() -> None:
    ended: list[int] = []
    limits = Limits(max_request_memory=60 * MB, max_memory=100 * MB)
    memory = Memory(limits, lambda: ended.append(memory.used))
    first, second = memory.open(), memory.open()
    first.take(40 * MB)
    with pytest.raises(UsageError, match=r"about 73 MB of memory \(limit 63 MB") as refused:
        first.take(30 * MB, "lower n (9)")
    assert refused.value.hint == "lower n (9)"
    first.take(20 * MB)
    second.take(LARGE_BYTES - 1)
    with pytest.raises(Overloaded):
        second.take(30 * MB)
    assert memory.used == 60 * MB + LARGE_BYTES - 1
    held = first.hold()
    first.close()
    second.close()
    assert (memory.used, ended) == (60 * MB, [])  # a worker still computes
    held.close()
    assert (memory.used, ended) == (0, [0])


def test_free_memory_can_be_returned() -> None:
    return_free_memory()
