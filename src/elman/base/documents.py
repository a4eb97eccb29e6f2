"""Read and write JSON, JSON lines and TOML; turn what damage causes into one error about the file.

Every reader of a file works inside `intact`. The JSON documents that Elman writes into a run folder
are sealed: their last entry, "check", is the CRC-32 of all bytes before it, so that a changed byte
is noticed. A file without this entry, of an older version or written by hand, is read as it is.
"""

from __future__ import annotations

import json
import re
import tomllib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from elman.base.errors import ElmanError, UsageError
from elman.base.files import explained, regular, write_text

CHECK = "check"
RESTORE = "restore the file from a copy, or train the model again"
MOST_LEVELS = 100
"""Limit on the nesting of a document: what handles documents may be recursive."""
_LONGEST_DETAIL = 300
_DEEP_KEY = re.compile(rf"""(?<![\w"'.-])(?:[\w"'-]++\s*+\.\s*+){{{MOST_LEVELS}}}""")
_SEAL = re.compile(rb'"([^"]*)": "([0-9a-f]{8})"\s*\}\s*\Z')


@contextmanager
def intact(
    path: Path | str,
    fault: str = "is damaged",
    hint: str = RESTORE,
    *,
    error_class: type[ElmanError] = ElmanError,
) -> Iterator[None]:
    """Turn every error that the content of `path` can cause into one that names the file.

    `fault` says what is wrong with it, before the detail. Errors of the operating system are
    explained; errors for users pass.
    """
    try:
        with explained(path):
            try:
                yield
            except OSError as error:
                if error.errno is not None:
                    raise
                raise ValueError(str(error)) from error  # gzip, h5py and Pillow about the content
    except (ElmanError, ImportError):
        raise
    except BaseException as error:
        # The panic of a library in Rust is no Exception; its class cannot be imported.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise error_class(f"{path} {fault}: {_detail(error)}", hint) from error


def damaged(path: Path | str, detail: str, hint: str = RESTORE) -> ElmanError:
    return ElmanError(f"{path} is damaged: {detail}", hint)


def _detail(error: BaseException) -> str:
    """Say in a few words what an error of a reader means."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, MemoryError):
        return "it needs more memory than there is"
    if isinstance(error, KeyError):
        return f"it has no entry {error}"[:_LONGEST_DETAIL]
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, ValueError) and text.startswith("Exceeds the limit"):
        return "a number has too many digits"
    return text if len(text) <= _LONGEST_DETAIL else f"{text[:_LONGEST_DETAIL]}..."


def write_json(path: Path, value: Any, *, seal: bool = False) -> None:
    """Write a document; `seal` one that is an object."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    write_text(path, (sealed(text) if seal else text) + "\n")


def read_json(path: Path) -> Any:
    """Read a document; of a sealed one the seal is checked and removed."""
    with intact(path):
        data = regular(path).read_bytes()
        return _unsealed(data, parse_json(data, path), path)


def read_json_lines(path: Path, *, missing_ok: bool = False) -> list[dict[str, Any]]:
    """Read a file with one object per line, without a last line that is still being written.

    With `missing_ok`, a file that does not exist has no lines.
    """
    if missing_ok and not path.exists():
        return []
    with intact(path):
        *lines, rest = regular(path).read_bytes().split(b"\n")
        if rest and not rest.startswith(b"{"):
            raise damaged(path, "its last line is not a JSON object")
        if _begins_with_object(rest):
            lines.append(rest)  # only its line end is missing, or was changed
        return [parse_line(line, path, number) for number, line in enumerate(lines, start=1)]


def parse_line(line: bytes, path: Path, number: int) -> dict[str, Any]:
    """Parse a line of a file of JSON lines, and check its seal."""
    value = parse_json(line, path, f"is damaged: line {number}")
    if not isinstance(value, dict):
        raise damaged(path, f"line {number} is not a JSON object")
    return dict(_unsealed(line, value, path, f" (line {number})"))


def parse_json(
    text: str | bytes, path: Path | str, fault: str = "is damaged", hint: str = RESTORE
) -> Any:
    """Parse JSON from the file `path`."""
    with intact(path, fault, hint):
        text = text.decode() if isinstance(text, bytes) else text
        value = json.loads(text)
        _check_levels(value)
        if "\\ud" in text.lower():
            # A half of a character outside the basic plane cannot be written again.
            json.dumps(value, ensure_ascii=False).encode()
        return value


def is_list_of_names(value: Any) -> bool:
    """Whether a value is a list of different strings, as a vocabulary is."""
    return (
        isinstance(value, list)
        and all(isinstance(name, str) for name in value)
        and len(set(value)) == len(value)
    )


def read_toml(path: Path) -> dict[str, Any]:
    """Read a file that the user named, perhaps a pipe."""
    hint = "see docs/guides for an example"
    with intact(path, "is not TOML", hint, error_class=UsageError):
        return parse_toml(regular(path, or_pipe=True).read_text(encoding="utf-8"))


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; raise a RecursionError if it is nested deeply."""
    if _DEEP_KEY.search(text):  # the time to parse it would grow with the square of its parts
        raise RecursionError
    values = tomllib.loads(text)
    _check_levels(values)
    return values


def sealed(text: str) -> str:
    """Add a last entry to a JSON object that is given as text: the CRC-32 of the bytes before."""
    body = text.rstrip().removesuffix("}")
    content = body.rstrip()
    space = body[len(content) :]
    before = f"{content}{',' if content != '{' else ''}{f'{space}  ' if space else ' '}"
    return f'{before}"{CHECK}": "{checksum(before.encode())}"{space}}}'


def sealed_page(text: str) -> str:
    """Add to a page of Markdown a comment with the CRC-32 of the bytes before it."""
    return text + _comment(checksum(text.encode()))


def check_page(path: Path) -> bool:
    """Check the seal of a page; return whether it has one."""
    with intact(path):
        data = regular(path).read_bytes()
        size = len(_comment(checksum(b"")))
        found, end = checksum(data[:-size]), data[-size:]
        is_seal = end.startswith(_comment("")[:9].encode()) or found.encode() in end
        if is_seal and end != _comment(found).encode():
            raise changed(path)
        return is_seal


def _comment(check: str) -> str:
    return f"\n<!-- {CHECK}: {check} -->\n"


def checksum(data: bytes) -> str:
    return f"{zlib.crc32(data):08x}"


def changed(path: Path | str, where: str = "") -> ElmanError:
    """The error about a document whose seal does not fit."""
    return ElmanError(
        f"{path} was changed after it was written{where}",
        f'restore it from a copy, or delete its "{CHECK}" if you changed it on purpose',
    )


def is_sealed(data: bytes) -> bool:
    """Whether a document or a line ends in its own checksum."""
    found = _SEAL.search(data, max(0, len(data) - 64))
    return (
        found is not None
        and found[1].decode(errors="replace") == CHECK
        and found[2].decode() == checksum(data[: found.start()])
    )


def _unsealed(data: bytes, value: Any, path: Path, where: str = "") -> Any:
    """Check the seal of a document, if it has one, and remove it from its value."""
    if isinstance(value, dict):
        found = _SEAL.search(data, max(0, len(data) - 64))
        fits = found is not None and found[2].decode() == checksum(data[: found.start()])
        # A seal that fits under another name: a byte of its name was changed.
        if (CHECK in value or fits) and not (fits and value.pop(CHECK, None)):
            raise changed(path, where)
    return value


def _begins_with_object(data: bytes) -> bool:
    try:
        return isinstance(json.JSONDecoder().raw_decode(data.decode(errors="replace"))[0], dict)
    except (ValueError, RecursionError):
        return False


def _check_levels(value: Any) -> None:
    groups = [value]
    for _ in range(MOST_LEVELS):
        inside = (g.values() if isinstance(g, dict) else g for g in groups if _is_group(g))
        groups = [child for children in inside for child in children if _is_group(child)]
        if not groups:
            return
    raise RecursionError


def _is_group(value: Any) -> bool:
    return isinstance(value, (dict, list))
