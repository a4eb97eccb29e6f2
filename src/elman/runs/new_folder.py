"""Create run folders and files, and remove them after a failure. Nothing here needs torch."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from elman.base.errors import UsageError
from elman.base.files import check_in_place, explained, make_folder, owned_folder, sync


def new_run_folder(task: str, data: Sequence[str]) -> Path:
    """Choose a new folder under runs/, named after the task and the text."""
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
    if path.exists():
        raise UsageError(f"{path} already exists", "choose another name, or remove it first")


@contextmanager
def filling(out: Path, last: str) -> Iterator[Path]:
    """Yield a temporary folder inside `out`; on success, move its files to `out`, `last` last.

    On an error, leave `out` unchanged, or remove it if it is new.
    """
    made = missing(out)
    try:
        with ExitStack() as stack:
            with explained(out):
                make_folder(out)
                folder = stack.enter_context(owned_folder(out))
            yield folder
            with explained(out):
                check_in_place(out)
                for path in sorted(folder.iterdir(), key=lambda path: path.name == last):
                    if path.name == last:
                        sync(out)  # the other names first, even after a power cut
                    os.replace(path, out / path.name)
                sync(out)
    finally:
        remove_empty(made)


def missing(out: Path) -> list[Path]:
    """The folders that making `out` will make, innermost first."""
    return [folder for folder in (out, *out.parents) if not folder.exists()]


def remove_empty(folders: Iterable[Path]) -> None:
    for folder in folders:
        with suppress(OSError):  # it is not empty, or gone
            folder.rmdir()


def undo_on_failure(out: Path, names: Iterable[str]) -> Callable[[], None]:
    """Return a function that removes the files and folders `names` created in `out` since this
    call.
    """
    new = [out / name for name in names if not (out / name).exists()]

    def go() -> None:
        check_in_place(out)
        for path in new:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    return go


class SetAside:
    """The files of a run folder, moved into another while a new run takes their place."""

    def __init__(self, out: Path, folder: Path, names: Iterable[str]) -> None:
        self._out, self._folder = out, folder
        self._names = [name for name in dict.fromkeys(names) if (out / name).exists()]
        for name in self._names:
            os.rename(out / name, folder / name)
        self._remove_new = undo_on_failure(out, names)

    def drop(self) -> None:
        """Keep the new run, whatever happens."""
        self._names = []

    def put_back(self) -> None:
        if self._names:
            self._remove_new()
        for name in self._names:
            os.rename(self._folder / name, self._out / name)


@contextmanager
def set_aside(out: Path, names: Collection[str]) -> Iterator[SetAside]:
    """Move the files `names` of a run folder away for a new run; at the end, remove them, or put
    them back if the body fails. Other files stay where they are."""
    with owned_folder(out) as folder:
        with explained(out):
            aside = SetAside(out, folder, names)
        try:
            yield aside
        except BaseException:
            aside.put_back()
            raise


@contextmanager
def new_file(path: Path | None) -> Iterator[None]:
    """Check that `path` can be written; remove the file if the body fails."""
    if path is None:
        yield
        return
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with owned_folder(path.parent):
            pass
    try:
        yield
    except BaseException:
        path.unlink(missing_ok=True)
        raise
