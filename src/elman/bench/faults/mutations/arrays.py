"""Damage to word vectors, HDF5 files and pictures."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

from elman.bench.faults.mutations.any_bytes import DIGITS, Mutation


def word2vec_header(random: Random, data: bytes) -> bytes:
    count, size = map(int, data.split(b"\n", 1)[0].split())
    odd = (0, 1, -1, 2**31, 2**62, "9" * DIGITS, "x", 10**9, count + 1, size + 1)
    pair = (random.choice(odd), size) if random.random() < 0.5 else (count, random.choice(odd))
    return f"{pair[0]} {pair[1]}\n".encode() + data.split(b"\n", 1)[1]


def word2vec_long_word(random: Random, data: bytes) -> bytes:
    head, rest = data.split(b"\n", 1)
    return head + b"\n" + b"x" * 200_000 + rest


def on_hdf5(change: Callable[[Random, Any, str], None]) -> Mutation:
    """Change a file by means of h5py; `change` gets the file and the path of a data set."""

    def mutate(random: Random, data: bytes) -> bytes:
        import h5py

        buffer = io.BytesIO(data)
        with h5py.File(buffer, "r+") as file:
            names: list[str] = []
            file.visititems(
                lambda name, item: names.append(name) if hasattr(item, "dtype") else None
            )
            change(random, file, random.choice(names))
        return buffer.getvalue()

    return mutate


def _hdf5_drop(random: Random, file: Any, name: str) -> None:
    del file[name if random.random() < 0.5 else name.split("/")[0]]


def _hdf5_type(random: Random, file: Any, name: str) -> None:
    shape = file[name].shape
    del file[name]
    dtype = random.choice(("S3", "i4", "f8", "f2", "u1", "c8", [("a", "f4"), ("b", "i2")], "?"))
    file.create_dataset(name, shape, dtype)


def _hdf5_objects(random: Random, file: Any, name: str) -> None:
    import h5py

    shape = file[name].shape
    del file[name]
    dtype = random.choice((h5py.string_dtype(), h5py.ref_dtype, h5py.vlen_dtype("f4")))
    file.create_dataset(name, shape, dtype)


def _hdf5_shape(random: Random, file: Any, name: str) -> None:
    shape = file[name].shape
    del file[name]
    wrong = random.choice(
        (
            *((), (0,), (1,), shape[::-1], (*shape, 1), tuple(size + 1 for size in shape)),
            *((1 << 40,), (1 << 20, 1 << 20)),
        )
    )
    chunks = tuple(min(size, 64) for size in wrong) if wrong and min(wrong) > 0 else None
    file.create_dataset(name, wrong, "f4", chunks=chunks)


def _hdf5_group(random: Random, file: Any, name: str) -> None:
    del file[name]
    file.create_group(name)


def _hdf5_link(random: Random, file: Any, name: str) -> None:
    import h5py

    target = name if random.random() < 0.5 else name.split("/")[0]
    del file[target]
    file[target] = random.choice(
        (
            *(h5py.SoftLink("/" + name), h5py.SoftLink("/nowhere"), h5py.SoftLink("/")),
            *(h5py.ExternalLink("../some.txt", "/"), h5py.ExternalLink("other.h5", "/" + name)),
        )
    )


def _hdf5_external(random: Random, file: Any, name: str) -> None:
    shape = file[name].shape
    del file[name]
    outside = random.choice(("/etc/passwd", "some.txt", "../some.txt"))
    file.create_dataset(name, shape, "f4", external=[(outside, 0, 4 << 20)])


def _hdf5_virtual(random: Random, file: Any, name: str) -> None:
    import h5py

    shape = file[name].shape
    del file[name]
    layout = h5py.VirtualLayout(shape, "f4")
    layout[...] = h5py.VirtualSource("other.h5", "x", shape)
    file.create_virtual_dataset(name, layout)


def _hdf5_not_finite(random: Random, file: Any, name: str) -> None:
    file[name][...] = random.choice((float("nan"), float("inf")))


def _hdf5_compressed(random: Random, file: Any, name: str) -> None:
    shape = file[name].shape
    del file[name]
    file.create_dataset(name, shape, "f4", compression="gzip", chunks=True)


HDF5: dict[str, Mutation] = {
    "hdf5-drop": on_hdf5(_hdf5_drop),
    "hdf5-type": on_hdf5(_hdf5_type),
    "hdf5-objects": on_hdf5(_hdf5_objects),
    "hdf5-shape": on_hdf5(_hdf5_shape),
    "hdf5-shape-2": on_hdf5(_hdf5_shape),
    "hdf5-group": on_hdf5(_hdf5_group),
    "hdf5-link": on_hdf5(_hdf5_link),
    "hdf5-link-2": on_hdf5(_hdf5_link),
    "hdf5-external": on_hdf5(_hdf5_external),
    "hdf5-virtual": on_hdf5(_hdf5_virtual),
    "hdf5-not-finite": on_hdf5(_hdf5_not_finite),
    "hdf5-compressed": on_hdf5(_hdf5_compressed),
}


def huge_picture(random: Random, data: bytes) -> bytes:
    """A small file that says it has billions of pixels."""
    width, height = random.choice(
        ((60_000, 60_000), (2**31 - 1, 1), (1, 2**31 - 1), (100_000, 9_000))
    )
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = b"IDAT" + zlib.compress(bytes(100_000))
    chunks = (header, body, b"IEND")
    packed = [struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def svg_picture(random: Random, data: bytes) -> bytes:
    return random.choice(
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"%PDF-1.4\n")
    )


PICTURE: dict[str, Mutation] = {"huge": huge_picture, "huge-2": huge_picture, "vector": svg_picture}
