"""The cache folder, for encoded texts and built-in corpora."""

from __future__ import annotations

import atexit
import functools
import logging
import os
from contextlib import ExitStack
from pathlib import Path

from elman.base.files import owned_folder


def cache_folder() -> Path:
    """Return the cache folder; create it if necessary.

    It is `$ELMAN_CACHE`, else `$XDG_CACHE_HOME/elman`, else `~/.cache/elman`. If that is not
    writable (a read-only home in a container), use a temporary folder until the program ends, and
    warn. Anything in it may be deleted while no run uses it.
    """
    folder = wanted_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return _temporary_folder(folder)
    return folder if os.access(folder, os.W_OK | os.X_OK) else _temporary_folder(folder)


def wanted_folder() -> Path:
    """The cache folder, whether or not it can be written."""
    if chosen := os.environ.get("ELMAN_CACHE"):
        return Path(chosen).expanduser()
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base).expanduser() / "elman"
    # expanduser, unlike Path.home, does not raise for a user without a home.
    return Path(os.path.expanduser("~/.cache/elman"))


@functools.cache
def _temporary_folder(unusable: Path) -> Path:
    until_exit = ExitStack()
    folder = until_exit.enter_context(owned_folder())
    atexit.register(until_exit.close)
    logging.getLogger("elman").warning(
        "%s is not writable: encoded text goes to %s, which is deleted when the program ends "
        "(set ELMAN_CACHE to a folder that is kept)",
        unusable,
        folder,
    )
    return folder
