"""Weights of ELMo that were made to read other files, or to take the machine's memory."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elman.base.errors import ElmanError
from elman.nn.character_cnn import CharacterCNNConfig
from elman.tasks.elmo import files
from elman.tasks.elmo.files import OPTIONS_FILE, WEIGHTS_FILE, read_elmo, write_elmo
from elman.tasks.elmo.model import ElmoConfig

h5py = pytest.importorskip("h5py", reason="HDF5 files need h5py")

CONFIG = ElmoConfig(
    hidden_size=6,
    projection_size=4,
    character_cnn=CharacterCNNConfig(
        character_size=3, filters=(2, 3), num_highway=1, max_characters=8, padding="read"
    ),
)
CELL = "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell"
BIAS, SIZE = f"{CELL}/B", 24
SECRET = np.arange(1000, 1000 + SIZE, dtype=np.float32)
"""Numbers of a private file."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    write_elmo(tmp_path / "elmo", CONFIG.build())
    return tmp_path / "elmo"


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A folder with a file of raw numbers, and an HDF5 file that has them at the bias's place."""
    (tmp_path / "secret").write_bytes(SECRET.tobytes())
    with h5py.File(tmp_path / "secret.hdf5", "w") as file:
        file[BIAS] = SECRET
        file["plain"] = SECRET
    return tmp_path


def soft(file: Any, private: Path) -> None:
    file["elsewhere"] = SECRET
    file[BIAS] = h5py.SoftLink("/elsewhere")


def soft_group(file: Any, private: Path) -> None:
    file.move(CELL, "elsewhere")
    file[CELL] = h5py.SoftLink("/elsewhere")
    file["elsewhere/B"] = SECRET


def external(file: Any, private: Path) -> None:
    file[BIAS] = h5py.ExternalLink(str(private / "secret.hdf5"), "plain")


def external_group(file: Any, private: Path) -> None:
    del file[CELL]
    file[CELL] = h5py.ExternalLink(str(private / "secret.hdf5"), CELL)


def storage(file: Any, private: Path) -> None:
    where = [(str(private / "secret"), 0, h5py.h5f.UNLIMITED)]
    file.create_dataset(BIAS, (SIZE,), "float32", external=where)


def virtual(file: Any, private: Path) -> None:
    layout = h5py.VirtualLayout((SIZE,), "float32")
    layout[:] = h5py.VirtualSource(private / "secret.hdf5", "plain", (SIZE,))
    file.create_virtual_dataset(BIAS, layout)


@pytest.mark.parametrize("hostile", [soft, soft_group, external, external_group, storage, virtual])
def test_numbers_of_other_files_are_refused(
    folder: Path, private: Path, hostile: Callable[[Any, Path], None], monkeypatch: Any
) -> None:
    with h5py.File(folder / WEIGHTS_FILE, "a") as file:
        del file[BIAS]
        hostile(file, private)
    with h5py.File(folder / WEIGHTS_FILE) as file:
        assert file[BIAS][()].tolist() == SECRET.tolist()  # the library itself reads them
    taken: list[Any] = []
    monkeypatch.setattr(files, "_assign", lambda model, tensors: taken.append(tensors))
    with pytest.raises(ElmanError, match=r"is a link to another place|from another file"):
        read_elmo(folder)
    assert taken == []


def test_a_link_of_an_unknown_kind_is_refused(folder: Path, private: Path) -> None:
    """A user-defined link: h5py itself cannot make one, so the type of an external one is changed
    in the file."""
    with h5py.File(folder / WEIGHTS_FILE, "w", libver="latest") as file:
        file["char_embed"] = h5py.ExternalLink(str(private / "secret.hdf5"), "plain")
    content = bytearray((folder / WEIGHTS_FILE).read_bytes())
    # A link message: version 1, flags with "has a type", type 64 (external).
    at = content.index(b"char_embed") - 2
    assert content[at] == 64
    content[at] = 65
    (folder / WEIGHTS_FILE).write_bytes(content)
    with pytest.raises(ElmanError):
        read_elmo(folder)


TYPES = {
    "integers": np.zeros(SIZE, np.int32),
    "bytes": np.zeros(SIZE, "S4"),
    "complex": np.zeros(SIZE, np.complex64),
    "compound": np.zeros(SIZE, [("a", np.float32), ("b", np.int32)]),
    "long doubles": np.zeros(SIZE, np.longdouble),
    "booleans": np.zeros(SIZE, bool),
    "text": np.array(["x"] * SIZE, h5py.string_dtype()),
}


@pytest.mark.parametrize("values", TYPES.values(), ids=TYPES)
def test_other_types_are_refused(folder: Path, values: Any) -> None:
    with h5py.File(folder / WEIGHTS_FILE, "a") as file:
        del file[BIAS]
        file[BIAS] = values
    with pytest.raises(ElmanError, match="has the type"):
        read_elmo(folder)


@pytest.mark.parametrize("kind", ["reference", "region", "vlen", "enum", "array", "no shape"])
def test_types_without_numbers_are_refused(folder: Path, kind: str) -> None:
    types = {
        "reference": h5py.ref_dtype,
        "region": h5py.regionref_dtype,
        "vlen": h5py.vlen_dtype(np.float32),
        "enum": h5py.enum_dtype({"a": 0}),
        "array": np.dtype((np.float32, (3,))),
    }
    with h5py.File(folder / WEIGHTS_FILE, "a") as file:
        del file[BIAS]
        if kind == "no shape":
            file[BIAS] = h5py.Empty("float32")
        else:
            file.create_dataset(BIAS, (SIZE,), types[kind])
    with pytest.raises(ElmanError, match=f"LSTMCell/B in .*{WEIGHTS_FILE} has the "):
        read_elmo(folder)


@pytest.mark.parametrize("place", [BIAS, CELL, "RNN_0"])
def test_something_else_in_the_place_of_an_array_is_refused(folder: Path, place: str) -> None:
    with h5py.File(folder / WEIGHTS_FILE, "a") as file:
        del file[place]
        file[place] = np.dtype("float32") if place == CELL else np.zeros(3, np.float32)
    with pytest.raises(ElmanError, match=r"LSTMCell/\w+"):
        read_elmo(folder)
    with h5py.File(folder / WEIGHTS_FILE, "a") as file:
        del file[place]
        file.create_group(place)
    with pytest.raises(ElmanError, match=r"is not an array|has no"):
        read_elmo(folder)


def test_big_endian_and_double_numbers_are_read(folder: Path) -> None:
    expected = read_elmo(folder).state_dict()
    with h5py.File(folder / WEIGHTS_FILE, "a") as file:
        for name, dtype in ((BIAS, ">f4"), ("char_embed", "f8"), (f"{CELL}/W_P_0", "f2")):
            values = file[name][()].astype(dtype)
            del file[name]
            file.create_dataset(name, data=values, compression="gzip")
    for name, tensor in read_elmo(folder).state_dict().items():
        torch.testing.assert_close(tensor, expected[name], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_named(folder: Path, value: float) -> None:
    with h5py.File(folder / WEIGHTS_FILE, "a") as file:
        file["CNN/b_cnn_1"][1] = value
    with pytest.raises(ElmanError, match=r"CNN/b_cnn_1 .* infinite or NaN"):
        read_elmo(folder)


def test_names_and_shapes_are_those_of_a_model() -> None:
    found = {name: tuple(array.shape) for name, array in files._arrays(CONFIG.build()).items()}
    assert dict(files._shapes(CONFIG)) == found


def changed(folder: Path, group: str, key: str, value: object) -> None:
    options = json.loads((folder / OPTIONS_FILE).read_text())
    options[group][key] = value
    (folder / OPTIONS_FILE).write_text(json.dumps(options))


def test_arrays_without_numbers_take_no_memory(folder: Path) -> None:
    """Options and a file of a few kilobytes that agree on 10 GB of weights."""
    hidden = 80_000_000
    changed(folder, "lstm", "dim", hidden)
    with h5py.File(folder / WEIGHTS_FILE, "a") as file:
        for direction in range(2):
            for level in range(2):
                cell = file[files._cell_name(direction, level)]
                for name, shape in (("W_0", (8, 4 * hidden)), ("B", (4 * hidden,))):
                    del cell[name]
                    cell.create_dataset(name, shape, "float32", chunks=True)
                del cell["W_P_0"]
                cell.create_dataset("W_P_0", (hidden, 4), "float32", chunks=True)
    with pytest.raises(ElmanError, match="is too small for the weights"):
        read_elmo(folder)


def test_one_array_under_many_names_takes_no_memory(folder: Path) -> None:
    changed(folder, "lstm", "n_layers", 400)
    with h5py.File(folder / WEIGHTS_FILE, "a") as file:
        for direction in range(2):
            cells = file[f"RNN_{direction}/RNN/MultiRNNCell"]
            for level in range(2, 400):
                cells[f"Cell{level}"] = cells["Cell0"]
    with pytest.raises(ElmanError, match="is too small for the weights"):
        read_elmo(folder)


@pytest.mark.parametrize(
    ("group", "key", "value"),
    [
        ("lstm", "n_layers", 10**9),
        ("lstm", "n_layers", 10**4000),
        ("lstm", "n_layers", 0),
        ("lstm", "dim", 10**9),
        ("lstm", "dim", -6),
        ("lstm", "projection_dim", 10**9),
        ("lstm", "cell_clip", float("nan")),
        ("lstm", "proj_clip", float("inf")),
        ("char_cnn", "filters", [[1, "4"]]),
        ("char_cnn", "filters", [[1, 4.5]]),
        ("char_cnn", "filters", [[1, True]]),
        ("char_cnn", "filters", [[n, 1] for n in range(1, 100_000)]),
        ("char_cnn", "filters", [[1, 2], [2, 10**9]]),
        ("char_cnn", "filters", [[]] * 100_000),
        ("char_cnn", "filters", []),
        ("char_cnn", "activation", "x" * 100_000),
        ("char_cnn", "n_highway", 10**9),
        ("char_cnn", "max_characters_per_token", 10**9),
        ("char_cnn", "max_characters_per_token", -1),
        ("char_cnn", "embedding", [[[[[[[[]]]]]]]]),
    ],
)
def test_options_without_sense_are_one_short_sentence(
    folder: Path, group: str, key: str, value: object
) -> None:
    changed(folder, group, key, value)
    with pytest.raises(ElmanError) as caught:
        read_elmo(folder)
    assert len(caught.value.message) < 400
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("content", ["[" * 200_000, '{"lstm":' * 100_000, "[]", "1", ""])
def test_options_of_another_shape_are_refused(folder: Path, content: str) -> None:
    (folder / OPTIONS_FILE).write_text(content)
    with pytest.raises(ElmanError):
        read_elmo(folder)


def test_every_damaged_byte_is_a_sentence_or_a_model(folder: Path) -> None:
    """Forty bytes are changed in turn: whatever h5py raises becomes a sentence."""
    weights = (folder / WEIGHTS_FILE).read_bytes()
    for place in range(0, len(weights), len(weights) // 40):
        damaged = bytearray(weights)
        damaged[place] ^= 0xFF
        (folder / WEIGHTS_FILE).write_bytes(damaged)
        with suppress(ElmanError):
            read_elmo(folder)
    for content in (b"", b"\x89HDF\r\n\x1a\n", b"text", struct.pack("<Q", 7) * 100):
        (folder / WEIGHTS_FILE).write_bytes(content)
        with pytest.raises(ElmanError, match="damaged"):
            read_elmo(folder)
