"""A model as a memory-mapped file: it opens in milliseconds whatever its size.

The file is in the safetensors format: a header in JSON, then the arrays of `BackoffModel` as they
lie in memory. Nothing in it executes, and any reader of safetensors can open it. The header's
metadata has one entry, `elman`, with what is not an array.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.base.errors import ElmanError
from elman.base.files import explain, replacing
from elman.ngrams.backoff import ARRAYS, BackoffModel, level_starts, parts
from elman.ngrams.interpolation import Estimate
from elman.ngrams.trie import CountTrie

FORMAT = 1
_TYPES: dict[str, np.dtype[Any]] = {
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
    "F32": np.dtype("<f4"),
}
_LARGEST_HEADER = 1 << 24


def save_estimate(
    path: Path,
    trie: CountTrie,
    estimate: Estimate,
    about: dict[str, Any],
    extra: dict[str, Any] | None = None,
) -> None:
    """Write a smoothed trie as a model, without holding it in memory twice."""
    header = {"level_starts": level_starts(trie), "boundary_id": trie.boundary_id, "about": about}
    _write(path, header | (extra or {}), lambda name: parts(trie, estimate, name))


def save(path: Path, model: BackoffModel, extra: dict[str, Any] | None = None) -> None:
    """Write a model; `extra` goes into its header."""
    header = {
        "level_starts": model.level_starts,
        "boundary_id": model.boundary_id,
        "about": model.about,
    }
    _write(path, header | (extra or {}), lambda name: [getattr(model, name)])


def load(path: Path) -> tuple[BackoffModel, dict[str, Any]]:
    """Open a model, and the whole of its header; the arrays stay on disk until they are read."""
    try:
        with path.open("rb") as handle:
            # A private mapping: compiled loops are made for arrays that may be written to.
            data = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError):
            raise explain(error, path) from error
        raise _damaged(path, "it is empty") from error
    try:
        size = int.from_bytes(data[:8], "little")
        if not 0 < size <= min(_LARGEST_HEADER, len(data) - 8):
            raise ValueError("its header is cut off")
        tensors = json.loads(data[8 : 8 + size])
        header = json.loads(tensors["__metadata__"]["elman"])
        arrays = {name: _array(data, 8 + size, tensors[name]) for name in ARRAYS}
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path, str(error)) from error
    if header.get("format") != FORMAT:
        raise ElmanError(
            f"{path} has format {header.get('format')}, and this version reads {FORMAT}",
            "upgrade elman, or train the model again",
        )
    model = BackoffModel(
        **arrays,
        level_starts=header["level_starts"],
        boundary_id=header["boundary_id"],
        about=header["about"],
    )
    if not _consistent(model):
        raise _damaged(path, "its arrays do not belong together")
    return model, header


def _write(
    path: Path, header: dict[str, Any], arrays: Callable[[str], Iterable[NDArray[Any]]]
) -> None:
    starts = header["level_starts"]
    num_ngrams, num_contexts = starts[-1], starts[-2]
    shapes = dict.fromkeys(ARRAYS, num_ngrams)
    shapes |= {"first_child": num_contexts + 1, "backoff": num_contexts}
    index = "I32" if num_ngrams < 2**31 else "I64"
    types = dict.fromkeys(ARRAYS, "F32") | {"first_child": index, "suffix": index, "words": "I32"}
    tensors: dict[str, Any] = {
        "__metadata__": {"elman": json.dumps({"format": FORMAT, **header}, ensure_ascii=False)}
    }
    offset = 0
    for name in ARRAYS:
        end = offset + shapes[name] * _TYPES[types[name]].itemsize
        tensors[name] = {
            "dtype": types[name],
            "shape": [shapes[name]],
            "data_offsets": [offset, end],
        }
        offset = end
    encoded = json.dumps(tensors, ensure_ascii=False).encode()
    encoded += b" " * (-len(encoded) % 8)
    with replacing(path) as temporary, temporary.open("wb") as output:
        output.write(len(encoded).to_bytes(8, "little") + encoded)
        for name in ARRAYS:
            for part in arrays(name):
                output.write(np.ascontiguousarray(part, _TYPES[types[name]]).data)


def _array(data: mmap.mmap, base: int, entry: dict[str, Any]) -> NDArray[Any]:
    dtype = _TYPES[entry["dtype"]]
    (length,) = entry["shape"]
    start, end = entry["data_offsets"]
    if end - start != length * dtype.itemsize or base + end > len(data):
        raise ValueError("it is cut off")
    return np.frombuffer(data, dtype, length, base + start)


def _consistent(model: BackoffModel) -> bool:
    """What can be seen at a glance; all else would have to be read."""
    starts = model.level_starts
    return (
        len(starts) >= 2
        and starts[0] == 0
        and starts == sorted(starts)
        and len(model.words) == len(model.suffix) == len(model.logprob) == starts[-1]
        and len(model.backoff) == len(model.first_child) - 1 == starts[-2]
        and 0 <= model.boundary_id < model.vocab_size
        and int(model.first_child[0]) == starts[1]
        and int(model.first_child[-1]) == starts[-1]
    )


def _damaged(path: Path, detail: str) -> ElmanError:
    return ElmanError(
        f"{path} is not an n-gram model, or is damaged: {detail}",
        "restore the file from a copy, or train the model again",
    )
