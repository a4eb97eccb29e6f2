"""Files of tensors: what is written comes back, and no change to a byte goes unnoticed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from elman.base import tensor_files
from elman.base.errors import ElmanError
from elman.base.tensor_files import open_tensors

RNG = np.random.default_rng(0)
ARRAYS = {
    "short": RNG.integers(0, 99, (3, 5), np.int32),
    "nothing": np.zeros((0, 4), np.float32),
    "one": np.array(7, np.int64),
    "long": RNG.standard_normal(40_000).astype(np.float32),
}
KINDS = {"short": "I32", "nothing": "F32", "one": "I64", "long": "F32"}
HEADER = {"step": 3, "word": 'quote " and ü', "losses": [1e-300, None]}


def write(path: Path, *, mapped: bool, parts: int = 3) -> bytes:
    arrays = {
        name: (KINDS[name], array.shape, np.array_split(array.reshape(-1), parts))
        for name, array in ARRAYS.items()
    }
    tensor_files.write(path, HEADER, arrays, mapped=mapped)
    return path.read_bytes()


def read(path: Path) -> dict[str, bytes]:
    with open_tensors(path) as file:
        buffers = {name: bytearray(entry.num_bytes) for name, entry in file.table.items()}
        file.read_into(buffers)
        assert file.header == HEADER
        assert {name: entry.shape for name, entry in file.table.items()} == {
            name: array.shape for name, array in ARRAYS.items()
        }
    return {name: bytes(buffer) for name, buffer in buffers.items()}


def verify(path: Path) -> dict[str, bytes]:
    with open_tensors(path) as file:
        file.verify()
        assert file.header == HEADER
    return EXPECTED


EXPECTED = {name: array.tobytes() for name, array in ARRAYS.items()}
READERS = [(False, read), (False, verify), (True, verify)]


@pytest.mark.parametrize(("mapped", "reader"), READERS)
def test_what_is_written_comes_back(
    tmp_path: Path, mapped: bool, reader: Callable[[Path], dict[str, bytes]]
) -> None:
    write(tmp_path / "x", mapped=mapped)
    assert reader(tmp_path / "x") == EXPECTED


@pytest.mark.parametrize("mapped", [False, True])
def test_other_programs_read_the_file(tmp_path: Path, mapped: bool) -> None:
    write(tmp_path / "x", mapped=mapped)
    with safe_open(tmp_path / "x", framework="numpy") as file:
        for name, array in ARRAYS.items():
            assert np.array_equal(file.get_tensor(name), array)
        found = json.loads(file.metadata()["elman"])
        assert {name: found[name] for name in HEADER} == HEADER


@pytest.mark.parametrize("mapped", [False, True])
def test_the_size_of_the_parts_does_not_change_the_file(tmp_path: Path, mapped: bool) -> None:
    array = RNG.integers(0, 99, 1_200_000, np.int64)
    written = []
    for cuts in ([], [5], [700_000], [3, 524_288, 524_289, 1_100_000]):
        parts = np.split(array, cuts)
        tensor_files.write(tmp_path / "x", {}, {"a": ("I64", array.shape, parts)}, mapped=mapped)
        written.append((tmp_path / "x").read_bytes())
    assert len(set(written)) == 1


def test_parts_that_do_not_fill_the_shape_leave_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="its shape needs 24"):
        tensor_files.write(tmp_path / "x", {}, {"a": ("I64", [3], [np.zeros(2)])})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("mapped", "reader"), READERS)
def test_every_flipped_bit_is_noticed(
    tmp_path: Path, mapped: bool, reader: Callable[[Path], dict[str, bytes]]
) -> None:
    path = tmp_path / "x"
    sound = write(path, mapped=mapped)
    size = 8 + int.from_bytes(sound[:8], "little")
    rng = np.random.default_rng(1)
    bits = [*range(0, 8 * size, 17), *rng.integers(8 * size, 8 * len(sound), 50)]
    with path.open("rb+", buffering=0) as file:
        for bit in bits:
            byte = sound[bit // 8 : bit // 8 + 1]
            file.seek(bit // 8)
            file.write(bytes([byte[0] ^ 1 << bit % 8]))
            with pytest.raises(ElmanError, match="damaged"):
                reader(path)
            file.seek(bit // 8)
            file.write(byte)
    assert reader(path) == EXPECTED


@pytest.mark.parametrize(("mapped", "reader"), READERS)
@pytest.mark.parametrize("size", [0, 5, 8, 100, -4, -1])
def test_a_file_cut_short_or_grown_is_refused(
    tmp_path: Path, mapped: bool, reader: Callable[[Path], object], size: int
) -> None:
    sound = write(tmp_path / "x", mapped=mapped)
    for wrong in (sound[:size], sound + bytes(abs(size) + 1)):
        (tmp_path / "x").write_bytes(wrong)
        with pytest.raises(ElmanError, match="damaged or cut short"):
            reader(tmp_path / "x")


def test_large_tensors_are_verified_piece_by_piece(tmp_path: Path) -> None:
    path = tmp_path / "x"
    arrays = {name: RNG.integers(0, 99, 700_000, np.int64) for name in "ab"}
    tensor_files.write(path, {}, {n: ("I64", a.shape, [a]) for n, a in arrays.items()})

    def copied() -> dict[str, bytes]:
        with open_tensors(path) as file:
            buffers = {name: bytearray(entry.num_bytes) for name, entry in file.table.items()}
            file.read_into(buffers)
        return {name: bytes(buffer) for name, buffer in buffers.items()}

    assert copied() == {name: array.tobytes() for name, array in arrays.items()}
    sound = path.read_bytes()
    pages = sound[:-8192], sound[-8192:-4096], sound[-4096:]
    start = 4096 * (len(sound) // 8192)
    for wrong in (
        sound[:-1000] + b"x" + sound[-999:],
        pages[0] + pages[2] + pages[1],
        sound[: start - 4096] + pages[2] + sound[start:],
        sound[:-4096] + bytes(4096),
    ):
        path.write_bytes(wrong)
        with pytest.raises(ElmanError, match="was changed after it was written"):
            copied()


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"[]",
        b"7",
        b"\xff\xfe",
        b'{"a": {"dtype": "F32", "shape": [' + b"9" * 5000 + b'], "data_offsets": [0, 8]}}',
        b'{"a": {"dtype": "F32", "shape": [' + b"9" * 4000 + b'], "data_offsets": [0, 8]}}',
        {},
        {"a": 7},
        {"a": [entry()]},
        {"a": {"dtype": "F32"}},
        {"a": entry(dtype="F99")},
        {"a": entry(dtype=[])},
        {"a": entry(shape=[-2, -1])},
        {"a": entry(shape=[2.0])},
        {"a": entry(shape=[True, 2])},
        {"a": entry(shape="2")},
        {"a": entry(shape=[1] * 65 + [2])},
        {"a": entry(offsets=[0, 8, 9])},
        {"a": entry(offsets=[8, 16])},
        {"a": entry(offsets=[-8, 0])},
        {"a": entry(shape=[1 << 40], offsets=[0, 1 << 42])},
        {"a": entry(), "b": entry()},
        {"a": entry(shape=[1], offsets=[0, 4])},
        {"a": entry(), "__metadata__": []},
        {"a": entry(), "__metadata__": {"elman": "[]"}},
        {"a": entry(), "__metadata__": {"elman": "[" * 100_000}},
        {"a": entry(), "__metadata__": {"elman": 7}},
        {"a": entry(), "__metadata__": {"elman": '{"checksums": {}}'}},
    ],
)
def test_a_header_of_another_kind_is_refused(tmp_path: Path, header: Any) -> None:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    (tmp_path / "x").write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(8))
    with pytest.raises(ElmanError, match="damaged"), open_tensors(tmp_path / "x"):
        pass


def test_a_header_larger_than_the_limit_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "x").open("wb") as output:
        output.write((1 << 33).to_bytes(8, "little"))
        output.truncate(1 << 34)
    with pytest.raises(ElmanError, match="its header is cut off"), open_tensors(tmp_path / "x"):
        pass


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_a_sentence(tmp_path_factory: Any, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "arbitrary"
    path.write_bytes(content)
    with pytest.raises(ElmanError, match="damaged"), open_tensors(path):
        pass


@pytest.mark.parametrize("num_threads", [1, 5])
def test_rows_made_in_threads_give_the_same_file(tmp_path: Path, num_threads: int) -> None:
    large = np.random.default_rng(0).integers(0, 9, (3 * tensor_files.BLOCK_SIZE // 16 + 5, 4))
    arrays = {"large": large.astype(np.int32), "none": np.empty((0, 2), np.int32)}
    arrays["small"] = np.arange(7, dtype=np.int32)

    def filling(array: Any) -> Any:
        def fill(first: int, end: int, rows: Any) -> None:
            rows[:] = array[first:end]

        return fill

    parts = {name: ("I32", array.shape, [array]) for name, array in arrays.items()}
    rows = {name: ("I32", array.shape, filling(array)) for name, array in arrays.items()}
    tensor_files.write(tmp_path / "parts", {"a": 1}, parts, mapped=True)
    options = {"num_threads": num_threads, "piece_size": tensor_files.BLOCK_SIZE}
    tensor_files.write_rows(tmp_path / "rows", {"a": 1}, rows, **options)
    assert (tmp_path / "rows").read_bytes() == (tmp_path / "parts").read_bytes()
