"""Verify every file of a run folder, for `elman info --verify`.

Each file is read whole and compared with its checksums; then the folder is opened as a whole, which
compares the files with one another: the configuration with the shapes of the weights, and the
vocabulary with the hash in their header. A file that is damaged does not hide the next.

A tokenizer.json has another program's format, without checksums: it is compared with that hash too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from elman.base.documents import check_page, is_sealed, read_json, read_json_lines
from elman.base.errors import ElmanError
from elman.base.tensor_files import open_tensors
from elman.runs.run_folder import TOKENIZER_FILE, check_run_folder
from elman.tasks.opening import open_run
from elman.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class Verified:
    """The state of one file, or of the folder as a whole (`.`)."""

    file: str
    state: str
    """intact, unchecked (readable, but nothing was recorded to compare it with) or damaged."""
    problem: str = ""


def verify_run(path: Path) -> Iterator[Verified]:
    """Verify the files of a run folder one after the other, then the folder."""
    check_run_folder(path)
    whole = _verified(".", _open, path)
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path)
        if file.is_file() and not any(part.startswith(".") for part in name.parts):
            yield _verified(str(name), _reader(file, whole), file)
    yield whole


def _verified(name: str, read: Callable[[Path], bool], path: Path) -> Verified:
    try:
        return Verified(name, "intact" if read(path) else "unchecked")
    except ElmanError as error:
        return Verified(name, "damaged", error.message)


def _open(path: Path) -> bool:
    open_run(path)
    return True


def _tensors(path: Path) -> bool:
    with open_tensors(path) as file:
        file.verify()
        return file.is_checked


def _document(path: Path) -> bool:
    read_json(path)
    return is_sealed(path.read_bytes())


def _lines(path: Path) -> bool:
    read_json_lines(path)
    return all(map(is_sealed, path.read_bytes().splitlines()))


def _tokenizer(path: Path, whole: Verified) -> bool:
    """Compare a tokenizer with the hash in the model beside it."""
    tokenizer = Tokenizer.load(path)
    recorded = _recorded_hash(path)
    if recorded is None or recorded in (tokenizer.hash, tokenizer.old_hash):
        return recorded is not None
    # It is another's, or the hash is of labels too, which opening the folder compares.
    if whole.problem.startswith(str(path)):
        raise ElmanError(whole.problem)
    return whole.state == "intact"


def _recorded_hash(tokenizer_file: Path) -> str | None:
    """The hash of the tokenizer in the header of the model beside it."""
    key = "source_tokenizer" if tokenizer_file.name.startswith("source") else "tokenizer"
    for file in sorted(tokenizer_file.parent.glob("*.safetensors")):
        with suppress(ElmanError), open_tensors(file) as tensors:
            if key in tensors.header:
                return str(tensors.header[key])
    return None


def _nothing(path: Path) -> bool:
    return False


_READERS: Mapping[str, Callable[[Path], bool]] = {
    ".safetensors": _tensors,
    ".json": _document,
    ".jsonl": _lines,
    ".md": check_page,
}
"""By suffix, a function that reads a file and returns whether it has checksums."""


def _reader(file: Path, whole: Verified) -> Callable[[Path], bool]:
    if file.name.endswith(TOKENIZER_FILE):  # also source_tokenizer.json
        return partial(_tokenizer, whole=whole)
    return _READERS.get(file.suffix, _nothing)
