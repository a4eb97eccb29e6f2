"""C16: recurrent computation cannot be parallelised over time, except for cells made for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product

import torch

from elman.lab.experiment import Experiment, Knob, Question, Row, Rule, Trial
from elman.lab.figures import Figure, Panel, over_seeds
from elman.lab.training import seconds_of
from elman.nn.stack import Stack, StackConfig

CELLS = ("lstm", "gru", "mingru", "sru")
PIECES = (1, 4, 16, 64)
"""Into how many shorter sequences, side by side, a long one is cut."""


def measure(trial: Trial) -> Iterator[Row]:
    """The time of a training step on sequences of all shapes with the same number of tokens."""
    batch_size = int(trial.knob)
    num_steps = trial.pick(tiny=64, small=1024, large=4096)
    size = trial.pick(tiny=8, small=128, large=256)
    repeats = max(1, trial.pick(tiny=1, small=7, large=15) // batch_size)
    all_threads = torch.get_num_threads()
    workers = [1] if trial.device != "cpu" or all_threads == 1 else [1, all_threads]
    layers = {
        cell: Stack(StackConfig(cell=cell, hidden_size=size), size).to(trial.device)
        for cell in CELLS
    }
    try:
        for threads in workers:
            torch.set_num_threads(threads)
            best: dict[tuple[str, int], float] = {}
            # Shapes take turns, and the best of each counts: other work on the machine only adds.
            for turn, cell, pieces in product(range(repeats + 1), CELLS, PIECES):
                shape = (batch_size * pieces, num_steps // pieces, size)
                seconds = training_step(layers[cell], shape, trial.device)
                if turn:  # the first turn compiles
                    best[cell, pieces] = min(best.get((cell, pieces), seconds), seconds)
            for (cell, pieces), seconds in best.items():
                yield {
                    "cell": cell,
                    "pieces": pieces,
                    "threads": threads,
                    "most": threads == workers[-1],
                    "milliseconds": 1000 * seconds,
                }
    finally:
        torch.set_num_threads(all_threads)


def training_step(layer: Stack, shape: tuple[int, int, int], device: str) -> float:
    """Seconds of forward and backward."""
    inputs_BTI = torch.randn(shape, device=device)
    return seconds_of(lambda: layer(inputs_BTI)[0].sum().backward(), device)


def price_of_order(rows: Sequence[Row], cell: str) -> float:
    """The time of the long sequence over that of its pieces side by side."""
    found = {r["pieces"]: float(r["milliseconds"]) for r in rows if r["cell"] == cell and r["most"]}
    return found[1] / found[PIECES[-1]]


def figure(rows: Sequence[Row]) -> Figure:
    most = [row for row in rows if row["most"]]
    threads = [{**row, "threads": f"{row['threads']}"} for row in rows if row["pieces"] == 1]
    return Figure(
        panels=[
            Panel(
                title="The same tokens, cut into pieces",
                x_label="sequences side by side",
                y_label="time of a training step (ms)",
                x_log=True,
                y_log=True,
                series=over_seeds(most, x="pieces", y="milliseconds", by="cell"),
            ),
            Panel(
                title="One long sequence",
                x_label="threads",
                y_label="time of a training step (ms)",
                kind="bars",
                series=over_seeds(threads, x="threads", y="milliseconds", by="cell"),
            ),
        ],
        caption="Means over seeds of the best of seven turns, with 95 % intervals.",
    )


def _question(cell: str, prediction: float, rule: Rule) -> Question:
    return Question(
        name=f"{cell}: time of one long sequence over that of 64 short ones",
        unit="",
        prediction=prediction,
        minimum=1.3,
        rule=rule,
        effect=partial(price_of_order, cell=cell),
    )


EXPERIMENT = Experiment(
    id="C16",
    title="no parallelism over time",
    claim="Recurrent computation is slow: it is inherently sequential and cannot be parallelised "
    "over time. (Cells invented since, whose gates do not read the state, can be.)",
    sources=(
        "001: RNNs, weaknesses",
        "002: pros and cons of recurrent neural networks",
        "004: problems with RNNs",
    ),
    design="A training step of one layer of 128 units, on one sequence of 1,024 steps, and on the "
    "same 1,024 steps cut into 4, 16 and 64 sequences side by side. The arithmetic is the same; "
    "only the order in which it must be done is not. Where steps can be computed at the same time, "
    "the shape makes no difference; where they cannot, the long sequence leaves the machine idle. "
    "On a CPU the right half of the figure shows what more threads bring to the long sequence.",
    questions=(
        _question("lstm", 2.0, "above"),
        _question("gru", 2.0, "above"),
        _question("mingru", 1.05, "below"),
        _question("sru", 1.05, "below"),
    ),
    knob=Knob(
        name="batch size",
        meaning="long sequences in a batch",
        values=(1, 4, 16),
        default=1,
        broken=16,
    ),
    breaks="A batch of 16 long sequences has enough work in every step for a small machine, and "
    "order costs little: recurrent networks are trained in batches for this reason.",
    limits="The price of order is that of a machine: two cores lose little, a GPU with thousands "
    "of units loses most of its speed. On one CPU the scan itself runs step by step, in one "
    "pass over memory; its products do not.",
    measure=measure,
    figure=figure,
    equations=("elman.nn.cells:run", "elman.nn.kernels.scan:linear_scan"),
    reading=(
        "Martin and Cundy (2018), Parallelizing linear recurrent neural nets over sequence length",
        "Feng and others (2024), Were RNNs all we needed?",
    ),
    seconds=60,
    alone=True,
)
