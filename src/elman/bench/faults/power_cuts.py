"""The states of a disk that a power cut may leave; each is opened and resumed.

The log of a run's file operations is replayed on a model of a file system that promises only what
fsync promises, as in the tests of SQLite and in ALICE (Pillai and others, 2014). A cut may come
after any operation. Then

- data written to a file since its last fsync may be there, missing, cut short, zero, or only its
  second half;
- names changed in a folder since its last fsync may be changed or not, each for itself; a rename
  happens as a whole.

The states of all cuts are enumerated where they are few, else drawn at random from a seed. A state
must open as a model, or say that nothing is there if nothing was on the disk for certain. Resuming
must then give the metrics, weights and files of a run without a cut. When a command has ended, all
that it wrote must be on the disk for certain.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path

from elman.bench.faults.crash_points import OWNED, Trial, trials
from elman.bench.faults.operations import Operation
from elman.bench.faults.outcomes import Case, Plan, Result, judge

MOST = 60
"""States of a run that are tried."""
QUICK = 10
MOST_AT_A_CUT = 48
ALL_SUBSETS = 4
"""Of up to this many pending changes of names, all subsets are taken."""
WAYS = ("done", "missing", "short", "zero", "second half")
"""What a cut may leave of data that was not synced."""

Tree = dict[str, bytes | None]
"""Paths, with the content of files; None: a folder."""


@dataclass
class Node:
    """A file or a folder of the model."""

    names: dict[str, Node] | None = None
    """Of a folder."""
    synced: bytes = b""
    """Content that is on the disk for certain."""
    changes: list[tuple[int, bytes | None]] = field(default_factory=list)
    """Later writes (offset, data) and truncations (size, None)."""

    def content(self, way: str = "done") -> bytes:
        """The content that a cut leaves in one of `WAYS`."""
        if way == "missing":
            return self.synced
        done = bytearray(self.synced)
        if way == "short":
            *first, last = self.changes
            _apply(done, [*first[: len(first) // 2], (last[0], last[1] and _half(last[1]))])
            return bytes(done)
        _apply(done, self.changes)
        if way == "done":
            return bytes(done)
        # The size is on the disk, but not all of the data.
        written = [(offset, data) for offset, data in self.changes if data]
        gone = written if way == "zero" else written[: (len(written) + 1) // 2]
        for offset, data in gone:
            end = min(len(done), offset + len(data))
            if way == "second half" and len(written) == 1:
                end = min(len(done), offset + len(data) // 2)
            done[offset:end] = bytes(max(0, end - offset))
        return bytes(done)


def _half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _apply(content: bytearray, changes: Iterable[tuple[int, bytes | None]]) -> None:
    for offset, data in changes:
        end = offset + len(data or b"")
        if data is None:
            del content[offset:]
        content.extend(bytes(max(0, (offset if data is None else end) - len(content))))
        if data:
            content[offset:end] = data


@dataclass(frozen=True)
class Naming:
    """One change of names that is not yet on the disk for certain: all of it happens, or none."""

    changes: tuple[tuple[Node, str, Node | None], ...]
    """Folder, name, what is there afterwards; None: nothing."""

    def is_in(self, folder: Node) -> bool:
        return any(folder is where for where, _, _ in self.changes)


class Disk:
    """The model of a file system."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._root = Node({})
        for name in folders:
            assert self._root.names is not None
            self._root.names[name] = Node({})
        self._synced: dict[int, tuple[Node, dict[str, Node]]] = {}
        """Names that are on the disk for certain, by folder."""
        self._remember(self._root)
        self._pending: list[Naming] = []

    def _remember(self, folder: Node) -> dict[str, Node]:
        assert folder.names is not None
        return self._synced.setdefault(id(folder), (folder, dict(folder.names)))[1]

    def _node(self, path: str) -> Node | None:
        node: Node | None = self._root
        for name in [] if path == "." else path.split("/"):
            node = None if node is None or node.names is None else node.names.get(name)
        return node

    def _set(self, *places: tuple[str, Node | None]) -> None:
        """Let paths name other things, at once."""
        changes = []
        for path, node in places:
            parent, _, name = path.rpartition("/")
            folder = self._node(parent or ".")
            if folder is None or folder.names is None:
                continue
            self._remember(folder)
            changes.append((folder, name, node))
            if node is None:
                folder.names.pop(name, None)
            else:
                folder.names[name] = node
        if changes:
            self._pending.append(Naming(tuple(changes)))

    def do(self, operation: Operation) -> None:
        """Carry out one operation of the log."""
        path, node = operation.path, self._node(operation.path)
        match operation.name:
            case "create" | "open":
                if node is None:
                    self._set((path, Node()))
                elif operation.empties:
                    node.changes.append((0, None))
            case "write" if node is not None:
                node.changes.append((operation.offset, operation.data))
            case "truncate" if node is not None:
                node.changes.append((operation.offset, None))
            case "mkdir" if node is None:
                self._set((path, Node({})))
            case "unlink" if node is not None and node.names is None:
                self._set((path, None))
            case "rmdir" if node is not None and node.names == {}:
                self._set((path, None))
            case "link" if node is not None and operation.target:
                self._set((operation.target, node))
            case "replace" if node is not None and operation.target:
                self._set((path, None), (operation.target, node))
            case "fsync" if node is not None:
                self._sync(node)

    def _sync(self, node: Node) -> None:
        if node.names is None:
            node.synced, node.changes = node.content(), []
            return
        still = []
        for naming in self._pending:
            if naming.is_in(node):
                self._settle(naming)
            else:
                still.append(naming)
        self._pending = still

    def _settle(self, naming: Naming) -> None:
        for folder, name, node in naming.changes:
            names = self._remember(folder)
            if node is None:
                names.pop(name, None)
            else:
                names[name] = node

    def certain(self) -> Tree:
        """What is on the disk for certain."""
        return self._tree((), {})

    def states(self, numbers: random.Random) -> Iterator[Tree]:
        """The states that a cut now may leave."""
        found = list(self._choices())
        if len(found) > MOST_AT_A_CUT:
            found = numbers.sample(found, MOST_AT_A_CUT)
        for namings, ways in found:
            yield self._tree(namings, ways)

    def _choices(self) -> Iterator[tuple[tuple[Naming, ...], dict[int, str]]]:
        pending, files = self._pending, self._files()
        if len(pending) <= ALL_SUBSETS:
            subsets = [
                tuple(one for one, taken in zip(pending, bits, strict=True) if taken)
                for bits in product((False, True), repeat=len(pending))
            ]
        else:
            indices = range(len(pending) + 1)
            subsets = [tuple(pending[:index]) for index in indices]
            subsets += [(*pending[:index], *pending[index + 1 :]) for index in indices[:-1]]
            subsets += [(one,) for one in pending]
        for namings in subsets:
            for way in WAYS if files else WAYS[:1]:
                yield namings, {id(file): way for file in files}
            for file in files if len(files) > 1 else ():
                for way in WAYS[1:]:
                    yield namings, {id(file): way}

    def _files(self) -> list[Node]:
        """Files with data that is not synced, and with a name now or on the disk."""
        found: dict[int, Node] = {}
        waiting = [self._root]
        waiting += [node for n in self._pending for _, _, node in n.changes if node is not None]
        seen: set[int] = set()
        while waiting:
            node = waiting.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            if node.names is not None:
                waiting += [*node.names.values(), *self._remember(node).values()]
            elif node.changes:
                found[id(node)] = node
        return list(found.values())

    def _tree(self, namings: Sequence[Naming], ways: Mapping[int, str]) -> Tree:
        """The tree after these changes of names; files that are not in `ways` have all data.

        Without any, data that is not synced is missing.
        """
        changed: dict[int, dict[str, Node]] = {}
        for naming in namings:
            for folder, name, node in naming.changes:
                names = changed.setdefault(id(folder), dict(self._remember(folder)))
                if node is None:
                    names.pop(name, None)
                else:
                    names[name] = node
        tree: Tree = {}
        other = "done" if ways else "missing"

        def add(prefix: str, folder: Node) -> None:
            for name, node in changed.get(id(folder), self._remember(folder)).items():
                path = f"{prefix}{name}"
                if node.names is None:
                    way = ways.get(id(node), other) if node.changes else "done"
                    tree[path] = node.content(way)
                else:
                    tree[path] = None
                    add(f"{path}/", node)

        add("", self._root)
        return tree


@dataclass(frozen=True)
class State:
    """A state of the disk, and the first cut that leaves it."""

    after: int
    """The number of the last operation before the cut."""
    tree: Tree
    certain: Tree
    """What was on the disk for certain."""
    is_end: bool = False
    """Whether the command had ended."""


def states(trial: Trial, numbers: random.Random) -> list[State]:
    """The different states that cuts during a run may leave; first the least after its end."""
    disk, found = Disk(("tmp", "cache")), dict[str, State]()
    for operation in trial.operations:
        if operation.name == "read":
            continue
        disk.do(operation)
        certain = disk.certain()
        for tree in disk.states(numbers):
            found.setdefault(_digest(tree), State(operation.number, tree, certain))
    return [State(operation.number, certain, certain, is_end=True), *found.values()]


def power_cuts(plan: Plan) -> Iterator[Case]:
    """Open and resume what power cuts leave of the runs of a task."""
    with trials(plan) as found:
        for number, trial in enumerate(found):
            numbers = plan.random(f"states {number}")
            chosen = states(trial, numbers)
            most = QUICK if plan.quick else MOST
            if len(chosen) > most and not plan.only:
                chosen = [*chosen[:1], *numbers.sample(chosen[1:], most - 1)]
            yield from plan.each(partial(cut, trial), chosen, partial(_name, number))


def _name(number: int, state: State) -> str:
    return f"cut after {state.after} of run {number}, state {_digest(state.tree)}"


def cut(trial: Trial, state: State, folder: Path) -> tuple[Result, str]:
    """Open a state, and resume from it."""
    opened = _opens(trial, folder / "state", state.tree)
    if isinstance(opened, tuple):
        return opened
    if state.is_end:
        return trial.compared(folder / "state", allowed=OWNED)
    if not opened and _opens(trial, folder / "certain", state.certain) is True:
        return "difference", "a model was on the disk for certain, but it does not open"
    # The next run that uses the temporary directory sweeps it; resuming may not use it.
    return trial.go_on(folder / "state", allowed="^tmp/")


def _opens(trial: Trial, folder: Path, tree: Tree) -> bool | tuple[Result, str]:
    """Whether a state opens as a model; a bad result if it fails without an error message."""
    folder.mkdir()
    for path, content in tree.items():
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)
    ended = trial.run(folder, "info", "out", "--verify", "--json")
    result, detail = judge(ended)
    if result in (None, "sentence"):
        # Reports that were not synced yet may be damaged; resuming cuts them off.
        return b'{"file": ".", "state": "intact"' in ended.out
    assert result is not None
    return result, f"elman info: {detail}"


def _digest(tree: Tree) -> str:
    """A short name for a state; names of temporary folders, which are random, do not matter."""
    digest = hashlib.sha256()
    for path in sorted(tree, key=lambda path: re.sub(OWNED, ".elman-", path)):
        content = tree[path]
        data = b"folder" if content is None else hashlib.sha256(content).digest()
        digest.update(re.sub(OWNED, ".elman-", path).encode() + b"\0" + data)
    return digest.hexdigest()[:8]
