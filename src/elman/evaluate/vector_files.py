"""Files of vectors, one array per sentence named "0", "1" and so on, written as they come.

    .npz           numpy: a zip of arrays
    .h5, .hdf5     HDF5, as written by ELMo's own program; needs h5py
    .safetensors   Hugging Face: a header, then the numbers

Memory does not grow with the file. A .safetensors header needs the shapes of all arrays before the
first number, so the numbers first go to a temporary file.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.base.errors import ElmanError, UsageError
from elman.base.files import replacing

Vectors = Iterator[NDArray[np.float32]]


def import_h5py() -> Any:
    try:
        import h5py
    except ImportError as error:
        raise ElmanError("HDF5 files need the h5py package", "pip install 'elman[elmo]'") from error
    return h5py


def check_suffix(path: Path) -> None:
    """Raise an error unless the suffix names a format that can be written here."""
    if path.suffix not in WRITERS:
        *others, last = WRITERS
        raise UsageError(
            f"cannot write vectors to {path}: unknown format",
            f"end the name in {', '.join(others)} or {last}",
        )
    if WRITERS[path.suffix] is _write_hdf5:
        import_h5py()


def write_vectors(path: Path, vectors: Vectors) -> int:
    """Write one array per sentence; return the number of sentences."""
    check_suffix(path)
    with replacing(path) as temporary:
        return WRITERS[path.suffix](temporary, vectors)


def _write_npz(path: Path, vectors: Vectors) -> int:
    from numpy.lib.format import write_array

    count = 0
    with zipfile.ZipFile(path, "w") as archive:
        for vector in vectors:
            with archive.open(f"{count}.npy", "w", force_zip64=True) as entry:
                write_array(entry, vector)
            count += 1
    return count


def _write_hdf5(path: Path, vectors: Vectors) -> int:
    count = 0
    with import_h5py().File(path, "w") as file:
        for vector in vectors:
            file.create_dataset(str(count), data=vector)
            count += 1
    return count


def _write_safetensors(path: Path, vectors: Vectors) -> int:
    header: dict[str, object] = {}
    position = 0
    with tempfile.TemporaryFile(dir=path.parent) as numbers:
        for vector in vectors:
            end = position + numbers.write(np.ascontiguousarray(vector, np.float32).tobytes())
            header[str(len(header))] = {
                "dtype": "F32",
                "shape": list(vector.shape),
                "data_offsets": [position, end],
            }
            position = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)  # align the numbers to eight bytes
        numbers.seek(0)
        with path.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            shutil.copyfileobj(numbers, file, 1 << 20)
    return len(header)


WRITERS: dict[str, Callable[[Path, Vectors], int]] = {
    ".npz": _write_npz,
    ".h5": _write_hdf5,
    ".hdf5": _write_hdf5,
    ".safetensors": _write_safetensors,
}
