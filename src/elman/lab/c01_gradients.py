"""C1: gradients vanish or explode with distance; eigenvalues of U predict it; clipping helps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from elman.lab.experiment import Experiment, Knob, Question, Row, Trial
from elman.lab.figures import Figure, Panel, Series, over_seeds
from elman.nn.cells import RNNCell

RADII = (0.5, 0.9, 1.0, 1.1, 1.5, 2.0, 4.0)
NUM_STEPS, FIRST = 160, 40
"""Time steps, and the distance at which the fit begins: before, other eigenvalues matter."""
DIVERGED = 1e3
"""A loss this many times the first one."""


def measure(trial: Trial) -> Iterator[Row]:
    """Gradient norms by distance for each radius, then training with and without clipping."""
    size = trial.pick(tiny=8, small=64, large=256)
    for radius in RADII:
        norms = gradient_norms(radius, size, float(trial.knob))
        for distance, norm in enumerate(norms):
            if distance % 10 == 0:
                yield {"radius": radius, "distance": distance, "norm": norm}
        yield {"fitted": radius, "slope": slope(norms), "log_radius": math.log(radius)}
    for network in range(trial.pick(tiny=1, small=6, large=20)):
        for clip in (True, False):
            torch.manual_seed(1000 * trial.seed + network)  # the same weights and data for both
            yield from _train(network, clip, updates=trial.pick(tiny=20, small=100, large=400))


def gradient_norms(radius: float, size: int, input_scale: float) -> list[float]:
    """The norm of dJ/dh at distances 0, 1, ... from the end, J a projection of the last h.

    U is Gaussian, scaled to its spectral radius. In float64: squares of small norms underflow in
    float32.
    """
    cell = RNNCell(size, size).double()
    with torch.no_grad():
        cell.recurrent_weight.copy_(with_radius(radius, size))
        cell.input_weight.copy_(torch.eye(size))
    inputs_TBI = input_scale * torch.randn(NUM_STEPS, 1, size, dtype=torch.float64)
    state = cell.initial_state(1)
    hidden = []
    for inputs_BI in inputs_TBI:
        h_BH, state = cell(inputs_BI, state)
        h_BH.requires_grad_()
        h_BH.retain_grad()
        hidden.append(h_BH)
    (hidden[-1] @ torch.randn(size, dtype=torch.float64)).sum().backward()
    return [float(h_BH.grad.norm()) for h_BH in reversed(hidden) if h_BH.grad is not None]


def with_radius(radius: float, size: int) -> Tensor:
    """A Gaussian matrix whose largest eigenvalue has this absolute value."""
    matrix = torch.randn(size, size, dtype=torch.float64)
    return matrix * (radius / float(torch.linalg.eigvals(matrix).abs().max()))


def slope(norms: Sequence[float]) -> float:
    """The slope of log norm over distance, by least squares; NaN where norms are not positive."""
    points = [(d, math.log(n)) for d, n in enumerate(norms) if d >= FIRST and 0 < n < math.inf]
    if len(points) < 3:
        return math.nan
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    covariance = sum((x - mean_x) * (y - mean_y) for x, y in points)
    return covariance / sum((x - mean_x) ** 2 for x, _ in points)


def _train(network: int, clip: bool, updates: int) -> Iterator[Row]:
    """Train a ReLU network with spectral radius 1.5 to add up 20 numbers, by SGD."""
    size, num_steps = 32, 20
    cell = RNNCell(1, size, nonlinearity="relu")
    with torch.no_grad():
        cell.recurrent_weight.copy_(with_radius(1.5, size))
    readout = torch.nn.Linear(size, 1)
    parameters = [*cell.parameters(), *readout.parameters()]
    optimiser = torch.optim.SGD(parameters, lr=0.01)
    name, first = "clipped to norm 1" if clip else "not clipped", math.nan
    for update in range(updates):
        inputs_TBI = torch.randn(num_steps, 16, 1)
        state = cell.initial_state(16)
        for inputs_BI in inputs_TBI:
            h_BH, state = cell(inputs_BI, state)
        loss = (readout(h_BH) - inputs_TBI.sum(0)).square().mean()
        value = loss.item()
        first = value if update == 0 else first
        diverged = not value <= DIVERGED * first
        if update % 10 == 0 or diverged or update == updates - 1:
            shown = value if math.isfinite(value) else None
            about = {"arm": name, "network": network, "update": update}
            yield about | {"loss": shown, "diverged": diverged}
        if diverged:
            return
        optimiser.zero_grad()
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()


def distance_from_prediction(rows: Sequence[Row]) -> float:
    """The largest distance of a slope from the log of the radius."""
    return max(
        abs(float(row["slope"]) - float(row["log_radius"])) for row in rows if "slope" in row
    )


def saved_by_clipping(rows: Sequence[Row]) -> float:
    """The share of networks that diverge without clipping, less that with it."""
    ends = {(r["arm"], r["network"]): r["diverged"] for r in rows if "arm" in r}
    shares = {
        arm: [float(diverged) for (name, _), diverged in ends.items() if name == arm]
        for arm in ("not clipped", "clipped to norm 1")
    }
    without, with_it = (sum(share) / len(share) for share in shares.values())
    return without - with_it


def diverged(rows: Sequence[Row]) -> Iterator[Row]:
    """The share of networks of a seed that have diverged, by updates."""
    learning = [row for row in rows if "arm" in row]
    ends: dict[tuple[int, str, int], float] = {}
    for row in learning:
        network = (row["seed"], row["arm"], row["network"])
        ends[network] = row["update"] if row["diverged"] else math.inf
    last = max((row["update"] for row in learning), default=0)
    for seed, arm in dict.fromkeys((seed, arm) for seed, arm, _ in ends):
        own = [end for (s, a, _), end in ends.items() if (s, a) == (seed, arm)]
        for update in range(0, last + 1, 10):
            share = sum(end <= update for end in own) / len(own)
            yield {"seed": seed, "arm": arm, "update": update, "share": share}


def figure(rows: Sequence[Row]) -> Figure:
    radii = [{**row, "rho": f"ρ = {row['radius']:g}"} for row in rows if "radius" in row]
    slopes = [row for row in rows if "slope" in row]
    predicted = Series(
        name="predicted: log ρ",
        x=list(RADII),
        y=[math.log(radius) for radius in RADII],
        is_reference=True,
    )
    return Figure(
        panels=[
            Panel(
                title="Gradient by distance",
                x_label="distance (time steps)",
                y_label="norm of dJ/dh",
                y_log=True,
                series=over_seeds(radii, x="distance", y="norm", by="rho"),
            ),
            Panel(
                title="Slope against the eigenvalue",
                x_label="spectral radius ρ of U",
                y_label="slope of log norm per step",
                kind="points",
                x_log=True,
                series=[*over_seeds(slopes, x="fitted", y="slope", name="measured"), predicted],
            ),
            Panel(
                title="ReLU, ρ = 1.5, learning to add",
                x_label="updates",
                y_label="share of networks that have diverged",
                series=over_seeds(diverged(rows), x="update", y="share", by="arm"),
            ),
        ],
        caption="Means over seeds with 95 % intervals.",
    )


EXPERIMENT = Experiment(
    id="C1",
    title="vanishing and exploding gradients",
    claim="The gradient at a distance is a product of Jacobians: it vanishes or explodes "
    "exponentially, as the eigenvalues of the recurrent matrix U are below or above 1. Clipping "
    "the gradient's norm tames the explosion.",
    sources=("000: vanishing gradients", "001: clipping", "003: training an RNN"),
    design="U of a tanh network with 64 units is Gaussian, scaled to a spectral radius ρ between "
    "0.5 and 4. The network reads nothing, so that it is linear around h = 0, and J is a random "
    "projection of the last state. The slope of log ‖dJ/dh‖ over distances from 40 to 159 should "
    "be log ρ. Then six ReLU networks with ρ = 1.5 learn to add 20 numbers by plain SGD, with and "
    "without clipping the norm to 1, from the same weights and on the same data; one has diverged "
    "if the loss passes 1,000 times the first one.",
    questions=(
        Question(
            name="largest distance of a slope from log ρ",
            unit="nats per step",
            prediction=0.03,
            minimum=0.05,
            rule="below",
            effect=distance_from_prediction,
        ),
        Question(
            name="share of networks that diverge only without clipping",
            unit="",
            prediction=1.0,
            minimum=0.5,
            effect=saved_by_clipping,
        ),
    ),
    knob=Knob(
        name="input scale",
        meaning="standard deviation of the inputs",
        values=(0.0, 0.25, 0.5, 1.0, 2.0),
        default=0.0,
        broken=1.0,
    ),
    breaks="Inputs move the units out of the linear part of tanh, and its derivative shrinks every "
    "gradient: with unit inputs, gradients vanish up to a radius of about 1.5.",
    limits="Eigenvalues predict the network around one point. For a network that reads text, the "
    "derivative of the nonlinearity has a say at every step.",
    measure=measure,
    figure=figure,
    equations=("elman.nn.cells:RNNCell.step", "elman.train.gradients"),
    reading=(
        "Bengio, Simard and Frasconi (1994), Learning long-term dependencies with gradient descent "
        "is difficult",
        "Pascanu, Mikolov and Bengio (2013), On the difficulty of training recurrent neural "
        "networks",
    ),
    seconds=20,
)
