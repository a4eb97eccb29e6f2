"""Write files atomically, and explain errors of the operating system."""

from __future__ import annotations

import errno
import os
import platform
import re
import secrets
import shutil
import stat
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from elman.base.errors import ElmanError

_OWNED = re.compile(r"\.elman-([0-9a-f]{3})[0-9a-f]{5}")
_HOST = f"{zlib.crc32(platform.node().encode()) & 0xFFF:03x}"
_FOREIGN_AGE = 86_400.0
"""Seconds after which a folder of another host is removed: its locks may not be seen here."""
_SWEPT: set[tuple[int, str]] = set()
_OWN: dict[Path, int] = {}
"""The temporary folders, with the process that made each."""
_HELD: dict[str, int] = {}
# Network file systems cannot lock a folder.
_NO_LOCKS = (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


@contextmanager
def owned_folder(parent: Path | None = None) -> Iterator[Path]:
    """Yield a new folder in `parent`, by default the temporary directory; remove it at the end.

    A lock on the folder shows that its owner lives; the system releases it when a process dies. So
    the first use of a parent in a process removes the folders that killed processes left there.
    """
    parent = Path(tempfile.gettempdir()) if parent is None else parent
    if (place := (os.getpid(), os.path.realpath(parent))) not in _SWEPT:
        sweep(parent)
        _SWEPT.add(place)
    folder, descriptor = _new_folder(parent)
    _OWN[folder] = os.getpid()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _OWN.pop(folder, None)
        if descriptor is not None:
            os.close(descriptor)


def is_writing() -> bool:
    """Whether this process has temporary folders, or holds a run folder."""
    return bool(_OWN or _HELD)


def remove_own() -> None:
    """Remove the temporary folders of this process, which ends without leaving `owned_folder`."""
    for folder, process in list(_OWN.items()):
        if process == os.getpid():
            shutil.rmtree(folder, ignore_errors=True)


def sweep(parent: Path) -> None:
    """Remove the owned folders in `parent` whose owners are dead."""
    with suppress(OSError), os.scandir(parent) as entries:
        for path in [entry.path for entry in entries if _may_sweep(entry)]:
            with suppress(OSError):
                if (descriptor := lock(Path(path))) is not None:
                    shutil.rmtree(path, ignore_errors=True)
                    os.close(descriptor)


def _may_sweep(entry: os.DirEntry[str]) -> bool:
    if (found := _OWNED.fullmatch(entry.name)) is None:
        return False
    return found[1] == _HOST or time.time() - entry.stat().st_mtime > _FOREIGN_AGE


def lock(folder: Path) -> int | None:
    """Lock a folder; return the descriptor that holds the lock, None if the system has no locks.

    Raises BlockingIOError if another descriptor, here or in another process, holds it.
    """
    if sys.platform == "win32":
        return None
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, OSError) and error.errno in _NO_LOCKS:
            return None
        raise
    return descriptor


def _new_folder(parent: Path) -> tuple[Path, int | None]:
    """Make an owned folder and lock it."""
    while True:
        folder = parent / f".elman-{_HOST}{secrets.randbits(20):05x}"
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            # Another process may remove the folder before it is locked.
            with suppress(BlockingIOError, FileNotFoundError):
                descriptor = lock(folder)
                if descriptor is None or is_still(folder, descriptor):
                    return folder, descriptor
                os.close(descriptor)


def is_still(path: Path, descriptor: int) -> bool:
    """Whether `path` is what the descriptor was opened as."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


@contextmanager
def held(folder: Path, descriptor: int | None) -> Iterator[None]:
    """While entered, and on leaving without an error, notice that `folder` is no longer what the
    descriptor was opened as: writing into it then raises an error instead of making it again.
    """
    name = os.path.abspath(folder)
    if descriptor is not None:
        _HELD[name] = descriptor
    try:
        yield
        check_in_place(folder)
    finally:
        _HELD.pop(name, None)


def check_in_place(path: Path) -> None:
    """Raise an error if `path` is a held folder that was deleted or replaced, or inside one."""
    if (error := _gone(path)) is not None:
        raise error


def _gone(path: Path | str) -> ElmanError | None:
    absolute = Path(os.path.abspath(path))
    for folder, descriptor in list(_HELD.items()):
        if absolute.is_relative_to(folder) and not is_still(Path(folder), descriptor):
            return ElmanError(
                f"{folder} was deleted or replaced while it was written to",
                "start again, and leave the folder alone until the run has ended",
            )
    return None


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path; on success, rename it to `path`.

    `durable` syncs the data to disk before and the name after that, so that after a power cut
    either the old or the new file is complete; without it, writing is faster. On an error, remove
    the temporary file and leave `path` unchanged.
    """
    with explained(path):
        make_folder(path.parent, durable=durable)
        with owned_folder(path.parent) as folder:
            yield (temporary := folder / path.name)
            check_in_place(path)
            if durable:
                sync(temporary)
            os.replace(temporary, path)
            if durable:
                sync(path.parent)


def make_folder(folder: Path, *, durable: bool = True) -> None:
    """Make a folder and those that it is in, if they are missing."""
    check_in_place(folder)
    if folder.is_dir():
        return
    if folder.parent != folder:
        make_folder(folder.parent, durable=durable)
    folder.mkdir(exist_ok=True)
    if durable:
        sync(folder.parent)


def sync(path: Path) -> None:
    """Wait until the data of a file, or the names in a folder, are on the disk."""
    if path.is_dir() and not hasattr(os, "O_DIRECTORY"):
        return  # Windows cannot sync a folder
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that cannot sync a folder
            raise
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def explained(path: Path | str) -> Iterator[None]:
    """Turn errors of the operating system into errors about `path` for the user."""
    try:
        yield
    except OSError as error:
        raise explain(error, path) from error


def regular(path: Path, *, or_pipe: bool = False) -> Path:
    """Return `path`, unless it is there and no file: a FIFO can be waited for, a device has no end.

    For files that are read as a whole, or more than once. `or_pipe` is for a path that the user
    typed and that is read once: a shell's <(COMMAND) is a pipe.
    """
    with explained(path):
        mode = path.stat().st_mode if path.exists() else stat.S_IFREG
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or (or_pipe and stat.S_ISFIFO(mode))):
        raise ElmanError(f"{path} is a pipe or a device", "name a file")
    return path


def explain(error: OSError, path: Path | str) -> ElmanError:
    """Turn an error of the operating system about `path` into a message and a hint."""
    if error.errno == errno.ENOSPC:
        return ElmanError(f"the disk is full while writing {path}", "free some space and try again")
    if isinstance(error, FileNotFoundError):
        return _gone(path) or ElmanError(f"{path} does not exist", "check the spelling of the path")
    if isinstance(error, IsADirectoryError):
        return ElmanError(f"{path} is a folder", "name a file inside it")
    if isinstance(error, PermissionError):
        return ElmanError(f"{path} may not be accessed", "check its permissions")
    return ElmanError(f"{path}: {error.strerror or error}", "check the path and the disk")
