"""Count, record and fail the file operations of a command.

`watch` replaces Python's functions that change files, in a process that was forked for one command.
Operations inside the watched folders are numbered from 1 and written to a log, one line of JSON
each, before they are carried out. At the operation of a given number the process is killed, or the
operation fails. fsync is logged but not carried out: a process that is killed loses no data, and
power cuts are made from the log.

| fault | at the operation |
|---|---|
| kill | SIGKILL before it |
| kill partway | of a write: SIGKILL after half of its data |
| ENOSPC | half of a write is done; it and all later operations that need space fail |
| EIO | it fails, later ones do not |
"""

from __future__ import annotations

import base64
import builtins
import errno
import functools
import importlib
import io
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
TAKES_SPACE = ("create", "open", "write", "truncate", "mkdir", "link", "replace", "fsync")
"""Operations that fail on a full disk."""


@dataclass(frozen=True)
class Operation:
    """A line of the log."""

    number: int
    name: str
    """create, open (an existing file for writing), read, write, truncate, fsync, replace, link,
    mkdir, unlink or rmdir."""
    path: str
    target: str | None = None
    """Of replace and link."""
    offset: int = 0
    """Of a write; of truncate: the new size."""
    data: bytes = b""
    empties: bool = False
    """Of open: whether the file is truncated."""

    def faults(self) -> Iterator[str]:
        """The faults that can happen here."""
        yield "kill"
        if self.name == "write" and len(self.data) > 1:
            yield "kill partway"
        if self.name in TAKES_SPACE:
            yield "ENOSPC"
        yield "EIO"


def read_log(path: Path, folder: Path) -> list[Operation]:
    """Read the log of a process; paths become relative to `folder`."""
    found = []
    for line in path.read_bytes().splitlines():
        values = json.loads(line)
        for name in ("path", "target"):
            if values.get(name):
                values[name] = os.path.relpath(values[name], folder)
        values["data"] = base64.b64decode(values.get("data", ""))
        found.append(Operation(**values))
    return found


def watch(
    folders: Sequence[str],
    log: str,
    fault: str | None = None,
    at: int = 0,
    keep_data: bool = False,
    constants: Mapping[str, int] | None = None,
) -> None:
    """Watch this process's operations inside `folders`; let the one with number `at` go wrong.

    `constants` of Elman, by package.module:NAME, get other values first.
    """
    set_constants(constants or {})
    _Watch(folders, log, fault, at, keep_data).install()


def set_constants(values: Mapping[str, int]) -> dict[str, int]:
    """Give other values to constants of Elman; return the values before."""
    before = {}
    for name, value in values.items():
        module_name, _, attribute = name.partition(":")
        module = importlib.import_module(module_name)
        before[name] = getattr(module, attribute)
        setattr(module, attribute, value)
    return before


class _Watch:
    def __init__(
        self, folders: Sequence[str], log: str, fault: str | None, at: int, keep_data: bool
    ) -> None:
        self._folders = tuple(folders)
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._fault, self._at, self._keep_data = fault, at, keep_data
        self._number = 0
        self._is_full = False
        self._lock = threading.Lock()
        self._write = os.write

    def install(self) -> None:
        io.open = builtins.open = functools.partial(_open, self, builtins.open)
        for name, replacement in (
            ("open", _os_open),
            ("write", _os_write),
            ("truncate", _truncate),
            ("ftruncate", _truncate),
            ("posix_fallocate", _allocate),
            ("sendfile", _send_file),
            ("fsync", _sync),
            ("fdatasync", _sync),
            ("mkdir", functools.partial(_on_path, "mkdir")),
            ("rmdir", functools.partial(_on_path, "rmdir")),
            ("unlink", functools.partial(_on_path, "unlink")),
            ("remove", functools.partial(_on_path, "unlink")),
            ("rename", functools.partial(_on_two, "replace")),
            ("replace", functools.partial(_on_two, "replace")),
            ("link", functools.partial(_on_two, "link")),
        ):
            if hasattr(os, name):
                setattr(os, name, functools.partial(replacement, self, getattr(os, name)))

    def where(self, path: Any, folder: int | None = None) -> str | None:
        """The absolute path of a path or an open file, if it is in a watched folder."""
        if hasattr(path, "fileno"):
            path = path.fileno()
        try:
            if isinstance(path, int):
                name = os.readlink(f"/proc/self/fd/{path}").removesuffix(" (deleted)")
            else:
                start = os.getcwd() if folder is None else os.readlink(f"/proc/self/fd/{folder}")
                name = os.path.normpath(os.path.join(start, os.fsdecode(path)))
        except (OSError, TypeError, ValueError):
            return None
        inside = any(name == root or name.startswith(f"{root}/") for root in self._folders)
        return name if inside else None

    def before(self, name: str, path: str, data: Any = b"", **values: Any) -> str | None:
        """Log an operation; then die, fail, or return what else to do: None, or "half"."""
        with self._lock:
            self._number += 1
            line = {"number": self._number, "name": name, "path": path, **values}
            if name == "write":
                kept = bytes(data) if self._keep_data else bytes(min(2, len(data)))
                line["data"] = base64.b64encode(kept).decode()
            self._write(self._log, json.dumps(line).encode() + b"\n")
            is_it = self._number == self._at
        if is_it and self._fault == "kill":
            die()
        if is_it and self._fault == "EIO":
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        takes_space = name in TAKES_SPACE
        if self._is_full and takes_space:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        if is_it and self._fault == "ENOSPC" and takes_space:
            self._is_full = True
            if name == "write" and len(data) > 1:
                return "half"
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return "half" if is_it and self._fault == "kill partway" else None

    def written(self, path: str, data: Any, offset: int, write: Callable[[Any], int]) -> int:
        """Write `data`, or a half of it."""
        view = memoryview(data).cast("B")
        if self.before("write", path, view, offset=offset) is None:
            return write(view)
        count = write(view[: len(view) // 2])
        if self._fault == "kill partway":
            die()
        return count


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("killed")


class _File(io.FileIO):
    """A file whose writes are watched; under the usual buffers, with a usual descriptor."""

    def __init__(self, watch: _Watch, path: Any, mode: str, closefd: bool, opener: Any) -> None:
        self._watch, self._path = watch, watch.where(path)
        if self._path is not None and opener is None and not isinstance(path, int):
            exists = os.path.exists(self._path)
            if mode == "r":
                watch.before("read", self._path)
            elif exists or "r" in mode:
                watch.before("open", self._path, empties="w" in mode)
            else:
                watch.before("create", self._path)
        super().__init__(path, mode, closefd, opener)
        self._path = watch.where(self.fileno())

    def write(self, data: Any) -> int:
        if self._path is None:
            return super().write(data) or 0
        offset = os.fstat(self.fileno()).st_size if "a" in self.mode else self.tell()
        write: Any = super().write
        return self._watch.written(self._path, data, offset, write)

    def truncate(self, size: int | None = None) -> int:
        if self._path is not None:
            self._watch.before("truncate", self._path, offset=self.tell() if size is None else size)
        return super().truncate(size)


def _open(
    watch: _Watch,
    original: Any,
    file: Any,
    mode: str = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,
    opener: Any = None,
) -> Any:
    """`open`, with a `_File` at the bottom."""
    if opener is None and watch.where(file) is None:
        return original(file, mode, buffering, encoding, errors, newline, closefd, opener)
    kinds = "".join(letter for letter in mode if letter in "rwxa+")
    raw = _File(watch, file, kinds, closefd, opener)
    try:
        if buffering == 0:
            return raw
        size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
        buffer: Any = io.BufferedReader if kinds == "r" else io.BufferedWriter
        buffer = (io.BufferedRandom if "+" in kinds else buffer)(raw, size)
        if "b" in mode:
            return buffer
        text = io.TextIOWrapper(buffer, encoding, errors, newline, buffering == 1)
        text.mode = mode  # type: ignore[misc]
        return text
    except BaseException:
        raw.close()
        raise


def _os_open(
    watch: _Watch, original: Any, path: Any, flags: int, mode: int = 0o777, *, dir_fd: Any = None
) -> int:
    name = watch.where(path, dir_fd)
    if name is not None and not os.path.isdir(name):
        if not flags & WRITING:
            watch.before("read", name)
        elif os.path.exists(name):
            watch.before("open", name, empties=bool(flags & os.O_TRUNC))
        elif flags & os.O_CREAT:
            watch.before("create", name)
    opened: int = original(path, flags, mode, dir_fd=dir_fd)
    return opened


def _os_write(watch: _Watch, original: Any, file: int, data: Any) -> int:
    path = watch.where(file)
    if path is None:
        return int(original(file, data))
    offset = os.lseek(file, 0, os.SEEK_CUR)
    return watch.written(path, data, offset, lambda view: int(original(file, view)))


def _truncate(watch: _Watch, original: Any, path: Any, length: int) -> None:
    if (name := watch.where(path)) is not None:
        watch.before("truncate", name, offset=length)
    original(path, length)


def _allocate(watch: _Watch, original: Any, file: int, offset: int, length: int) -> None:
    if (name := watch.where(file)) is not None:
        watch.before("truncate", name, offset=offset + length)
    original(file, offset, length)


def _send_file(watch: _Watch, original: Any, *arguments: Any, **named: Any) -> Any:
    # Copying goes on with read and write.
    raise OSError(errno.ENOTSOCK, os.strerror(errno.ENOTSOCK))


def _sync(watch: _Watch, original: Any, file: Any) -> None:
    if (name := watch.where(file)) is not None:
        watch.before("fsync", name)


def _on_path(
    kind: str, watch: _Watch, original: Any, path: Any, *more: Any, dir_fd: Any = None, **named: Any
) -> None:
    if (name := watch.where(path, dir_fd)) is not None:
        watch.before(kind, name)
    original(path, *more, dir_fd=dir_fd, **named)


def _on_two(
    kind: str, watch: _Watch, original: Any, source: Any, target: Any, *more: Any, **named: Any
) -> None:
    names = [
        watch.where(path, named.get(folder))
        for path, folder in ((source, "src_dir_fd"), (target, "dst_dir_fd"))
    ]
    if names[0] is not None or names[1] is not None:
        watch.before(kind, names[0] or os.fsdecode(source), target=names[1])
    original(source, target, *more, **named)
