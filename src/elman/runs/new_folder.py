"""Where a run goes, and what it reads, when nobody says; how a folder is filled at once.

This needs no torch.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from elman.base.errors import UsageError
from elman.base.files import explain


def new_run_folder(task: str, data: Sequence[str]) -> Path:
    """A folder under runs/ that is not there yet, named for the task and the text."""
    name = Path(data[0] if data else "text").name
    task = task.rpartition(":")[2].lower()
    stem = re.sub(r"[^\w-]+", "-", name.split(".")[0]).strip("-") or "text"
    folder = Path("runs") / f"{task}-{stem}"
    number = 2
    while folder.exists():
        folder = Path("runs") / f"{task}-{stem}-{number}"
        number += 1
    return folder


def check_free(path: Path) -> None:
    """Refuse to replace what exists."""
    if path.exists():
        raise UsageError(f"{path} is there already", "choose another name, or remove it first")


@contextmanager
def filling(out: Path, last: str) -> Iterator[Path]:
    """Yield a folder inside `out` to write to; in the end its files move up, `last` after all.

    Where anything goes wrong before, nothing is left: `out` is as it was, and if it was not there
    it is not there.
    """
    made = _missing(out)
    try:
        with _explained(out):
            out.mkdir(parents=True, exist_ok=True)
            place = tempfile.TemporaryDirectory(prefix=".new-", dir=out)
        with place as temporary:
            yield Path(temporary)
            with _explained(out):
                for path in sorted(Path(temporary).iterdir(), key=lambda path: path.name == last):
                    os.replace(path, out / path.name)
    finally:
        _remove_empty(made)


def undo_on_failure(out: Path, names: Iterable[str]) -> Callable[[], None]:
    """Return a function that removes the files and folders `names` created in `out` since this
    call, and `out` itself if it is new and empty: others may write there too.
    """
    missing = _missing(out)
    new = [out / name for name in names if not (out / name).exists()]

    def go() -> None:
        for path in new:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        _remove_empty(missing)

    return go


def _missing(out: Path) -> list[Path]:
    """The folders that making `out` will make, the innermost first."""
    return [folder for folder in (out, *out.parents) if not folder.exists()]


def _remove_empty(folders: Sequence[Path]) -> None:
    for folder in folders:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


@contextmanager
def new_file(path: Path | None) -> Iterator[None]:
    """See that a file can be written at `path`, and if what follows fails, leave none there."""
    if path is None:
        yield
        return
    with _explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    try:
        yield
    except BaseException:
        path.unlink(missing_ok=True)
        raise


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise explain(error, path) from error
