"""D5: cells with a diagonal recurrence cannot keep parity; an LSTM can."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elman.lab.experiment import Experiment, Knob, Question, Row, Trial
from elman.lab.figures import Figure, Panel, over_seeds
from elman.nn.stack import Stack, StackConfig

CELLS = {"lstm": 1, "mingru": 2, "minlstm": 2, "sru": 2}
"""Layers of each cell: those with a diagonal recurrence get one more."""


class Parity(nn.Module):
    """Bits to the parity of all bits so far."""

    def __init__(self, cell: str, hidden_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2, 16)
        config = StackConfig(cell=cell, hidden_size=hidden_size, num_layers=CELLS[cell])
        self.stack = Stack(config, 16)
        self.out = nn.Linear(hidden_size, 1)

    def forward(self, bits_BT: Tensor) -> Tensor:
        hidden_BTH, _ = self.stack(self.embedding(bits_BT))
        scores_BT: Tensor = self.out(hidden_BTH).squeeze(2)
        return scores_BT


def measure(trial: Trial) -> Iterator[Row]:
    """Train each cell on the same bits; its accuracy by position, up to twice the length."""
    length = int(trial.knob)
    updates = trial.pick(tiny=10, small=600, large=4000)
    for cell in CELLS:
        torch.manual_seed(trial.seed)
        model = Parity(cell, trial.pick(tiny=8, small=32, large=128)).to(trial.device)
        optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
        bits = torch.Generator().manual_seed(trial.seed)
        for update in range(1, updates + 1):
            # Short sequences first: the length is reached half way.
            steps = max(2, min(length, 1 + length * 2 * update // updates))
            bits_BT = torch.randint(2, (64, steps), generator=bits).to(trial.device)
            scores_BT = model(bits_BT)
            target_BT = (bits_BT.cumsum(1) % 2).float()
            loss = F.binary_cross_entropy_with_logits(scores_BT, target_BT)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            if update % (updates // 10) == 0:
                yield {"training": cell, "update": update, "loss": loss.item()}
        right_T = accuracy(model, 2 * length, trial)
        for position, right in enumerate(right_T, start=1):
            yield {"cell": cell, "position": position, "right": right, "length": length}


@torch.no_grad()
def accuracy(model: nn.Module, length: int, trial: Trial) -> list[float]:
    """The share of fresh sequences whose parity is right, at each position."""
    bits = torch.Generator().manual_seed(1000 + trial.seed)
    number = trial.pick(tiny=64, small=500, large=2000)
    bits_BT = torch.randint(2, (number, length), generator=bits).to(trial.device)
    right_BT = (model(bits_BT) > 0) == (bits_BT.cumsum(1) % 2 == 1)
    found: list[float] = right_BT.double().mean(0).tolist()
    return found


def last_accuracy(rows: Sequence[Row], cell: str) -> float:
    """Accuracy over the last quarter of the trained length."""
    found = [
        float(row["right"])
        for row in rows
        if row.get("cell") == cell and 0.75 * row["length"] < row["position"] <= row["length"]
    ]
    return sum(found) / len(found)


def figure(rows: Sequence[Row]) -> Figure:
    return Figure(
        panels=[
            Panel(
                title="Parity by position",
                x_label="position (bits read); trained on the first half",
                y_label="share of sequences that are right",
                series=over_seeds(rows, x="position", y="right", by="cell"),
                levels={"chance": 0.5},
            ),
            Panel(
                title="Training, from short to long",
                x_label="updates",
                y_label="loss (nats per bit)",
                series=over_seeds(rows, x="update", y="loss", by="training"),
            ),
        ],
        caption="Means over seeds with 95 % intervals.",
    )


def _diagonal(cell: str) -> Question:
    return Question(
        name=f"{cell}, two layers: share right in the last quarter",
        unit="",
        prediction=0.55,
        minimum=0.75,
        rule="below",
        effect=partial(last_accuracy, cell=cell),
    )


EXPERIMENT = Experiment(
    id="D5",
    title="parity and diagonal recurrence",
    claim="Cells that train in parallel over time (minGRU, minLSTM, SRU) pay for it: with a "
    "diagonal recurrence between 0 and 1 they cannot keep the parity of the bits they read, which "
    "an LSTM learns.",
    sources=("ours; on 001, 002 and 004: recurrent computation cannot be parallelised",),
    design="Networks read random bits and say after each whether the number of ones so far is odd. "
    "One layer of 32 LSTM units against two layers of 32 units of each diagonal cell; 600 "
    "updates of Adam on 64 fresh sequences each, short ones first. Accuracy is that on fresh "
    "sequences over the last quarter of the trained length (32 bits); the figure goes on to twice "
    "the length. A unit of a diagonal cell multiplies its memory by a number between 0 and 1: it "
    "can keep or forget, but not flip, and flipping is what a one asks for.",
    questions=(
        Question(
            name="lstm, one layer: share right in the last quarter",
            unit="",
            prediction=1.0,
            minimum=0.95,
            effect=partial(last_accuracy, cell="lstm"),
        ),
        _diagonal("mingru"),
        _diagonal("minlstm"),
        _diagonal("sru"),
    ),
    knob=Knob(
        name="length",
        meaning="bits of a sequence, in training and in the test",
        values=(2, 4, 8, 16, 32),
        default=32,
        broken=4,
    ),
    breaks="Of four bits the diagonal cells keep parity too, or nearly: two layers can count to "
    "four and tell the counts apart. What they lack is a rule that goes on.",
    limits="A proof says that such cells cannot do it at every length, not that they fail at 32; "
    "more layers, more units and more training move the length. Gates that may be negative "
    "(between -1 and 1) can flip, and pass. Language rarely asks for parity.",
    measure=measure,
    figure=figure,
    equations=("elman.nn.scan_cells:ScanCell.step", "elman.nn.cells:LSTMCell.step"),
    reading=(
        "Merrill, Petty and Sabharwal (2024), The illusion of state in state-space models",
        "Grazzi and others (2024), Unlocking state-tracking in linear RNNs through negative "
        "eigenvalues",
        "Feng and others (2024), Were RNNs all we needed?",
    ),
    seconds=60,
)
