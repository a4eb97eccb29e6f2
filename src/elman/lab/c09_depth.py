"""C9: stacking helps and costs; residual, highway and dense joins make depth trainable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from elman.lab.experiment import Experiment, Knob, Question, Row, Trial
from elman.lab.figures import Figure, Panel, over_seeds
from elman.lab.language_models import LARGER, curve, write_parts
from elman.models.recurrent import RecurrentLMConfig

JOINS = ("residual", "highway", "dense")


def measure(trial: Trial) -> Iterator[Row]:
    """Train stacks of one layer, two, and many with each join, on the same text."""
    parts = write_parts(trial, train=0.9, valid=trial.pick(tiny=0.02, small=0.04, large=0.1))
    size = trial.pick(tiny=8, small=64, large=256)
    deep = int(trial.knob)
    arms = [("one layer", 1, "plain"), ("two layers", 2, "plain"), ("plain", deep, "plain")]
    arms += [(join, deep, join) for join in JOINS]
    for name, depth, join in arms:
        model = {"cell": "lstm", "num_layers": depth, "hidden_size": size, "embedding_size": size}
        model |= {"join": join, "dropout_hidden": 0.0, "dropout_output": 0.0}
        cost = multiplications(model)
        yield {"stack": name, "layers": depth, "multiplications": cost}
        rows = curve(
            *(trial, parts, name, model),
            steps=trial.pick(tiny=3, small=200, large=1200),
            points=5,
            batch=trial.pick(tiny=(2, 8), small=(16, 32), large=(64, 128)),
        )
        for row in rows:
            yield row | {"cost": round(1e-6 * cost * row["update"], 3)}


def multiplications(model: dict[str, Any]) -> int:
    """Products of a weight and a number for each character, in the layers."""
    with torch.device("meta"):
        stack = RecurrentLMConfig(**model).build(1).stack
    return sum(each.numel() for each in stack.parameters() if each.dim() == 2)


def last_loss(rows: Sequence[Row], arm: str) -> float:
    return [float(row["loss"]) for row in rows if row.get("arm") == arm][-1]


def lower(rows: Sequence[Row], before: str, after: str) -> float:
    """How much lower the loss of the arm `after` is, after as many updates."""
    return last_loss(rows, before) - last_loss(rows, after)


def cost_ratio(rows: Sequence[Row]) -> float:
    found = {row["stack"]: float(row["multiplications"]) for row in rows if "stack" in row}
    return found["two layers"] / found["one layer"]


def figure(rows: Sequence[Row]) -> Figure:
    learning = [row for row in rows if "arm" in row]
    deep = next((row["layers"] for row in rows if row.get("stack") == "plain"), "many")
    names = {"plain": f"{deep} layers"}
    depths = [
        {**row, "depth": names.get(row["arm"], row["arm"])}
        for row in learning
        if row["arm"] not in JOINS
    ]
    joins = [row for row in learning if row["arm"] in ("plain", *JOINS)]
    return Figure(
        panels=[
            Panel(
                title="Plain stacks",
                x_label="updates",
                y_label="validation loss (nats per character)",
                series=over_seeds(depths, x="update", y="loss", by="depth"),
            ),
            Panel(
                title="Plain stacks by arithmetic",
                x_label="updates times multiplications per character (millions)",
                y_label="validation loss (nats per character)",
                series=over_seeds(depths, x="cost", y="loss", by="depth"),
            ),
            Panel(
                title=f"{deep} layers by join",
                x_label="updates",
                y_label="validation loss (nats per character)",
                series=over_seeds(joins, x="update", y="loss", by="arm"),
            ),
        ],
        caption="Means over seeds with 95 % intervals.",
    )


def _join_question(join: str, prediction: float) -> Question:
    return Question(
        name=f"loss of the plain deep stack less that with {join} joins",
        unit="nats per character",
        prediction=prediction,
        minimum=0.5,
        effect=partial(lower, before="plain", after=join),
    )


EXPERIMENT = Experiment(
    id="C9",
    title="depth, and what makes it trainable",
    claim="A stack typically outperforms a network of one layer, but increases the cost of "
    "training. Residual, highway and dense connections make deep networks much easier to train.",
    sources=("004: stacked RNNs", "000: is vanishing gradient just an RNN problem?", "001: ELMo"),
    design="Character models of Python's reference manual: LSTM layers of 64 units, one, two or "
    "six of them, and six with each join. All make 200 updates of 16 x 32 characters, by Adam at "
    "a constant rate of 0.005, on the same text, without dropout. The cost is counted, not timed: "
    "multiplications for each character in the layers. Expected before the first run: joins "
    "bring about 1 nat at six layers; the second layer brings nothing in so few updates. " + LARGER,
    questions=(
        Question(
            name="loss of one layer less that of two, at equal updates",
            unit="nats per character",
            prediction=-0.05,
            minimum=0.02,
            effect=partial(lower, before="one layer", after="two layers"),
        ),
        Question(
            name="cost of two layers, as a multiple of one",
            unit="",
            prediction=2.0,
            minimum=1.5,
            effect=cost_ratio,
        ),
        _join_question("residual", 1.2),
        _join_question("highway", 1.0),
        _join_question("dense", 1.0),
    ),
    knob=Knob(
        name="layers",
        meaning="layers of the deep stacks",
        values=(2, 3, 4, 6, 8),
        default=6,
        broken=2,
    ),
    breaks="Two layers train without joins, and what joins win there is short of half a nat: they "
    "are a cure for depth.",
    limits="Stacking needs time or joins: here six layers with residual joins are ahead of one "
    "layer after as many updates, by about 0.2 nats, and in C7, with wider layers and more text, "
    "two plain layers pass one after 200 updates. The reason that the slide gives, gradients that "
    "vanish from layer to layer, is not measured here.",
    measure=measure,
    figure=figure,
    equations=("elman.nn.stack", "elman.nn.cells:LSTMCell.step"),
    reading=(
        "He and others (2015), Deep residual learning for image recognition",
        "Srivastava, Greff and Schmidhuber (2015), Highway networks",
        "Huang and others (2016), Densely connected convolutional networks",
        "Pascanu and others (2014), How to construct deep recurrent neural networks",
    ),
    seconds=90,
)
