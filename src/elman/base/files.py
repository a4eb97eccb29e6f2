"""Write files atomically, and explain errors of the operating system."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elman.base.errors import ElmanError


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success, rename it to `path`.

    `durable` syncs the data to disk first, so that after a power cut either the old or the new file
    is complete; without it, writing is faster. On an error, remove the temporary file and leave
    `path` unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with explained(path):
            yield temporary
            if durable:
                with temporary.open("rb") as handle:
                    os.fsync(handle.fileno())
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def explained(path: Path | str) -> Iterator[None]:
    """Turn errors of the operating system into errors about `path` for the user."""
    try:
        yield
    except OSError as error:
        raise explain(error, path) from error


def explain(error: OSError, path: Path | str) -> ElmanError:
    """Turn an error of the operating system about `path` into a message and a hint."""
    if error.errno == errno.ENOSPC:
        return ElmanError(f"the disk is full while writing {path}", "free some space and try again")
    if isinstance(error, FileNotFoundError):
        return ElmanError(f"{path} does not exist", "check the spelling of the path")
    if isinstance(error, IsADirectoryError):
        return ElmanError(f"{path} is a folder", "name a file inside it")
    if isinstance(error, PermissionError):
        return ElmanError(f"{path} may not be accessed", "check its permissions")
    return ElmanError(f"{path}: {error.strerror or error}", "check the path and the disk")
