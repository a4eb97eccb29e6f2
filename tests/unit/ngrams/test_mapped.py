"""Whatever happens to the file of a model, its figures are the same or there is an error."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from elman.base import tensor_files
from elman.base.errors import ElmanError
from elman.ngrams import mapped
from elman.ngrams.backoff import BackoffModel
from elman.ngrams.compact import Bits, CompactModel, save_compact
from elman.ngrams.counting import count
from elman.ngrams.smoothing import build
from elman.ngrams.statistics import unseen
from elman.ngrams.storage import open_model, save
from elman.tasks.ngram.settings import NgramConfig
from elman.tasks.snm.settings import SNMConfig
from elman.tasks.snm.sparse_matrix import (
    SparseMatrixModel,
    estimate_matrix,
    load_matrix,
    save_matrix,
)

V = 900
BLOCK = tensor_files.BLOCK_SIZE
RNG = np.random.default_rng(0)
IDS = np.minimum(RNG.zipf(1.3, 12_000) - 1, V - 1).astype(np.int32)
TEXT = RNG.permutation(IDS)[:150]
Model = BackoffModel | CompactModel | SparseMatrixModel
LAYOUTS = ("kneser-ney 3 compact", "kneser-ney 3 quantised")


def make(
    path: Path, name: str, ids: np.ndarray = IDS
) -> Callable[[Path], tuple[Model, dict[str, Any]]]:
    """Save a model of several blocks; return the function that opens it."""
    if name == "snm":
        config = SNMConfig(order=3, num_epochs=1, num_events=100)
        save_matrix(path, estimate_matrix(ids, config, vocab_size=V, boundary_id=0, num_threads=1))
        return load_matrix
    smoothing, order, *layout = name.split()
    config = NgramConfig(order=int(order), smoothing=smoothing)  # type: ignore[assignment,arg-type]
    model = build(count(ids, int(order), vocab_size=V, boundary_id=0), config)  # type: ignore[arg-type]
    if layout:
        save_compact(path, model, Bits(8, 8) if layout == ["quantised"] else Bits())
    else:
        save(path, model)
    return open_model


def answers(model: Model, text: np.ndarray = TEXT) -> list[Any]:
    """Every kind of figure that a model gives."""
    rows = text[: len(text) // 3 * 3].reshape(3, -1).astype(np.int64)
    context = np.full((3, model.order - 1), -1)
    found: list[Any] = [
        model.score(text, 1),
        model.score_rows(rows, rows[:, ::-1], context),
        model.distributions(rows[:, : model.order - 1]),
    ]
    if isinstance(model, BackoffModel):
        found += [*model.trace(text), unseen(model, text)]
    elif isinstance(model, SparseMatrixModel):
        found.append(model.by_template())
    return found


def same(one: list[Any], other: list[Any]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.fixture(params=["in memory", "mapped"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "mapped":
        monkeypatch.setattr(mapped, "SMALL", 0)
        monkeypatch.setattr(mapped, "_MORE", 0.0)  # verify nothing but what is used
    return str(request.param)


@pytest.mark.parametrize("name", ["kneser-ney 3", "katz 2", "witten-bell 1", "snm", *LAYOUTS])
def test_no_flipped_bit_changes_a_figure_unnoticed(tmp_path: Path, size: str, name: str) -> None:
    path = tmp_path / "m"
    opening = make(path, name)
    sound = path.read_bytes()
    expected = answers(opening(path)[0])
    header = 8 + int.from_bytes(sound[:8], "little")
    rng = np.random.default_rng(1)
    told = 0
    for trial in range(60):
        place = rng.integers(0, header) if trial % 4 == 0 else rng.integers(header, len(sound))
        wrong = bytearray(sound)
        wrong[place] ^= 1 << rng.integers(8)
        path.write_bytes(wrong)
        try:
            assert same(answers(opening(path)[0]), expected)
        except ElmanError as error:
            told += "damaged" in error.message
    assert told > (55 if size == "in memory" else 20)


def test_a_loop_marks_every_block_that_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Overwrite all blocks that were not verified: the figures stay as they were."""
    monkeypatch.setattr(mapped, "SMALL", 0)
    monkeypatch.setattr(mapped, "_MORE", 0.0)
    ids = RNG.integers(0, V, 60_000).astype(np.int32)
    for name in ("kneser-ney 4", "snm", "kneser-ney 4 compact", "kneser-ney 4 quantised"):
        path = tmp_path / name
        opening = make(path, name, ids)
        for ask in (
            lambda m: m.score(ids[7:12], 1),
            lambda m: m.score_rows(ids[None, 7:11], ids[None, 11:7:-1], ids[None, 3:7]),
            lambda m: m.distributions(ids[None, : m.order - 1]),
        ):
            model = opening(path)[0]
            expected = ask(model)
            file = model.file
            assert file is not None
            assert file.marks is not None, "too small a model"
            num_unread = 0
            for array, marks in zip(file.arrays.values(), file.marks, strict=True):
                as_bytes = array.reshape(-1).view(np.uint8)
                for block in np.flatnonzero(marks == 0):
                    num_unread += 1
                    as_bytes[block * BLOCK : (block + 1) * BLOCK] = 0xA5  # copy-on-write
            file.marks = None  # accept all of it
            assert num_unread > (20 if name in ("kneser-ney 4", "snm") else 0)
            assert np.array_equal(ask(model), expected)


def test_after_a_while_nothing_is_left_to_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped, "SMALL", 0)
    monkeypatch.setattr(mapped, "_MORE", 1e9)
    opening = make(tmp_path / "m", "kneser-ney 3")
    model = opening(tmp_path / "m")[0]
    assert model.file is not None
    assert model.file.marks is not None
    before = model.score(TEXT)
    assert model.file.marks is None
    assert np.array_equal(model.score(TEXT), before)


@pytest.mark.parametrize("name", ["kneser-ney 3", "snm"])
def test_numbers_that_are_not_finite_are_named(tmp_path: Path, size: str, name: str) -> None:
    path = tmp_path / "m"
    opening = make(path, name)
    model = opening(path)[0]
    floats = model.leaves.view(np.float32)[:, 1] if name != "snm" else model.weights  # type: ignore[union-attr]
    for wrong in (np.nan, np.inf):
        floats[:] = wrong
        save_matrix(path, model) if name == "snm" else save(path, model)  # type: ignore[arg-type]
        with pytest.raises(ElmanError, match="not finite"):
            answers(opening(path)[0])


@pytest.mark.parametrize("name", ["kneser-ney 3", "snm", *LAYOUTS])
def test_more_or_fewer_bytes_are_refused(tmp_path: Path, size: str, name: str) -> None:
    path = tmp_path / "m"
    opening = make(path, name)
    sound = path.read_bytes()
    middle = len(sound) // 2
    for wrong in (
        sound + b"\0" * 64,
        sound[:-1],
        sound[:middle] + bytes(4) + sound[middle:],
        sound[:middle] + sound[middle + 4 :],
        sound[: len(sound) // 50],
        (1 << 40).to_bytes(8, "little") + sound[8:],
        b"",
    ):
        path.write_bytes(wrong)
        with pytest.raises(ElmanError, match="damaged"):
            opening(path)


def damaged_headers(header: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for key in header:
        for value in (None, -1, 10**30, "x", [], {}, [None], [[1]], float("nan")):
            if (key, value) not in (("uniform", 10**30), ("about", {})):
                yield {**header, key: value}
        yield {name: value for name, value in header.items() if name != key}


@pytest.mark.parametrize("name", ["kneser-ney 2", "snm", *LAYOUTS])
def test_a_header_of_nonsense_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "m"
    opening = make(path, name)
    model, header = opening(path)
    assert model.file is not None
    kinds = {"int32": "I32", "int64": "I64", "uint64": "U64", "float32": "F32"}
    for wrong in damaged_headers(header):
        arrays = {
            name: (kinds[str(array.dtype)], array.shape, [array])
            for name, array in model.file.arrays.items()
        }
        tensor_files.write(path, wrong, arrays, mapped=True)
        with pytest.raises(ElmanError, match=r"damaged|format"):
            opening(path)
            raise AssertionError(f"opened with {wrong}")


def test_files_of_earlier_versions_have_no_checksums_and_open(tmp_path: Path, size: str) -> None:
    path = tmp_path / "m"
    opening = make(path, "kneser-ney 3")
    model, header = opening(path)
    expected = answers(model)
    assert model.file is not None
    save_file(model.file.arrays, path, {"elman": json.dumps(header)})
    assert same(answers(opening(path)[0]), expected)


CUT = """
import os, sys
from pathlib import Path
import numpy as np
from elman.base.errors import ElmanError
from elman.ngrams import mapped
from elman.ngrams.storage import load
mapped.SMALL = 0
model, _ = load(Path(sys.argv[1]))
os.truncate(sys.argv[1], 4096)
try:
    model.score(np.arange(50, dtype=np.int32))
except ElmanError as error:
    sys.exit(error.message)
"""


def test_a_mapped_file_that_is_cut_short_in_place_does_not_kill_the_process(tmp_path: Path) -> None:
    make(tmp_path / "m", "kneser-ney 3")
    done = subprocess.run(
        [sys.executable, "-c", CUT, tmp_path / "m"], capture_output=True, text=True
    )
    message = f"{tmp_path / 'm'} was changed or cut short while it was in use\n"
    assert (done.returncode, done.stderr) == (1, message)


@pytest.mark.parametrize("name", ["kneser-ney 3", "snm", *LAYOUTS])
def test_a_file_that_is_overwritten_in_place_is_not_read(
    tmp_path: Path, size: str, name: str
) -> None:
    path = tmp_path / "m"
    model = make(path, name)(path)[0]
    expected = model.score(TEXT, 1)
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(bytes(BLOCK))
    rows = TEXT[None, : model.order - 1]
    asks: list[Callable[[], Any]] = [
        lambda: model.score(TEXT, 1),
        lambda: model.score_rows(rows, rows, rows),
        lambda: model.distributions(rows),
        model.check_unchanged,
    ]
    if size == "in memory":  # nothing can happen to it
        assert np.array_equal(asks[0](), expected)
        return
    for ask in asks:
        with pytest.raises(ElmanError, match="was changed or cut short while it was in use"):
            ask()


def test_a_file_that_is_replaced_goes_on_as_it_was(tmp_path: Path, size: str) -> None:
    path = tmp_path / "m"
    model = make(path, "kneser-ney 3")(path)[0]
    expected = model.score(TEXT, 1)
    make(path, "katz 2")
    assert np.array_equal(model.score(TEXT, 1), expected)
    path.unlink()
    assert np.array_equal(model.score(TEXT, 1), expected)
