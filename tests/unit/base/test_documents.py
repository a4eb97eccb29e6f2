"""Documents: damage is one sentence about the file, seals notice every changed byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elman.base.documents import (
    damaged,
    intact,
    parse_json,
    read_json,
    read_json_lines,
    read_toml,
    sealed,
    write_json,
)
from elman.base.errors import ElmanError, UsageError

DEEP, LONG = 100_000, "9" * 5_000


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[" * DEEP, "nested too deeply"),
        (b'{"a":' * DEEP, "nested too deeply"),
        (b"[" * 101 + b"]" * 101, "nested too deeply"),
        (b"[%s]" % LONG.encode(), "too many digits"),
        (b"{", "Expecting"),
        (b"\xff", "utf-8"),
        (b'"\xed\xa0\x80"', "utf-8"),
        (b'"\\ud800"', "surrogates not allowed"),
        (b'"\\uD800"', "surrogates not allowed"),
        (b"", "Expecting value"),
    ],
)
def test_damaged_json_is_one_sentence(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    for read in (read_json, lambda path: parse_json(path.read_bytes(), path)):
        with pytest.raises(ElmanError, match=r"x\.json is damaged: .*" + words) as caught:
            read(path)
        assert "\n" not in caught.value.message
        assert len(caught.value.message) < 500
    path.write_bytes(b'{"a": 1}\n' + content + b"\n")
    with pytest.raises(ElmanError, match=r"x\.json is damaged: line 2: .*" + words):
        read_json_lines(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a = " + "[" * DEEP, "nested too deeply"),
        ("a = " + "{b = " * DEEP, "nested too deeply"),
        ("a" + ".a" * DEEP + " = 1", "nested too deeply"),
        (f"a = {LONG}", "too many digits"),
        ("a = ", "Invalid value"),
    ],
)
def test_damaged_toml_is_one_sentence(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(content)
    with pytest.raises(UsageError, match=r"x\.toml is not TOML: .*" + words):
        read_toml(path)


class PanicException(BaseException):
    """Like that of pyo3, which is no Exception and cannot be imported."""


@pytest.mark.parametrize(
    "error",
    [
        *(KeyError("a"), IndexError("b"), TypeError(), AttributeError("c"), EOFError("d")),
        *(MemoryError(), OverflowError("e"), RecursionError(), OSError("no errno"), Exception("f")),
        PanicException("index out of bounds"),
    ],
)
def test_every_error_of_a_reader_becomes_one_about_the_file(error: BaseException) -> None:
    with pytest.raises(ElmanError, match=r"^x is damaged: .+"), intact("x"):
        raise error


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(), damaged("y", "it is empty"), ImportError("h5py")]
)
def test_other_errors_pass_through(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, intact("x"):
        raise error
    assert caught.value is error


def test_an_error_of_the_operating_system_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ElmanError, match="does not exist"):
        read_json(tmp_path / "absent")


VALUES = st.dictionaries(
    st.text(max_size=5),
    st.one_of(st.text(max_size=5), st.integers(), st.lists(st.just("check"), max_size=2)),
    max_size=4,
)


@given(value=VALUES, position=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_flip_in_a_sealed_document_is_refused_or_means_the_same(
    tmp_path_factory: pytest.TempPathFactory, value: dict[str, Any], position: int, bit: int
) -> None:
    value.pop("check", None)
    path = tmp_path_factory.getbasetemp() / "sealed.json"
    write_json(path, value, seal=True)
    assert read_json(path) == value
    assert json.loads(path.read_text())["check"]
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= 1 << bit
    path.write_bytes(data)
    _same_or_refused(lambda: read_json(path), value)
    line = (sealed(json.dumps(value, ensure_ascii=False)) + "\n").encode()
    path.write_bytes(line * 2)
    assert read_json_lines(path) == [value] * 2
    data = bytearray(line * 2)
    data[position % len(data)] ^= 1 << bit
    path.write_bytes(data)
    _same_or_refused(lambda: read_json_lines(path), [value] * 2)


def _same_or_refused(read: Callable[[], Any], value: Any) -> None:
    try:
        found = read()
    except ElmanError:
        return
    assert found == value


def test_a_changed_document_says_how_to_accept_it(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    write_json(path, {"a": 1, "b": 2}, seal=True)
    path.write_text(path.read_text().replace("1", "3", 1))
    with pytest.raises(
        ElmanError, match=r"config\.json was changed after it was written"
    ) as caught:
        read_json(path)
    assert 'delete its "check"' in caught.value.hint
    path.write_text('{"a": 3, "b": 2}')
    assert read_json(path) == {"a": 3, "b": 2}


def test_lines_leave_out_one_that_is_still_being_written(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    line = sealed('{"step": 1}')
    path.write_text(f"{line}\n{line[:-4]}")
    assert read_json_lines(path) == [{"step": 1}]
    path.write_text(f"{line}\n{line}")
    assert read_json_lines(path) == [{"step": 1}] * 2
    path.write_text(f"{line}\n{line}\x0b")
    with pytest.raises(ElmanError, match="is damaged: line 2: "):
        read_json_lines(path)
    path.write_text(f"{line}\n{line.replace('1', '2', 1)}\n{line}\n")
    with pytest.raises(ElmanError, match=r"was changed after it was written \(line 2\)"):
        read_json_lines(path)
    path.write_text(f"{line}\n" + "\0" * 100)
    with pytest.raises(ElmanError, match="its last line is not a JSON object"):
        read_json_lines(path)
    path.write_text("[1]\n")
    with pytest.raises(ElmanError, match="line 1 is not a JSON object"):
        read_json_lines(path)
