"""The model of a disk: what is certain after fsync, and what may be there without it."""

from __future__ import annotations

import random

import pytest

from elman.bench.faults.operations import Operation
from elman.bench.faults.power_cuts import WAYS, Disk, Node, Tree


def disk(*operations: tuple[object, ...]) -> Disk:
    """A disk after operations: (name, path), (write, path, data), (replace, path, target)."""
    made = Disk(())
    sizes: dict[str, int] = {}
    for number, (name, path, *more) in enumerate(operations, start=1):
        values: dict[str, object] = {}
        if name == "write":
            values = {"data": more[0], "offset": sizes.get(str(path), 0)}
            sizes[str(path)] = sizes.get(str(path), 0) + len(more[0])  # type: ignore[arg-type]
        elif name == "replace":
            values = {"target": more[0]}
        made.do(Operation(number, str(name), str(path), **values))  # type: ignore[arg-type]
    return made


def states(*operations: tuple[object, ...]) -> list[Tree]:
    found: list[Tree] = []
    for tree in disk(*operations).states(random.Random(1)):
        if tree not in found:
            found.append(tree)
    return found


NEW = (("create", "new"), ("write", "new", b"abcd"))


def test_without_fsync_anything_may_be_there() -> None:
    found = states(*NEW)
    assert {} in found
    contents = [tree["new"] for tree in found if tree]
    assert contents == [b"abcd", b"", b"ab", b"\0\0\0\0", b"\0\0cd"]


def test_fsync_of_a_file_keeps_its_data_and_that_of_its_folder_its_name() -> None:
    assert states(*NEW, ("fsync", "new")) == [{}, {"new": b"abcd"}]
    assert states(*NEW, ("fsync", "new"), ("fsync", ".")) == [{"new": b"abcd"}]
    assert {"new": b""} in states(*NEW, ("fsync", "."))
    assert disk(*NEW, ("fsync", ".")).certain() == {"new": b""}


def test_a_rename_happens_as_a_whole() -> None:
    before = [("create", "a"), ("write", "a", b"1"), ("fsync", "a"), ("fsync", ".")]
    written = [("create", "b"), ("write", "b", b"2"), ("fsync", "b"), ("fsync", ".")]
    assert states(*before, *written, ("replace", "b", "a")) == [
        {"a": b"1", "b": b"2"},
        {"a": b"2"},
    ]
    careless = states(*before, ("create", "b"), ("write", "b", b"2"), ("replace", "b", "a"))
    assert {"a": b""} in careless  # the old content is gone, and the new one is not there
    assert disk(*before, *written, ("replace", "b", "a"), ("fsync", ".")).certain() == {"a": b"2"}


def test_a_folder_that_is_not_there_has_no_files() -> None:
    inside = [("mkdir", "a"), ("create", "a/b"), ("fsync", "a/b"), ("fsync", "a")]
    assert states(*inside) == [{}, {"a": None, "a/b": b""}]


def test_operations_that_fail_change_nothing() -> None:
    made = disk(("mkdir", "a"), ("create", "a/b"), ("rmdir", "a"), ("unlink", "a"), ("mkdir", "a"))
    made.do(Operation(9, "fsync", "a"))
    made.do(Operation(10, "fsync", "."))
    assert made.certain() == {"a": None, "a/b": b""}


@pytest.mark.parametrize("way", WAYS)
def test_data_after_the_last_fsync(way: str) -> None:
    node = Node(synced=b"abcd", changes=[(4, b"ef"), (6, b"gh"), (5, None)])
    expected = {"missing": b"abcd", "short": b"abcdef"[:5], "second half": b"abcd\0"}
    assert node.content(way) == {"done": b"abcde", "zero": b"abcd\0", **expected}[way]
