"""Open and save ARPA files together with their tokenizers.

The format holds words separated by spaces, and no tokenizer. Without one, a model is used with
pre-tokenised text, split at white space. If the training text was tokenised differently, the
tokenizer is saved next to the file, `x.tokenizer.json` next to `x.arpa`, and loaded with it.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from elman.base.cache import cache_folder
from elman.base.errors import ElmanError, UsageError
from elman.base.files import explained
from elman.ngrams.arpa_read import read_arpa
from elman.ngrams.arpa_write import MARKS, has_space, write_arpa
from elman.ngrams.backoff import BackoffModel
from elman.ngrams.storage import MODEL_FILE, load, save
from elman.ngrams.vocabulary import spellings_of
from elman.text.sources import byte_blocks
from elman.tokens import pretokenized
from elman.tokens.kind import UNKNOWN
from elman.tokens.tokenizer import TOKENIZER_FILE, Tokenizer

SUFFIXES = (".arpa", ".arpa.gz", ".arpa.zst")
_BEGINNING = 1 << 16
LARGE = 1 << 20
"""Files of this many bytes or more are cached in binary form once they have been read."""


def is_arpa(path: Path) -> bool:
    r"""Recognise an ARPA file by its name or by a line \data\ in its first 64 KiB."""
    if not path.is_file() or path.name.lower().endswith(SUFFIXES):
        return path.is_file()
    with suppress(ElmanError):
        for block in byte_blocks(path, _BEGINNING):
            return b"\\data\\" in map(bytes.strip, block.data.split(b"\n"))
    return False


def tokenizer_beside(path: Path) -> Path:
    """Return the path of an ARPA file's tokenizer, which need not exist."""
    plain = path.with_suffix("") if path.suffix.lower() in (".gz", ".zst") else path
    return plain.with_name(f"{plain.stem}.tokenizer.json")


def new_tokenizer_beside(path: Path) -> Path | None:
    """Return the path of a tokenizer that saving the ARPA file may create; None if it exists."""
    beside = tokenizer_beside(path)
    return None if beside.exists() else beside


def open_arpa(path: Path, *, keep: bool = True) -> tuple[BackoffModel, Tokenizer]:
    """Open an ARPA file and its tokenizer, or one that splits at white space.

    `keep` caches large files in binary form, to open fast the next time.
    """
    with explained(path):
        stat = path.stat()
    beside = tokenizer_beside(path)
    known = Tokenizer.load(beside) if beside.is_file() else None
    signature = f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns} {known and known.hash}"
    kept = cache_folder() / "arpa" / hashlib.sha256(signature.encode()).hexdigest()[:32]
    try:
        ngrams, header = load(kept / MODEL_FILE)
        tokenizer = known or Tokenizer.load(kept / TOKENIZER_FILE)
        if header.get("tokenizer") == tokenizer.hash:
            return ngrams, tokenizer
    except ElmanError:
        pass
    found = read_arpa(path, known)
    tokenizer = known or Tokenizer(pretokenized.build(found.words[2:]))
    if keep and stat.st_size >= LARGE:
        with suppress(ElmanError):  # a full or read-only cache
            tokenizer.save(kept / TOKENIZER_FILE)
            save(kept / MODEL_FILE, found.model, {"tokenizer": tokenizer.hash})
    return found.model, tokenizer


def check_writable_as_arpa(path: Path) -> None:
    if path.suffix.lower() == ".zst":
        raise UsageError(
            f"{path} cannot be written: zstd is not supported for ARPA files",
            "choose a name that ends in .arpa or .arpa.gz",
        )


def needed_beside(path: Path, tokenizer: Tokenizer) -> Path | None:
    """The file beside an ARPA file for a tokenizer that words between spaces do not tell; None if
    they do. Refuse to replace another tokenizer."""
    if _is_plain(tokenizer):
        return None
    beside = tokenizer_beside(path)
    if beside.exists() and Tokenizer.load(beside).hash != tokenizer.hash:
        raise UsageError(
            f"{beside} already exists and is another tokenizer",
            "choose another name for the ARPA file, or delete the tokenizer",
        )
    return beside


def save_arpa(
    path: Path,
    model: BackoffModel,
    tokenizer: Tokenizer,
    *,
    temporary: Path | None = None,
    num_threads: int | None = None,
) -> list[str]:
    """Write a model, compressed if the name ends in .gz; return notes for the user.

    With `temporary`, write it there: the caller renames it to `path`.
    """
    check_writable_as_arpa(path)
    beside = needed_beside(path, tokenizer)
    words = spellings_of(tokenizer.backend) if beside is None else None
    if beside is not None:
        tokenizer.save(beside)
    written = temporary or path
    spelled = tokenizer.names() if words is None or has_space(words) else words
    write_arpa(written, model, spelled, unknown_id=tokenizer.unknown_id, num_threads=num_threads)
    notes = []
    if beside is not None:
        notes.append(
            f"an ARPA file holds no tokenizer: saved it as {beside}, where Elman finds it; for "
            "other tools, tokenise the text in the same way first"
        )
    if not model.about.get("normalised", True):
        notes.append(
            "an ARPA file cannot record that its scores do not sum to one: every reader, "
            "including Elman, will treat them as probabilities"
        )
    return notes


def _is_plain(tokenizer: Tokenizer) -> bool:
    """Check whether splitting at white space reproduces the model's tokens."""
    return (
        tokenizer.kind == "pretokenized"
        and not tokenizer.lowercase
        and bool((tokenizer.word_ids(sorted(MARKS - {UNKNOWN})) == tokenizer.unknown_id).all())
    )
