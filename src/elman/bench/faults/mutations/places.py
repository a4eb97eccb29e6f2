"""Damage to the entry in a folder: a pipe, a folder or a link where a file should be."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _missing(path: Path) -> None:
    path.unlink()


def _link(target: str) -> Callable[[Path], None]:
    def replace(path: Path) -> None:
        path.unlink()
        path.symlink_to(target)

    return replace


def _itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


PLACES: dict[str, Callable[[Path], None]] = {
    "fifo": _fifo,
    "folder": _folder,
    "missing": _missing,
    "dangling-link": _link("nowhere"),
    "link-to-itself": _itself,
    "endless": _link("/dev/zero"),
    "device": _link("/dev/null"),
    "no-permission": lambda path: path.chmod(0),
}
"""What can lie where a file should."""
