"""A cell of Elman by its settings, and what is planned for it."""

from __future__ import annotations

from typing import Any

import torch

from elman.nn.cells import Cell
from elman.nn.kernels import KernelLimits, KernelPlan, Purpose, plan
from elman.nn.stack import StackConfig, make_cell

CPU = torch.device("cpu")


def cell(**options: Any) -> Cell:
    return make_cell(StackConfig(**options), 64, options.get("hidden_size", 256))


def planned(cell: Cell, shape: tuple[int, int] = (32, 128), **options: Any) -> KernelPlan:
    given: dict[str, Any] = {
        "device": CPU,
        "dtype": cell.bias.dtype,
        "purpose": Purpose.TRAINING,
        "limits": KernelLimits(num_threads=2),
    }
    return plan(cell, shape=(*shape, cell.input_size), **given | options)
