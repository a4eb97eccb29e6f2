"""Kernels: ways to carry a cell along time, and the one place that chooses among them.

A kernel is a module with three functions:

    serves(cell, device) -> bool                       whether it computes this cell on this device
    run(cell, inputs_BTI, state, lengths_B, recurrent_weight) -> (outputs_BTP, State)
    step(cell, inputs_BI, state) -> (output_BP, State)      one step, for decoding

`run` starts from `state`, is blind to what lies beyond `lengths_B` (None: everything is real),
gives zeros there, and returns the state after each row's last real step. `recurrent_weight` is the
matrix U to use: the cell's own, or one that weight drop has thinned. A kernel that runs the two
directions of a bidirectional layer at once has `run_directions`, which takes lists of all but the
lengths.
"""

from __future__ import annotations

from types import ModuleType

import torch

from elman.base.errors import UsageError, nearest
from elman.nn.cells import Cell
from elman.nn.kernels import cpu, persistent, reference, scan, torch_rnn

KERNELS: dict[str, ModuleType] = {
    "scan": scan,
    "cpu": cpu,
    "triton": persistent,
    "torch": torch_rnn,
    "reference": reference,
}
"""Every kernel, the fastest first."""


def choose(cell: Cell, device: torch.device, name: str = "auto") -> str:
    """The kernel that will run `cell` on `device`: the one named, or the fastest that serves."""
    if name == "auto":
        return next(name for name, kernel in KERNELS.items() if kernel.serves(cell, device))
    if name not in KERNELS:
        raise UsageError(f"there is no kernel called '{name}'", nearest(name, ["auto", *KERNELS]))
    if not KERNELS[name].serves(cell, device):
        raise UsageError(
            f"the kernel '{name}' does not serve this {type(cell).__name__} on {device.type}",
            "set kernel to auto",
        )
    return name
