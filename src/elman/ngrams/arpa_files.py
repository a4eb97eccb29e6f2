r"""ARPA files and the tokenizers that they do not hold.

The format has words between spaces. A file alone is read as pre-tokenised text is: cut at white
space. Where that is not how the model's own text was cut, the tokenizer is written beside it, as
`x.tokenizer.json` beside `x.arpa`, and is used wherever the two are found together.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from elman.base.cache import cache_folder
from elman.base.errors import ElmanError, UsageError
from elman.base.files import explain
from elman.ngrams.arpa_read import read_arpa
from elman.ngrams.arpa_write import MARKS, write_arpa
from elman.ngrams.backoff import BackoffModel
from elman.ngrams.storage import MODEL_FILE, load, save
from elman.text.sources import byte_blocks
from elman.tokens import pretokenized
from elman.tokens.kind import UNKNOWN
from elman.tokens.tokenizer import TOKENIZER_FILE, Tokenizer

SUFFIXES = (".arpa", ".arpa.gz", ".arpa.zst")
"""Names by which a file is taken for one."""
_BEGINNING = 1 << 16
LARGE = 1 << 20
"""Files of so many bytes or more are kept in the cache once they are read."""


def is_arpa(path: Path) -> bool:
    r"""Whether a file is in the ARPA format: by its name or, failing that, by a line \data\."""
    if not path.is_file() or path.name.lower().endswith(SUFFIXES):
        return path.is_file()
    with suppress(ElmanError):
        for block in byte_blocks(path, _BEGINNING):
            return b"\\data\\" in map(bytes.strip, block.data.split(b"\n"))
    return False


def tokenizer_beside(path: Path) -> Path:
    """Where the tokenizer of an ARPA file is, if it has one."""
    plain = path.with_suffix("") if path.suffix.lower() in (".gz", ".zst") else path
    return plain.with_name(f"{plain.stem}.tokenizer.json")


def open_arpa(path: Path, *, keep: bool = True) -> tuple[BackoffModel, Tokenizer]:
    """The model in an ARPA file, and its tokenizer: the one beside it, or one for white space.

    What was read is kept in the cache if `keep`, so that a large file opens at once the next time.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise explain(error, path) from error
    beside = tokenizer_beside(path)
    known = Tokenizer.load(beside) if beside.is_file() else None
    signature = f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns} {known and known.hash}"
    kept = cache_folder() / "arpa" / hashlib.sha256(signature.encode()).hexdigest()[:32]
    try:
        ngrams, _ = load(kept / MODEL_FILE)
        return ngrams, Tokenizer.load(kept / TOKENIZER_FILE)
    except ElmanError:
        found = read_arpa(path, known)
    tokenizer = known or Tokenizer(pretokenized.build(found.words[2:]))
    if keep and stat.st_size >= LARGE:
        save(kept / MODEL_FILE, found.model)
        tokenizer.save(kept / TOKENIZER_FILE)
    return found.model, tokenizer


def check_writable_as_arpa(path: Path) -> None:
    """See that the name is that of a form in which files are written."""
    if path.suffix.lower() == ".zst":
        raise UsageError(
            f"{path} cannot be written: ARPA files are written plain or with gzip",
            "choose a name that ends in .arpa or .arpa.gz",
        )


def save_arpa(
    path: Path, model: BackoffModel, tokenizer: Tokenizer, *, num_threads: int | None = None
) -> list[str]:
    """Write a model, compressed where the name ends in .gz; return what a user should know."""
    check_writable_as_arpa(path)
    spellings = tokenizer.spellings()
    beside = None if _is_plain(tokenizer, spellings) else tokenizer_beside(path)
    if beside is not None:
        if beside.exists() and Tokenizer.load(beside).hash != tokenizer.hash:
            raise UsageError(
                f"{beside} is there already, and is another tokenizer",
                "choose another name for the ARPA file, or remove it first",
            )
        tokenizer.save(beside)
    write_arpa(path, model, spellings, unknown_id=tokenizer.unknown_id, num_threads=num_threads)
    notes = []
    if beside is not None:
        notes.append(
            f"an ARPA file holds no tokenizer: it is in {beside}, where Elman finds it; for other "
            "tools cut the text into the same tokens first"
        )
    if not model.about.get("normalised", True):
        notes.append(
            "an ARPA file cannot say that its scores do not sum to one: whoever reads it, Elman "
            "too, will take them for probabilities"
        )
    return notes


def _is_plain(tokenizer: Tokenizer, spellings: list[str]) -> bool:
    """Whether text cut at white space is the text that the model was made of."""
    return (
        tokenizer.kind == "pretokenized"
        and not tokenizer.lowercase
        and not (MARKS - {UNKNOWN}) & set(spellings)
    )
