"""The loops over time (`cpu_loops.py`, `cpu_gru_loops.py`) as tasks for a team (`team.py`).

Each thread takes the rows of some parts of the batch through all steps. A packed matrix comes
twice, for parts of the smaller and of the larger number of rows (`mkl.py`).
"""

from __future__ import annotations

import numpy as np

from elman.nn.kernels import cpu_gru_loops as gru_loops
from elman.nn.kernels import cpu_loops as loops
from elman.nn.kernels.loops import inlined
from elman.nn.kernels.mkl import (
    NO_TRANSPOSE,
    PACK_B,
    ROW_MAJOR,
    TRANSPOSE,
    set_threads,
    sgemm_pack,
)
from elman.nn.kernels.team import (
    Array,
    Given,
    Task,
    doubles,
    edge,
    floats,
    numbers,
    team_size,
    thread_number,
    wholes,
)


@inlined
def packed(given: Given, index: int, part: int) -> Array:
    """The matrix at `index` and the next, as it was packed for the rows of this part."""
    rows = edge(given, part + 1) - edge(given, part)
    smaller = rows == numbers(given)[1] // numbers(given)[0]
    return floats(given, index if smaller else index + 1)


@Task
def pack(given: Given) -> None:
    """One matrix per part, by a list of seven numbers each: whether to transpose it, the rows it
    will be multiplied with, its columns and rows as packed, address, row length, where to.
    """
    orders = wholes(given, 1)
    set_threads(1)  # as the products will be computed
    for part in range(thread_number(), numbers(given)[0], team_size()):
        transposed, rows, outer, inner, source, stride, target = orders[7 * part : 7 * part + 7]
        side = TRANSPOSE if transposed else NO_TRANSPOSE
        sgemm_pack(
            ROW_MAJOR, PACK_B, side, rows, outer, inner, np.float32(1.0), source, stride, target
        )
    set_threads(0)


@Task
def lstm_forward(given: Given) -> None:
    """Lengths, x, W, U, bias, gates, h, c."""
    for part in range(thread_number(), numbers(given)[0], team_size()):
        loops.lstm_forward(
            wholes(given, 1),
            floats(given, 2),
            packed(given, 3, part),
            packed(given, 5, part),
            floats(given, 7),
            floats(given, 8),
            floats(given, 9),
            floats(given, 10),
            edge(given, part),
            edge(given, part + 1),
        )


@Task
def lstm_backward(given: Given) -> None:
    """Lengths, W, U, gates, x, h, c, and the gradients of outputs and gates, what entered, and the
    gradients of the matrices (by part), h, c, bias (by part), x.
    """
    for part in range(thread_number(), numbers(given)[0], team_size()):
        loops.lstm_backward(
            wholes(given, 1),
            packed(given, 2, part),
            packed(given, 4, part),
            floats(given, 6),
            floats(given, 7),
            floats(given, 8),
            floats(given, 9),
            floats(given, 10),
            floats(given, 11),
            floats(given, 12),
            floats(given, 13)[part],
            floats(given, 14),
            floats(given, 15),
            doubles(given, 16)[part],
            floats(given, 17),
            edge(given, part),
            edge(given, part + 1),
        )


@Task
def lstm_forward_by_units(given: Given) -> None:
    """Lengths, addresses of U, edges, bias, gates, h, c."""
    loops.lstm_forward_by_units(
        wholes(given, 1),
        wholes(given, 2),
        wholes(given, 3),
        floats(given, 4)[0, 0],
        floats(given, 5),
        floats(given, 6),
        floats(given, 7),
    )


@Task
def lstm_backward_by_units(given: Given) -> None:
    """Lengths, addresses of U, edges, gates, c, and the gradients of outputs, gates, h, c, bias."""
    loops.lstm_backward_by_units(
        wholes(given, 1),
        wholes(given, 2),
        wholes(given, 3),
        floats(given, 4),
        floats(given, 5),
        floats(given, 6),
        floats(given, 7),
        floats(given, 8),
        floats(given, 9),
        doubles(given, 10)[0],
    )


@Task
def gru_after_forward(given: Given) -> None:
    """Gates, U, inner bias, h, inner, scratch, lengths."""
    for part in range(thread_number(), numbers(given)[0], team_size()):
        gru_loops.gru_after_forward(
            wholes(given, 1),
            floats(given, 2),
            packed(given, 3, part),
            floats(given, 5)[0, 0],
            floats(given, 6),
            floats(given, 7),
            floats(given, 8),
            edge(given, part),
            edge(given, part + 1),
        )


@Task
def gru_after_backward(given: Given) -> None:
    """Gates, U, h, inner, and the gradients of outputs, gates, h."""
    for part in range(thread_number(), numbers(given)[0], team_size()):
        gru_loops.gru_after_backward(
            wholes(given, 1),
            floats(given, 2),
            packed(given, 3, part),
            floats(given, 5),
            floats(given, 6),
            floats(given, 7),
            floats(given, 8),
            floats(given, 9),
            edge(given, part),
            edge(given, part + 1),
        )


@Task
def gru_before_forward(given: Given) -> None:
    """Gates, U of r and u, U of n, h, reset."""
    for part in range(thread_number(), numbers(given)[0], team_size()):
        gru_loops.gru_before_forward(
            wholes(given, 1),
            floats(given, 2),
            packed(given, 3, part),
            packed(given, 5, part),
            floats(given, 7),
            floats(given, 8),
            edge(given, part),
            edge(given, part + 1),
        )


@Task
def gru_before_backward(given: Given) -> None:
    """Gates, U of r and u, U of n, h, and the gradients of outputs, gates, reset, h."""
    for part in range(thread_number(), numbers(given)[0], team_size()):
        gru_loops.gru_before_backward(
            wholes(given, 1),
            floats(given, 2),
            packed(given, 3, part),
            packed(given, 5, part),
            floats(given, 7),
            floats(given, 8),
            floats(given, 9),
            floats(given, 10),
            floats(given, 11),
            edge(given, part),
            edge(given, part + 1),
        )
