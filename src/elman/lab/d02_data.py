"""D2: an LSTM has more weights than an RNN; does it want more data?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from elman.lab.experiment import Experiment, Knob, Question, Row, Trial
from elman.lab.figures import Figure, Panel, over_seeds
from elman.lab.texts import paragraphs, split, written
from elman.lab.training import PLAIN, fitted

SIZES = (2_000, 8_000, 32_000, 128_000)
"""Characters of training text."""
UNITS = 64


def measure(trial: Trial) -> Iterator[Row]:
    """The best validation loss of both cells, for each amount of text."""
    train, test = split(trial, paragraphs())
    whole = train.read_text(encoding="utf-8")
    valid = written(trial, "valid.txt", [test.read_text(encoding="utf-8")[:10_000].strip()])
    updates = trial.pick(tiny=4, small=400, large=4000)
    sizes = SIZES[: trial.pick(tiny=2, small=4, large=4)]
    for size in sizes:
        text = written(trial, f"{size}.txt", [whole[:size].strip()])
        for cell in ("rnn", "lstm"):
            settings = {
                **PLAIN,
                "tokenizer.kind": "byte",
                "model.cell": cell,
                "model.hidden_size": units(cell, str(trial.knob)),
                "model.embedding_size": 32,
                "model.tied": False,
                "training.batch_size": 16,
                "training.chunk_length": 32,
                "training.validate_every": max(1, updates // 10),
            }
            losses = [
                report.valid_loss
                for report in fitted(
                    *(trial, "lm", [text]),
                    valid=[valid],
                    out=f"{cell}-{size}",
                    settings=settings,
                    steps=updates,
                )
                if report.kind == "valid" and report.valid_loss is not None
            ]
            for number, loss in enumerate(losses):
                yield {"training": cell, "size": size, "validation": number, "valid_loss": loss}
            yield {"cell": cell, "characters": size, "best": min(losses)}


def units(cell: str, matched: str) -> int:
    """Units of a cell; the LSTM has four matrices for one, so with half of the units about as many
    weights.
    """
    return UNITS // 2 if cell == "lstm" and matched == "weights" else UNITS


def differences(rows: Sequence[Row]) -> dict[int, float]:
    """The loss of the LSTM less that of the RNN, by characters of text."""
    found = {(r["cell"], r["characters"]): float(r["best"]) for r in rows if "best" in r}
    sizes = sorted({size for _, size in found})
    return {size: found["lstm", size] - found["rnn", size] for size in sizes}


def at_least_data(rows: Sequence[Row]) -> float:
    found = differences(rows)
    return found[min(found)]


def change_with_data(rows: Sequence[Row]) -> float:
    """By how much more data moves the difference towards the LSTM."""
    found = differences(rows)
    return found[min(found)] - found[max(found)]


def figure(rows: Sequence[Row]) -> Figure:
    best = [row for row in rows if "best" in row]
    by_seed = {row["seed"]: [r for r in best if r["seed"] == row["seed"]] for row in best}
    apart = [
        {"seed": seed, "characters": size, "difference": difference}
        for seed, own in by_seed.items()
        if len({row["cell"] for row in own}) == 2
        for size, difference in differences(own).items()
    ]
    return Figure(
        panels=[
            Panel(
                title="Loss by data",
                x_label="training text (bytes)",
                y_label="best validation loss (nats per byte)",
                x_log=True,
                series=over_seeds(best, x="characters", y="best", by="cell"),
            ),
            Panel(
                title="LSTM less RNN",
                x_label="training text (bytes)",
                y_label="difference of the losses (nats per byte)",
                x_log=True,
                series=over_seeds(apart, x="characters", y="difference", name="LSTM less RNN"),
                levels={"equal": 0.0},
            ),
        ],
        caption="Means over seeds, each with other text and weights, with 95 % intervals.",
    )


EXPERIMENT = Experiment(
    id="D2",
    title="an LSTM's demand on data",
    claim="An LSTM has more weights to learn than an RNN, and so a higher demand on training data.",
    sources=("003: LSTM summary",),
    design="Byte models of 64 units on 2,000 to 128,000 bytes of Python's documentation, with the "
    "same text, validation text and number of updates (400) for both cells; the best of ten "
    "validations counts, so that overfitting late in training does not. If the LSTM demands more, "
    "the RNN is better where data is scarce, and the difference moves towards the LSTM as data "
    "grows.",
    questions=(
        Question(
            name="2,000 bytes: loss of the LSTM less that of the RNN",
            unit="nats per byte",
            prediction=0.05,
            minimum=0.01,
            effect=at_least_data,
        ),
        Question(
            name="what 64 times the data moves towards the LSTM",
            unit="nats per byte",
            prediction=0.15,
            minimum=0.02,
            effect=change_with_data,
        ),
    ),
    knob=Knob(
        name="matched",
        meaning="what is equal in both: the units, or about the weights of the recurrent layer",
        values=("units", "weights"),
        default="units",
        broken="weights",
    ),
    breaks="With half of the units the LSTM has about as many weights as the RNN. The difference "
    "at 2,000 bytes is gone, and more data no longer helps the LSTM more: its weights ask for it, "
    "not its gates.",
    limits="One text, one size of network, no dropout. The number of updates is fixed: with more "
    "of them both cells learn a small text by heart, which the best validation hides.",
    measure=measure,
    figure=figure,
    equations=("elman.nn.cells:RNNCell.step", "elman.nn.cells:LSTMCell.step"),
    reading=(
        "Józefowicz, Zaremba and Sutskever (2015), An empirical exploration of recurrent network "
        "architectures",
        "Collins, Sohl-Dickstein and Sussillo (2017), Capacity and trainability in recurrent "
        "neural networks",
    ),
    seconds=110,
)
