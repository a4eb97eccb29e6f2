"""Programs that start faster."""

from __future__ import annotations

import gc
import resource
import sys
import weakref

import pytest

from elman.base.starting import collect_rarely, with_room


def test_a_function_with_room_is_the_same_function() -> None:
    found = []

    @with_room
    def program() -> None:
        found.append(sum(depth(n) for n in (1, 10, 100)))

    program()
    assert found == [111]


def depth(left: int) -> int:
    return 1 + depth(left - 1) if left > 1 else 1


def faults(calls: int, used: int) -> int:
    """Call a function often, at a given depth of calls."""
    if used > 0:
        return faults(calls, used - 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(calls):
        depth(40)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(sys.platform != "linux", reason="counts what Linux calls minor faults")
def test_no_call_takes_memory_anew() -> None:
    """Without room, at most depths 40 calls cross the end of a chunk of 16 KiB."""
    worst = []

    @with_room
    def program() -> None:
        worst.append(max(faults(1000, used) for used in range(0, 200, 8)))

    program()
    assert worst[0] < 500


class Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_garbage_is_found_before_long() -> None:
    before = gc.get_threshold()
    try:
        collect_rarely()
        gone = weakref.ref(Cycle())
        others = [[] for _ in range(20_000)]
        assert others
        assert gone() is None
    finally:
        gc.set_threshold(*before)
