"""A model as a memory-mapped file: it opens in milliseconds whatever its size.

The file is in the safetensors format: a header in JSON, then the arrays of `BackoffModel` as they
lie in memory. Nothing in it executes, and any reader of safetensors can open it. The header's
metadata has one entry, `elman`, with what is not an array.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from elman.base.errors import ElmanError
from elman.base.files import explain, replacing
from elman.ngrams.backoff import BackoffModel, level_starts, parts
from elman.ngrams.interpolation import Estimate
from elman.ngrams.trie import Array, CountTrie

FORMAT = 1
_TYPE = np.dtype("<i4")
_ARRAYS = ("contexts", "leaves", "words")
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
        arrays = {name: _array(data, 8 + size, tensors[name]) for name in _ARRAYS}
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


def _write(path: Path, header: dict[str, Any], arrays: Callable[[str], Iterable[Array]]) -> None:
    starts = header["level_starts"]
    num_ngrams, num_contexts = starts[-1], starts[-2]
    shapes = {
        "contexts": [num_contexts + 1, 4],
        "leaves": [num_ngrams - num_contexts, 2],
        "words": [num_ngrams],
    }
    tensors: dict[str, Any] = {
        "__metadata__": {"elman": json.dumps({"format": FORMAT, **header}, ensure_ascii=False)}
    }
    offset = 0
    for name, shape in shapes.items():
        end = offset + math.prod(shape) * _TYPE.itemsize
        tensors[name] = {"dtype": "I32", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(tensors, ensure_ascii=False).encode()
    # Rows of contexts shall not straddle two lines of the processor's cache.
    encoded += b" " * (-(8 + len(encoded)) % 64)
    with replacing(path) as temporary, temporary.open("wb") as output:
        output.write(len(encoded).to_bytes(8, "little") + encoded)
        for name in shapes:
            for part in arrays(name):
                output.write(np.ascontiguousarray(part, _TYPE).data)


def _array(data: mmap.mmap, base: int, entry: dict[str, Any]) -> Array:
    if entry["dtype"] != "I32":
        raise ValueError(f"an array of {entry['dtype']}")
    start, end = entry["data_offsets"]
    size = math.prod(entry["shape"])
    if end - start != size * _TYPE.itemsize or base + end > len(data):
        raise ValueError("it is cut off")
    return np.frombuffer(data, _TYPE, size, base + start).reshape(entry["shape"])


def _consistent(model: BackoffModel) -> bool:
    """What can be seen at a glance; all else would have to be read."""
    starts = model.level_starts
    return (
        len(starts) >= 2
        and starts[0] == 0
        and starts == sorted(starts)
        and model.words.shape == (starts[-1],)
        and model.contexts.shape == (starts[-2] + 1, 4)
        and model.leaves.shape == (starts[-1] - starts[-2], 2)
        and 0 <= model.boundary_id < model.vocab_size
        and int(model.first_child[0]) == starts[1]
        and int(model.first_child[-1]) == starts[-1]
    )


def _damaged(path: Path, detail: str) -> ElmanError:
    return ElmanError(
        f"{path} is not an n-gram model, or is damaged: {detail}",
        "restore the file from a copy, or train the model again",
    )
