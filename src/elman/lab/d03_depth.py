"""D3: gradients vanish in deep feed-forward networks too; residual connections help."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elman.lab.experiment import Experiment, Knob, Question, Row, Trial
from elman.lab.figures import Figure, Panel, over_seeds

Join = Literal["plain", "residual"]
DEPTH, WIDTH = 20, 32


class Deep(nn.Module):
    """Hidden layers x = f(W x + b), or x = x + f(W x + b), and two classes."""

    def __init__(self, depth: int, nonlinearity: str, join: Join) -> None:
        super().__init__()
        self.join, self.nonlinearity = join, nonlinearity
        self.enter = nn.Linear(2, WIDTH)
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(depth)])
        self.out = nn.Linear(WIDTH, 2)
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            nn.init.xavier_normal_(layer.weight)  # Glorot and Bengio: keeps variances in tanh
            nn.init.zeros_(layer.bias)

    def forward(self, inputs_BI: Tensor) -> Tensor:
        x_BH = self.enter(inputs_BI)
        for layer in self.layers:
            made_BH = getattr(torch, self.nonlinearity)(layer(x_BH))
            x_BH = x_BH + made_BH if self.join == "residual" else made_BH
        logits_BN: Tensor = self.out(x_BH)
        return logits_BN


def examples(number: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Points of a square; the class is that of opposite quarters (exclusive or)."""
    inputs_BI = torch.rand(number, 2, generator=generator) * 2 - 1
    return inputs_BI, (inputs_BI.prod(1) > 0).long()


def measure(trial: Trial) -> Iterator[Row]:
    """The gradient of each layer at the start, then training."""
    nonlinearity = str(trial.knob)
    joins: tuple[Join, ...] = ("plain", "residual")
    updates = trial.pick(tiny=10, small=600, large=4000)
    for join in joins:
        torch.manual_seed(trial.seed)
        for layer, norm in enumerate(gradient_norms(nonlinearity, join, trial.seed), start=1):
            yield {"join": join, "layer": layer, "norm": norm}
    arms: list[tuple[str, int, Join]] = [("2 layers, plain", 2, "plain")]
    arms += [(f"{DEPTH} layers, {join}", DEPTH, join) for join in joins]
    for name, depth, join in arms:
        torch.manual_seed(trial.seed)
        model = Deep(depth, nonlinearity, join)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        generator, total = torch.Generator().manual_seed(trial.seed), 0.0
        for update in range(1, updates + 1):
            inputs_BI, labels_B = examples(64, generator)
            loss = F.cross_entropy(model(inputs_BI), labels_B)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            total += loss.item()
            if update % (updates // 10) == 0:
                yield {"arm": name, "update": update, "loss": total / (updates // 10)}
                total = 0.0


def gradient_norms(nonlinearity: str, join: Join, seed: int) -> list[float]:
    """The norm of dJ/dW of each hidden layer, the lowest first, in float64."""
    model = Deep(DEPTH, nonlinearity, join).double()
    inputs_BI, labels_B = examples(256, torch.Generator().manual_seed(seed))
    loss = F.cross_entropy(model(inputs_BI.double()), labels_B)
    loss.backward()  # type: ignore[no-untyped-call]
    found = [layer.weight.grad for layer in model.layers]
    return [float(gradient.norm()) for gradient in found if isinstance(gradient, Tensor)]


def first_over_last(rows: Sequence[Row], join: str) -> float:
    """The power of ten of the lowest layer's gradient over the highest one's."""
    first, *_, last = [float(row["norm"]) for row in rows if row.get("join") == join]
    return math.log10(first / last) if first > 0 < last else -math.inf


def cost_of_plain(rows: Sequence[Row]) -> float:
    """The loss of the plain deep network at the end, less that of the residual one."""
    ends = {row["arm"]: float(row["loss"]) for row in rows if "arm" in row}
    return ends[f"{DEPTH} layers, plain"] - ends[f"{DEPTH} layers, residual"]


def figure(rows: Sequence[Row]) -> Figure:
    return Figure(
        panels=[
            Panel(
                title="Gradient by layer, before training",
                x_label="layer, from the input",
                y_label="norm of dJ/dW",
                y_log=True,
                series=over_seeds(rows, x="layer", y="norm", by="join"),
            ),
            Panel(
                title="Learning exclusive or",
                x_label="updates",
                y_label="training loss (nats)",
                series=over_seeds(rows, x="update", y="loss", by="arm"),
                levels={"chance": math.log(2)},
            ),
        ],
        caption="Means over seeds with 95 % intervals.",
    )


EXPERIMENT = Experiment(
    id="D3",
    title="vanishing in deep feed-forward networks",
    claim="Vanishing gradients are not just a problem of RNNs, but of all neural architectures, "
    "feed-forward ones too, especially very deep ones: by the chain rule and the choice of "
    "nonlinearity the gradient becomes vanishingly small, and lower layers are learned very "
    "slowly. Residual connections make deep networks much easier to train.",
    sources=("000: is vanishing/exploding gradient just an RNN problem?",),
    design=f"Networks of {DEPTH} hidden layers of {WIDTH} units, plain and residual, with Glorot's "
    "initial weights. Before training, the norm of dJ/dW is measured for each layer, in "
    "float64. Then they learn exclusive or on the plane by SGD with momentum, 600 "
    "updates on fresh points, from the same weights and points; a plain network of 2 layers shows "
    "that the task is easy.",
    questions=(
        Question(
            name="plain: gradient of the lowest layer over that of the highest",
            unit="powers of ten",
            prediction=-10.0,
            minimum=-3.0,
            rule="below",
            effect=partial(first_over_last, join="plain"),
        ),
        Question(
            name="residual: gradient of the lowest layer over that of the highest",
            unit="powers of ten",
            prediction=0.0,
            minimum=-1.0,
            effect=partial(first_over_last, join="residual"),
        ),
        Question(
            name="training loss of plain less that of residual",
            unit="nats",
            prediction=0.6,
            minimum=0.2,
            effect=cost_of_plain,
        ),
    ),
    knob=Knob(
        name="nonlinearity",
        meaning="f of the hidden layers",
        values=("sigmoid", "tanh", "relu"),
        default="sigmoid",
        broken="tanh",
    ),
    breaks="A sigmoid's derivative is at most 1/4, so 20 layers divide the gradient by at least "
    "4^20 where weights keep variances. With tanh and Glorot's weights, made for it, the "
    "gradient reaches the lowest layer. The choice of nonlinearity and of first weights "
    "decides, as the lecture says.",
    limits="A feed-forward network has another matrix in each layer, which can be chosen so that "
    "gradients pass; an RNN multiplies by the same one at every step (C1).",
    measure=measure,
    figure=figure,
    equations=("elman.lab.d03_depth:Deep.forward", "elman.nn.stack:Stack"),
    reading=(
        "Glorot and Bengio (2010), Understanding the difficulty of training deep feedforward "
        "neural networks",
        "He, Zhang, Ren and Sun (2015), Deep residual learning for image recognition",
    ),
    seconds=30,
)
