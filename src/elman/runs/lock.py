"""One process at a time writes into a run folder.

The lock is on the folder itself, without a file for it, and the system releases it when the
process ends, also by kill -9.
"""

from __future__ import annotations

import logging
import os
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from elman.base.errors import UsageError
from elman.base.files import explained, held, is_still, lock, make_folder, sweep
from elman.runs.new_folder import missing, remove_empty

log = logging.getLogger("elman")


class InUse(UsageError):
    """Another process writes into the folder."""


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Lock the run folder `out`, made if it is missing; raise an error if another process writes
    there, or once `out` is deleted or replaced.

    Remove what killed processes left in it. At the end, remove the folders that were made here and
    are empty.
    """
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file", "choose another --out")
    made = missing(out)
    descriptor = _lock(out)
    if descriptor is None:
        log.warning(
            "%s is on a file system without locks: make sure that no other process writes there",
            out,
        )
    try:
        with held(out, descriptor):
            _sweep(out)
            yield
    finally:
        if descriptor is None or is_still(out, descriptor):
            remove_empty(made)
        if descriptor is not None:
            os.close(descriptor)


def _lock(out: Path) -> int | None:
    while True:
        with explained(out):
            make_folder(out)
            try:
                descriptor = lock(Path(os.path.realpath(out)))
            except FileNotFoundError:  # another process removed it just now
                continue
            except BlockingIOError as error:
                raise InUse(
                    f"{out} is in use by {_owner(out)}",
                    "wait until it has ended, or choose another folder",
                ) from error
        if descriptor is None or is_still(out, descriptor):
            return descriptor
        os.close(descriptor)


def _sweep(out: Path) -> None:
    sweep(out)
    with explained(out):
        for path in out.iterdir():
            if path.is_dir() and not path.is_symlink():
                sweep(path)


def _owner(out: Path) -> str:
    """Name the process that holds the lock, as far as the system tells."""
    with suppress(OSError, ValueError, IndexError):
        number = str(out.stat().st_ino)
        for line in Path("/proc/locks").read_text().splitlines():
            # 1: FLOCK ADVISORY WRITE <process> <device>:<device>:<inode> 0 EOF
            parts = line.split()
            if parts[1] == "FLOCK" and parts[5].rpartition(":")[2] == number:
                arguments = Path(f"/proc/{int(parts[4])}/cmdline").read_bytes().split(b"\0")
                command = " ".join(part.decode("utf-8", "replace") for part in arguments).strip()
                short = textwrap.shorten(command, 100, placeholder=" ...")
                return f"process {parts[4]} ({short})"
    return "another process"
