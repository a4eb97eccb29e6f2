"""Memory-mapped files of arrays (`base.tensor_files`): a model opens in milliseconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from elman.base import tensor_files
from elman.base.errors import ElmanError


def write_arrays(
    path: Path,
    header: Mapping[str, Any],
    arrays: Mapping[str, tuple[str, Sequence[int], Iterable[NDArray[Any]]]],
) -> None:
    """Write arrays, each given as type (I32, F32, ...), shape and consecutive parts."""
    tensor_files.write(path, header, arrays, mapped=True)


def map_arrays(
    path: Path, wanted: Mapping[str, str], number: int
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Map the arrays of the wanted names and types; also return the header.

    The header's `format` must be `number`.
    """
    mapped = tensor_files.map_tensors(path)
    arrays, header = mapped.arrays, mapped.header
    for name, kind in wanted.items():
        if name not in arrays or arrays[name].dtype != tensor_files.NUMPY_TYPES[kind]:
            raise damaged(path, f"{name!r} is missing or has another type")
    if header.get("format") != number:
        raise ElmanError(
            f"{path} has format {header.get('format')}; this version reads {number}",
            "upgrade elman, or train the model again",
        )
    return {name: arrays[name] for name in wanted}, header


def damaged(path: Path, detail: str) -> ElmanError:
    return ElmanError(
        f"{path} is not an n-gram model, or is damaged: {detail}",
        "restore the file from a copy, or train the model again",
    )
