"""Memory-mapped files of arrays: a model opens in milliseconds whatever its size.

The format is safetensors: a JSON header, then the raw arrays. Opening one executes no code, and any
safetensors reader can open it. Everything that is not an array is JSON in the metadata entry
`elman`.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.base.errors import ElmanError
from elman.base.files import explained, replacing

_TYPES = {"I32": "<i4", "I64": "<i8", "U64": "<u8", "F32": "<f4"}
_LARGEST_HEADER = 1 << 24


def write_arrays(
    path: Path,
    header: Mapping[str, Any],
    arrays: Mapping[str, tuple[str, Sequence[int], Iterable[NDArray[Any]]]],
) -> None:
    """Write arrays, each given as type (I32, F32, ...), shape and consecutive parts."""
    tensors: dict[str, Any] = {"__metadata__": {"elman": json.dumps(header, ensure_ascii=False)}}
    offset = 0
    for name, (kind, shape, _) in arrays.items():
        end = offset + math.prod(shape) * np.dtype(_TYPES[kind]).itemsize
        tensors[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(tensors, ensure_ascii=False).encode()
    # Align the arrays, so that short rows do not straddle two cache lines.
    encoded += b" " * (-(8 + len(encoded)) % 64)
    with replacing(path) as temporary, temporary.open("wb") as output:
        output.write(len(encoded).to_bytes(8, "little") + encoded)
        for kind, _, parts in arrays.values():
            for part in parts:
                output.write(np.ascontiguousarray(part, _TYPES[kind]).data)


def map_arrays(
    path: Path, wanted: Mapping[str, str], number: int
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Map the arrays of the wanted names and types; also return the header.

    The header's `format` must be `number`.
    """
    try:
        with explained(path), path.open("rb") as handle:
            if not path.stat().st_size:
                raise ValueError("it is empty")
            # Copy-on-write: the compiled loops take writable arrays.
            data = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_COPY)
        size = int.from_bytes(data[:8], "little")
        if not 0 < size <= min(_LARGEST_HEADER, len(data) - 8):
            raise ValueError("its header is cut off")
        tensors = json.loads(data[8 : 8 + size])
        header = dict(json.loads(tensors["__metadata__"]["elman"]))
        arrays = {
            name: _array(data, 8 + size, tensors[name], kind) for name, kind in wanted.items()
        }
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(path, str(error)) from error
    if header.get("format") != number:
        raise ElmanError(
            f"{path} has format {header.get('format')}; this version reads {number}",
            "upgrade elman, or train the model again",
        )
    return arrays, header


def damaged(path: Path, detail: str) -> ElmanError:
    return ElmanError(
        f"{path} is not an n-gram model, or is damaged: {detail}",
        "restore the file from a copy, or train the model again",
    )


def _array(data: mmap.mmap, base: int, entry: dict[str, Any], kind: str) -> NDArray[Any]:
    if entry["dtype"] != kind:
        raise ValueError(f"an array has type {entry['dtype']}, not {kind}")
    start, end = entry["data_offsets"]
    size = math.prod(entry["shape"])
    if end - start != size * np.dtype(_TYPES[kind]).itemsize or base + end > len(data):
        raise ValueError("it is cut off")
    return np.frombuffer(data, _TYPES[kind], size, base + start).reshape(entry["shape"])
