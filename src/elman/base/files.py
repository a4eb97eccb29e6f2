"""Writing files so that a reader, or a crash, never meets half of one."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from elman.base.errors import ElmanError


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it takes the place of `path` in one step.

    The data is on the disk before the name changes, so that after a power cut the old file or the
    new one is there, whole; not so if `durable` is false, which spares the wait for the disk where
    a file can be made again. On any error the temporary file goes and `path` is left as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        yield temporary
        if durable:
            with temporary.open("rb") as handle:
                os.fsync(handle.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise explain(error, path) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` atomically, as UTF-8."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write `value` to `path` atomically, as indented JSON."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Read JSON, with a sentence that names the file where it is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise explain(error, path) from error
    except ValueError as error:
        raise ElmanError(
            f"{path} is damaged: {error}", "restore the file from a copy, or train the model again"
        ) from error


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file that has one per line; a line still being written is left out."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        values = [json.loads(line) for line in lines]
        if not all(isinstance(value, dict) for value in values):
            raise ValueError("a line is not a JSON object")
    except OSError as error:
        raise explain(error, path) from error
    except ValueError as error:
        raise ElmanError(
            f"{path} is damaged: {error}", "restore the file from a copy, or train the model again"
        ) from error
    return values


def explain(error: OSError, path: Path | str) -> ElmanError:
    """Turn an operating-system error about `path` into one that a user can act on."""
    if error.errno == errno.ENOSPC:
        return ElmanError(f"the disk is full while writing {path}", "free some space and try again")
    if isinstance(error, FileNotFoundError):
        return ElmanError(f"{path} does not exist", "check the spelling of the path")
    if isinstance(error, IsADirectoryError):
        return ElmanError(f"{path} is a folder", "name a file inside it")
    if isinstance(error, PermissionError):
        return ElmanError(f"{path} may not be accessed", "check its permissions")
    return ElmanError(f"{path}: {error.strerror or error}", "check the path and the disk")
