"""Whether a run was started by this user, and which files a resumed run may read.

A resumed run reads the files that its config.json names. In a folder that came from someone else
these could be private files of this user, whose text would then be learnt. So config.json carries a
signature of these names, made with a key in the user's cache folder. A run whose signature does not
fit may read what lies below the working directory or in its own folder, built-in corpora, and
files that the user names again. Without a key that is kept there is no signature.

A signature instead of the folder's inode: it cannot be guessed, and a user's own runs may be moved
and copied.
"""

from __future__ import annotations

import functools
import glob
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from elman.base.cache import wanted_folder
from elman.base.documents import read_json
from elman.base.errors import ElmanError, UsageError
from elman.base.files import make_folder, owned_folder, sync
from elman.runs.run_config import RunConfig
from elman.runs.run_folder import CONFIG_FILE, ORIGIN
from elman.text.remote import is_address
from elman.text.sources import expand

KEY_FILE = "key"
KEY_BYTES = 32


def signature(config: RunConfig) -> str | None:
    """Sign the names of files in a configuration with the key of this user; None without a key."""
    if (key := _key()) is None:
        return None
    names = json.dumps(list(_named(config)))
    return hmac.new(key, names.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()


def check_origin(
    out: Path, config: RunConfig, named: Collection[str] | None = (), *, begun: bool = True
) -> None:
    """Refuse to resume a run of someone else that would read or write private files.

    `named` are files that the user named, as in the configuration; None: the user trusts the run. A
    run that has `begun` has its own tokenizer and embeddings.
    """
    if named is None:
        return
    settings = read_json(out / CONFIG_FILE)
    found = settings.get(ORIGIN) if isinstance(settings, dict) else None
    own = signature(config)
    if own and isinstance(found, str) and hmac.compare_digest(found.encode(), own.encode()):
        return
    why = "this run was not started here"
    if found is None:
        why = "this run has no signature (it is from an earlier version, or from elsewhere)"
    for path in sorted(out.rglob("*")):
        if path.is_symlink():
            raise UsageError(
                f"{why}, and {path} in it is a symbolic link",
                "add --trust-data, or replace it by the file itself, if you know where the run "
                "comes from",
            )
    roots = [out.resolve()]
    if len((here := Path.cwd().resolve()).parts) > 1:
        roots.append(here)
    for setting, name in _named(config):
        if name in named or (begun and not setting.startswith("data.")):
            continue
        if is_address(name):
            raise UsageError(
                f"{why}, and its {setting} names {name}",
                "add --trust-data, or name it again, if you know where the run comes from",
            )
        for file in _files(name):
            if not any(_is_open_below(root, file) for root in roots):
                raise UsageError(
                    f"{why}, and its {setting} names {file}, which is outside of the working "
                    "directory",
                    "add --trust-data, or name the file again, if you know where the run comes "
                    "from",
                )


def _named(config: Any) -> Iterator[tuple[str, str]]:
    """The settings that name files, and the names."""
    for part in ("train", "valid", "test"):
        for name in getattr(config.data, part):
            yield f"data.{part}", name
    if pictures := getattr(config.data, "pictures", ""):
        yield "data.pictures", pictures
    if (file := getattr(getattr(config, "tokenizer", None), "file", None)) is not None:
        yield "tokenizer.file", str(file)
    if path := getattr(getattr(config.model, "embeddings", None), "path", ""):
        yield "model.embeddings.path", path
    if vectors := getattr(config.model, "vectors", ""):
        yield "model.vectors", vectors
    if start := getattr(getattr(config, "training", None), "start", ""):
        yield "training.start", start


def _files(name: str) -> Iterator[Path]:
    """The files of a name, with links resolved; none for a built-in corpus, or if it is missing."""
    path = Path(name).expanduser()
    if path.exists() or glob.has_magic(name):
        for file in expand(name):
            yield file.resolve()


def _is_open_below(root: Path, file: Path) -> bool:
    """Whether `file` is below `root`, and not hidden there: the root may be a home."""
    return file.is_relative_to(root) and not any(
        part.startswith(".") for part in file.relative_to(root).parts
    )


@functools.cache
def _key() -> bytes | None:
    """Read the key of this user; make it at the first use. None if it cannot be kept."""
    path = wanted_folder() / KEY_FILE
    if (key := _read_key(path)) is not None:
        return key
    with suppress(OSError, ElmanError):
        make_folder(path.parent)
        with owned_folder(path.parent) as folder:
            temporary = folder / KEY_FILE
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                file.write(secrets.token_bytes(KEY_BYTES))
            sync(temporary)
            try:
                os.link(temporary, path)  # unlike a rename, leaves the key of another process
            except OSError:
                if _read_key(path) is None:  # damaged, or there are no links on this file system
                    os.replace(temporary, path)
            sync(path.parent)
    return _read_key(path)


def _read_key(path: Path) -> bytes | None:
    with suppress(OSError):
        if len(key := path.read_bytes()) == KEY_BYTES:
            return key
    return None
