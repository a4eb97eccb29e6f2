"""Exercises on gradients through time, LSTM and GRU (lecture 000)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elman.lab.exercises.answers import alike, calls, near, number, pair, vector
from elman.lab.exercises.exercise import Exercise, Wrong
from elman.nn.cells import Cell, GRUCell, LSTMCell, RNNCell
from elman.nn.state import State

RECURRENT = 0.8
NUM_STEPS = 10
INPUT_SIZE, HIDDEN_SIZE = 64, 128
HALF_LIFE = 100


def _gradient(path: Path) -> str:
    """d h_10 / d h_1 of a vanilla RNN of one unit, by automatic differentiation."""
    answer = number(path)
    cell = RNNCell(1, 1).double()
    with torch.no_grad():
        cell.input_weight.fill_(1.0)
        cell.recurrent_weight.fill_(RECURRENT)
    one, zero = torch.ones(1, 1).double(), torch.zeros(1, 1).double()
    h_1, state = cell(one, cell.initial_state(1))
    h_1.retain_grad()
    for _ in range(NUM_STEPS - 1):
        h, state = cell(zero, state)
    h.backward()
    assert h_1.grad is not None
    right = float(h_1.grad)
    if near(answer, right):
        return "The chain rule gives the same product."
    if near(answer, RECURRENT ** (NUM_STEPS - 1)):
        raise Wrong("That is the product of the weights alone: each step also has tanh's slope.")
    if near(answer, RECURRENT**NUM_STEPS) or near(answer, right * RECURRENT, 0.05):
        raise Wrong("That is one step too many: there are 9 steps from h(1) to h(10).")
    side = "large" if answer > right else "small"
    raise Wrong(f"It is too {side}: multiply u (1 - h(t)^2) for t = 2 to 10.")


def _parameters(path: Path) -> str:
    answer = number(path)
    sizes = {
        "lstm": _num_parameters(LSTMCell(INPUT_SIZE, HIDDEN_SIZE)),
        "gru": _num_parameters(GRUCell(INPUT_SIZE, HIDDEN_SIZE, form="reset_before")),
    }
    right = sizes["lstm"] - sizes["gru"]
    if answer == right:
        return "Counted in both cells, the difference is the same."
    if answer in sizes.values():
        raise Wrong("That is the size of one cell, not the difference between the two.")
    if answer == right + HIDDEN_SIZE:
        raise Wrong("The lecture's equations have one bias per gate, not two as torch's layers.")
    if answer == right - HIDDEN_SIZE:
        raise Wrong("The biases are missing.")
    raise Wrong("Count W, U and b of each gate, and how many of them each cell has.")


def _num_parameters(cell: Cell) -> int:
    return sum(parameter.numel() for parameter in cell.parameters())


def _lstm_step(path: Path) -> str:
    for size, returned, cell, x, h, c in _steps(path, "lstm_step", LSTMCell, with_cell=True):
        found_h, found_c = (vector(part, size) for part in pair(returned, "h", "c"))
        _, state = cell(x, State({"h": h, "c": c}))
        if not alike(found_c, _list(state.tensor("c"))):
            if alike(found_c, _list(state.tensor("h"))):
                raise Wrong("Return h first, then c.")
            raise Wrong("The new c is wrong: f keeps the old c, i lets the new content in.")
        if not alike(found_h, _list(state.tensor("h"))):
            raise Wrong("c is right, h is not: what does the output gate multiply?")
    return "Both states agree with LSTMCell on random weights."


def _gru_step(path: Path) -> str:
    cases = _steps(path, "gru_step", GRUCell, form="reset_before")
    for size, returned, cell, x, h, _ in cases:
        found = vector(returned, size)
        right, _ = cell(x, State({"h": h}))
        if alike(found, _list(right)):
            continue
        after = GRUCell(cell.input_size, size, form="reset_after").double()
        after.load_state_dict(cell.state_dict(), strict=False)
        if alike(found, _list(after(x, State({"h": h}))[0])):
            raise Wrong("The reset gate acts after the product here (cuDNN's form).")
        raise Wrong("h is wrong: compare the last two lines of the slide with yours.")
    return "The new state agrees with GRUCell on random weights."


def _steps(
    path: Path, function: str, kind: type[Cell], *, with_cell: bool = False, **options: Any
) -> Iterator[tuple[int, Any, Cell, Tensor, Tensor, Tensor]]:
    """Call a step function on random weights; yield what it returned and what went in."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    cases = []
    for input_size, size in ((2, 3), (4, 2)):
        make: Any = kind
        cell = make(input_size, size, **options).double()
        with torch.no_grad():
            for parameter in cell.parameters():
                parameter.copy_(draw(*parameter.shape))
        cases.append((cell, draw(1, input_size), draw(1, size), draw(1, size)))
    arguments = []
    for cell, x, h, c in cases:
        states = [_list(h), _list(c)] if with_cell else [_list(h)]
        weights = [cell.input_weight, cell.recurrent_weight, cell.bias]
        arguments.append([_list(x), *states, *(weight.tolist() for weight in weights)])
    for (cell, x, h, c), returned in zip(cases, calls(path, function, arguments), strict=True):
        yield cell.hidden_size, returned, cell, x, h, c


def _list(row_1X: Tensor) -> list[float]:
    values: list[float] = row_1X[0].detach().tolist()
    return values


def _forget_bias(path: Path) -> str:
    """Run a cell whose gates depend on their biases alone."""
    answer = number(path)
    if _kept(answer) < 0.5:
        raise Wrong(f"With this bias less than half is left after {HALF_LIFE} steps.")
    if _kept(answer - 0.05) >= 0.5:
        raise Wrong("Half is left with a smaller bias too: the smallest is asked for.")
    return f"Half is left after {HALF_LIFE} steps, and with 0.05 less it would not be."


def _kept(bias: float) -> float:
    cell = LSTMCell(1, 1).double()
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.zero_()
        cell.bias[0], cell.bias[1] = -math.inf, bias  # input gate, forget gate
        state = State({"h": torch.zeros(1, 1).double(), "c": torch.ones(1, 1).double()})
        for _ in range(HALF_LIFE):
            _, state = cell(torch.zeros(1, 1).double(), state)
    return float(state.tensor("c"))


EXERCISES = [
    Exercise(
        id="000-1",
        question="A vanilla RNN of one unit, h(t) = tanh(0.8 h(t-1) + x(t)), starts at h(0) = 0 "
        "and reads x(1) = 1, then zeros. What is the derivative of h(10) with respect to h(1)?",
        answer="a number, right to 1 %",
        judge=_gradient,
    ),
    Exercise(
        id="000-2",
        question="Inputs of 64 numbers, 128 units. How many parameters more than a GRU in the "
        "lecture's form has an LSTM, biases included?",
        answer="a number",
        judge=_parameters,
    ),
    Exercise(
        id="000-3",
        question="Write lstm_step(x, h, c, W, U, b), which returns the new h and c. All are lists; "
        "the rows of W, U and b are those of the gates i, f, the new content g, and o, in this "
        "order, each as many rows as there are units.",
        answer="a Python file with the function lstm_step",
        judge=_lstm_step,
    ),
    Exercise(
        id="000-4",
        question="Write gru_step(x, h, W, U, b) in the lecture's form, which returns the new h. "
        "The rows of W, U and b are those of the reset gate, the update gate and the new content.",
        answer="a Python file with the function gru_step",
        judge=_gru_step,
    ),
    Exercise(
        id="000-5",
        question="The input gate of an LSTM cell is closed (0) and its forget gate depends on its "
        "bias alone. What is the smallest bias, to 0.05, with which at least half of the cell's "
        "content is left after 100 steps?",
        answer="a number",
        judge=_forget_bias,
    ),
]
