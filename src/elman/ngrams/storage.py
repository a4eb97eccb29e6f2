"""Save and open n-gram models as files of arrays (`mapped`).

`load` opens a model in the plain layout, `open_model` in any.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elman.base.tensor_files import BLOCK_SIZE, FillRows, open_tensors, write_rows
from elman.ngrams.backoff import (
    FIRST_CHILD,
    LEAF_LOGPROB,
    LOGPROB,
    BackoffModel,
    level_starts,
    rows_of,
)
from elman.ngrams.compact import is_compact, load_compact
from elman.ngrams.interpolation import Estimate
from elman.ngrams.mapped import ArrayFile, Floats, damaged
from elman.ngrams.model import NgramModel
from elman.ngrams.scratch import Scratch
from elman.ngrams.trie import MEMORY, Array, CountTrie, Room

MODEL_FILE = "ngram.safetensors"
FORMAT = 1
_PIECE_SIZE = 1 << 20
"""Bytes that a thread makes and writes at a time: they stay in its cache."""
_ARRAYS = dict.fromkeys(("contexts", "leaves", "words"), "I32")
_FLOATS = {
    "contexts": Floats(width=4, start=LOGPROB),
    "leaves": Floats(width=2, start=LEAF_LOGPROB),
}


def save_estimate(
    path: Path,
    trie: CountTrie,
    estimate: Estimate,
    about: dict[str, Any],
    extra: dict[str, Any] | None = None,
    num_threads: int | None = None,
) -> None:
    """Write the model of a smoothed trie without holding it in memory twice."""
    header = {"level_starts": level_starts(trie), "boundary_id": trie.boundary_id, "about": about}
    rows = {name: rows_of(trie, estimate, name) for name in _ARRAYS}
    _write(path, header | (extra or {}), rows, trie.room, num_threads)


def save(path: Path, model: BackoffModel, extra: dict[str, Any] | None = None) -> None:
    """Write a model; `extra` goes into its header."""
    header = {name: getattr(model, name) for name in ("level_starts", "boundary_id", "about")}
    _write(path, header | (extra or {}), {name: _copied(getattr(model, name)) for name in _ARRAYS})


def load(path: Path, room: Room = MEMORY) -> tuple[BackoffModel, dict[str, Any]]:
    """Open a model; also return its whole header. With a `Scratch`, keep to its limit of memory."""
    file = ArrayFile(path, _ARRAYS, FORMAT, _FLOATS, small=_small(room))
    if isinstance(room, Scratch) and file.mapping is not None:
        room.watch(file.mapping)
    header = file.header
    model = BackoffModel(
        **file.arrays,
        level_starts=header.get("level_starts", []),
        boundary_id=header.get("boundary_id", -1),
        about=header.get("about", {}),
        file=file,
        room=room,
    )
    if not _consistent(model):
        raise damaged(path, "its arrays do not belong together")
    return model, header


def open_model(path: Path, room: Room = MEMORY) -> tuple[NgramModel, dict[str, Any]]:
    """Open a model in whichever layout it has; otherwise like `load`."""
    with open_tensors(path) as file:
        header = file.header
    if not is_compact(header):
        return load(path, room)
    return load_compact(path, room, small=_small(room)), header


def _small(room: Room) -> int | None:
    """Return the largest size of a file to read into memory: none where memory is limited."""
    return 0 if isinstance(room, Scratch) and room.limit is not None else None


def _write(
    path: Path,
    header: dict[str, Any],
    rows: Mapping[str, FillRows],
    room: Room = MEMORY,
    num_threads: int | None = None,
) -> None:
    starts = header["level_starts"]
    num_ngrams, num_contexts = starts[-1], starts[-2]
    shapes = {
        "contexts": [num_contexts + 1, 4],
        "leaves": [num_ngrams - num_contexts, 2],
        "words": [num_ngrams],
    }
    # Each thread has twice this.
    piece_size = _PIECE_SIZE if _small(room) is None else BLOCK_SIZE
    write_rows(
        path,
        {"format": FORMAT, **header},
        {name: ("I32", shape, rows[name]) for name, shape in shapes.items()},
        num_threads=num_threads,
        piece_size=piece_size,
    )


def _copied(array: Array) -> FillRows:
    def fill(first: int, end: int, rows: Array) -> None:
        rows[:] = array[first:end]

    return fill


def _consistent(model: BackoffModel) -> bool:
    """Check shapes and ends only; walks check the entries that they visit."""
    starts = model.level_starts
    return (
        isinstance(starts, list)
        and all(type(number) is int for number in [*starts, model.boundary_id])
        and isinstance(model.about, dict)
        and {"normalised", "notes"} <= set(model.about)
        and len(starts) >= 2
        and starts[0] == 0
        and starts == sorted(starts)
        and model.words.shape == (starts[-1],)
        and model.contexts.shape == (starts[-2] + 1, 4)
        and model.leaves.shape == (starts[-1] - starts[-2], 2)
        and 0 <= model.boundary_id < model.vocab_size
        and _ends(model) == [starts[1], starts[-1]]
    )


def _ends(model: BackoffModel) -> list[int]:
    """Return the first and the last entry of the continuations of all contexts."""
    if model.file is not None:
        model.file.verify("contexts", slice(0, 1))
        model.file.verify("contexts", slice(-1, None))
    return [int(model.contexts[row, FIRST_CHILD]) for row in (0, -1)]
