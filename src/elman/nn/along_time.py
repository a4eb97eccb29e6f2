"""A step carried along time, for models that compute one by hand, such as the sums of a CRF.

Recording an ONNX graph replaces the loop by one node of the graph (`nn/onnx/tracing.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar

import torch
from torch import Tensor

Step = Callable[[list[Tensor], list[Tensor]], tuple[list[Tensor], list[Tensor]]]
"""A function (carried, rows of this step) -> (carried, outputs of this step)."""
Carry = Callable[[Step, Sequence[Tensor], Sequence[Tensor]], tuple[list[Tensor], list[Tensor]]]


def carry_along(
    step: Step, carried: Sequence[Tensor], scanned: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Call `step` for each row of `scanned`, whose first axis is time; return what is carried at
    the end, and the outputs of all steps, time first.
    """
    return LOOP.get()(step, carried, scanned)


def loop(
    step: Step, carried: Sequence[Tensor], scanned: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    state, found = list(carried), []
    for rows in zip(*scanned, strict=True):
        state, outputs = step(state, list(rows))
        found.append(outputs)
    if not found:  # no step: a step on zeros has the outputs' shapes
        _, shapes = step(state, [rows.new_zeros(rows.shape[1:]) for rows in scanned])
        return state, [output.new_empty(0, *output.shape) for output in shapes]
    return state, [torch.stack(column) for column in zip(*found, strict=True)]


LOOP: ContextVar[Carry] = ContextVar("LOOP", default=loop)
