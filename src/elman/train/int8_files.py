"""Model files with one byte a weight: the matrices as integers, with a scale for each row.

`pack` rounds each row of a matrix to multiples, -127 to 127, of its largest entry / 127, as
`nn/quantise.py` does in memory. Vectors and buffers stay as they are. `unpack` restores float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from elman.base.tensor_files import Entry

SCALE = ":scale"
"""Suffix of the name of a matrix's scales."""
HEADER = {"weights": "int8"}


def is_packed(header: Mapping[str, Any]) -> bool:
    return header.get("weights") == "int8"


def pack(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    packed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.ndim != 2 or tensor.dtype != torch.float32 or not tensor.numel():
            packed[name] = tensor
            continue
        scales = (tensor.abs().amax(dim=1) / 127).clamp(min=torch.finfo(torch.float32).tiny)
        packed[name] = (tensor / scales.unsqueeze(1)).round_().to(torch.int8)
        packed[name + SCALE] = scales
    return packed


def unpack(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: tensor.float() * tensors[name + SCALE].unsqueeze(1)
        if name + SCALE in tensors
        else tensor
        for name, tensor in tensors.items()
        if not name.endswith(SCALE)
    }


def unpacked_table(table: Mapping[str, Entry]) -> dict[str, Entry]:
    """The table of a file as if its weights were float32."""
    return {
        name: replace(entry, dtype="F32", end=entry.start + 4 * entry.num_bytes)
        if name + SCALE in table
        else entry
        for name, entry in table.items()
        if not name.endswith(SCALE)
    }
