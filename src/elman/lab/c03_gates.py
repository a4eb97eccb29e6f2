"""C3: a forget gate of 1 and an input gate of 0 preserve a cell; a GRU's update gate likewise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

import torch

from elman.lab.experiment import Experiment, Knob, Question, Row, Trial
from elman.lab.figures import Figure, Panel, Series, over_seeds
from elman.nn.cells import Cell, GRUCell, LSTMCell
from elman.nn.state import State

SHOWN = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


def measure(trial: Trial) -> Iterator[Row]:
    """The drift of the memory of both cells, over 1,000 steps of random input."""
    num_steps = trial.pick(tiny=50, small=1000, large=10_000)
    size = trial.pick(tiny=8, small=64, large=256)
    bias = float(trial.knob)
    yield from drift("lstm", LSTMCell(size, size).double(), bias, num_steps)
    yield from drift("gru", GRUCell(size, size, form="reset_before").double(), bias, num_steps)


@torch.no_grad()
def drift(name: str, cell: Cell, bias: float, num_steps: int) -> Iterator[Row]:
    """Saturate the gates by their biases; yield the relative change of the memory."""
    H = cell.hidden_size
    if name == "lstm":  # gates i, f, g, o: close the input gate, open the forget gate
        cell.bias[:H], cell.bias[H : 2 * H] = -bias, bias
    else:  # gates r, u, n: the update gate is the share that is renewed
        cell.bias[H : 2 * H] = -bias
    memory = "c" if name == "lstm" else "h"
    state = cell.initial_state(8)
    start = torch.randn_like(state.tensor(memory))
    state = State({**state, memory: start})
    for step in range(1, num_steps + 1):
        _, state = cell(torch.randn(8, cell.input_size, dtype=torch.float64), state)
        if step in SHOWN:
            change = (state.tensor(memory) - start).norm() / start.norm()
            yield {"cell": name, "step": step, "drift": max(float(change), 1e-17)}


def last_drift(rows: Sequence[Row], cell: str) -> float:
    """The power of ten of the drift at the end."""
    return math.log10([row["drift"] for row in rows if row["cell"] == cell][-1])


def figure(rows: Sequence[Row]) -> Figure:
    steps = sorted({row["step"] for row in rows})
    leaks = [
        Series(name=f"1 - σ({b})^t", x=list(steps), y=_leak(b, steps), is_reference=True)
        for b in (5, 30)
    ]
    return Figure(
        panels=[
            Panel(
                title="Drift of the memory",
                x_label="time steps",
                y_label="change of the memory (share of its norm)",
                x_log=True,
                y_log=True,
                series=[*over_seeds(rows, x="step", y="drift", by="cell"), *leaks],
            )
        ],
        caption="Means over seeds with 95 % intervals; dashed: what a gate leaks at a given bias.",
    )


def _leak(bias: float, steps: Sequence[int]) -> list[float]:
    """1 - sigmoid(bias)^t, without rounding to 0."""
    return [-math.expm1(-step * math.log1p(math.exp(-bias))) for step in steps]


def _question(cell: str, gates: str) -> Question:
    return Question(
        name=f"{cell.upper()}: drift after 1,000 steps, {gates}",
        unit="powers of ten",
        prediction=-9.0,
        minimum=-6.0,
        rule="below",
        effect=partial(last_drift, cell=cell),
    )


EXPERIMENT = Experiment(
    id="C3",
    title="gates that keep a memory",
    claim="If the forget gate is set to 1 for every step and the input gate to 0, the information "
    "of a cell is preserved indefinitely; a GRU's update gate can do the same.",
    sources=("000: how does an LSTM solve vanishing gradients?",),
    design="Cells with random weights read 1,000 steps of unit noise in float64, from a random "
    "memory. The bias b opens the forget gate and closes the input gate of the LSTM, or closes the "
    "update gate of the lecture's GRU. The drift is the change of the memory as a share of its "
    "norm; it should be about 1 - σ(b)^t.",
    questions=(
        _question("lstm", "forget gate open and input gate closed"),
        _question("gru", "update gate closed"),
    ),
    knob=Knob(
        name="bias",
        meaning="bias that saturates the gates",
        values=(0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0),
        default=30.0,
        broken=5.0,
    ),
    breaks="A bias of 5 looks like an open gate, 0.993, but leaks: after 100 steps half of the "
    "memory is gone. Preserving indefinitely needs gates that are saturated.",
    measure=measure,
    figure=figure,
    equations=("elman.nn.cells:LSTMCell.step", "elman.nn.cells:GRUCell.step"),
    reading=(
        "Hochreiter and Schmidhuber (1997), Long short-term memory",
        "Cho and others (2014), Learning phrase representations using RNN encoder-decoder",
    ),
    seconds=15,
)
