"""Texts at addresses such as s3://bucket/file.txt, hf://... and https://..., which fsspec reads.

fsspec comes with torch; most kinds of address need a package of their own, such as s3fs. A file is
copied to the cache folder once, and again only if its size, time or tag there has changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from elman.base.errors import ElmanError, UsageError
from elman.text.kept import kept

PIECE = 1 << 20
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.I)
_TAGS = ("ETag", "etag", "mtime", "LastModified", "last_modified", "updated", "md5Hash", "oid")
"""Entries of a file's information that change with its content, in various file systems."""
_MAGIC = re.compile(r"[*?\[]")


def is_address(name: str) -> bool:
    return _ADDRESS.match(name) is not None


def fetch(address: str) -> list[Path]:
    """Return local copies of the files at an address: a file, a folder, or a pattern."""
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(address)
        files = _files(system, path, address)
        return [_copy(system, file) for file in files]
    except (ElmanError, MemoryError):
        raise
    except ImportError as error:
        raise ElmanError(f"{address} needs another package: {error}", "install it") from error
    except ValueError as error:
        if "Protocol not known" not in str(error):
            raise ElmanError(f"{address} cannot be read: {error}", "check the address") from error
        kinds = "s3, gs, abfs, hf, http, https, ftp, sftp, memory and others, with their packages"
        raise UsageError(f"fsspec knows no such address as {address}", kinds) from error
    except Exception as error:  # each file system has errors of its own
        detail = f"{type(error).__name__}: {error}"
        raise ElmanError(f"{address} cannot be read: {detail}", "check the address") from error


def _files(system: Any, path: str, address: str) -> list[str]:
    """The paths of the files at a path, in order, without hidden and empty ones."""
    # http has no patterns: a question mark belongs to the address
    if not system.exists(path) and _MAGIC.search(path) and not address.startswith("http"):
        found = sorted(system.glob(path))
        if not found:
            raise UsageError(f"no file matches {address}", "check the pattern")
        return [file for one in found for file in _files(system, one, address)]
    if system.isfile(path):
        return [path]
    if not system.isdir(path):
        raise UsageError(f"{address} does not exist", "check the address")
    inside = [file for file in sorted(system.find(path)) if not _hidden(file, path)]
    if full := [file for file in inside if system.size(file)]:
        return full
    raise UsageError(f"{address} has no files", "name a folder with text in it")


def _hidden(file: str, root: str) -> bool:
    below = file.removeprefix(root.rstrip("/")).strip("/")
    return any(part.startswith(".") for part in below.split("/"))


def _copy(system: Any, path: str) -> Path:
    if "file" in (system.protocol if isinstance(system.protocol, tuple) else (system.protocol,)):
        return Path(path)
    about = system.info(path)
    tags = [about[tag] for tag in _TAGS if about.get(tag)]
    address = system.unstrip_protocol(path)
    source = [address, about.get("size"), *tags] if tags else None
    name = PurePosixPath(path.partition("?")[0]).name or "text.txt"
    return kept(_pieces(system, path), name, address, source)


def _pieces(system: Any, path: str) -> Iterator[bytes]:
    with system.open(path, "rb") as stream:
        while piece := stream.read(PIECE):
            yield piece
