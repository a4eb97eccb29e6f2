"""Exercises on optimisation, feed-forward networks, decoding and its options (lecture 003)."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from elman.decode.processors import penalties, top_p
from elman.lab.exercises.answers import alike, calls, document, near, number, pair, table, vector
from elman.lab.exercises.exercise import Exercise, Wrong
from elman.train.optimisers import OptimiserConfig, build

DATA = (2.1, 3.4, 2.8, 4.0, 3.2, 2.5)
NEXT = {"books": 0.38, "laptops": 0.27, "minds": 0.15, "exams": 0.12, "eyes": 0.05, "doors": 0.03}
NUCLEUS = 0.75
MOST_UNITS = 16
MOST_ERROR = 0.01
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
}


def _location(path: Path) -> str:
    """Descend to the location as the slide's loop does."""
    answer = number(path)
    location = 0.0
    for _ in range(100):
        # The loss is sum (x - location)^2 / 2 and a constant.
        location -= 0.05 * sum(location - x for x in DATA)
    if near(answer, location, 0.002):
        return "Gradient descent ends at the same place."
    if near(answer, sorted(DATA)[2], 0.002) or near(answer, median(DATA), 0.002):
        raise Wrong("That is the median, which another distribution's likelihood would ask for.")
    raise Wrong("At this location the gradient of the loss is not zero.")


def _sgd(path: Path) -> str:
    settings = [
        {"learning_rate": 0.1},
        {"learning_rate": 0.1, "momentum": 0.9},
        {"learning_rate": 0.1, "momentum": 0.9, "dampening": 0.5},
        {"learning_rate": 0.2, "momentum": 0.5, "nesterov": True},
        {"learning_rate": 0.1, "weight_decay": 0.1},
        {"learning_rate": 0.1, "weight_decay": 0.1, "momentum": 0.9, "maximise": True},
    ]
    cases: list[list[Any]] = []
    right = []
    for setting in settings:
        config = OptimiserConfig(kind="sgd", **setting)  # type: ignore[arg-type]
        parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
        optimiser = build(config, [parameter])
        buffer = None
        for time in (1, 2, 3):
            gradient = parameter.detach() * torch.tensor([2.0, 0.5]) + time
            cases.append(
                [
                    *(parameter.tolist(), gradient.tolist(), buffer, time),
                    *(config.learning_rate, config.weight_decay, config.momentum),
                    *(config.dampening, config.nesterov, config.maximise),
                ]
            )
            parameter.grad = gradient
            optimiser.step()
            if config.momentum:
                buffer = optimiser.state[parameter]["momentum_buffer"].tolist()
            right.append((config, time, parameter.tolist()))
    found = calls(path, "sgd_step", cases)
    for returned, (config, time, theta) in zip(found, right, strict=True):
        moved, _ = pair(returned, "theta", "the buffer b")
        if not alike(vector(moved, 2, "theta"), theta):
            used = [
                name
                for name in ("weight_decay", "momentum", "dampening", "nesterov", "maximise")
                if getattr(config, name)
            ]
            raise Wrong(
                f"theta is wrong after step {time} with {' and '.join(used) or 'lr alone'}."
            )
    return "Three steps with each of the settings are the slide's."


def _nucleus(path: Path) -> str:
    rows = table(path, 2)
    try:
        found = {token.strip(): float(probability) for token, probability in rows}
    except ValueError as error:
        raise Wrong("The second column must be numbers.") from error
    tokens = list(NEXT)
    kept = top_p(torch.tensor([[math.log(NEXT[token]) for token in tokens]]), NUCLEUS).softmax(1)[0]
    right = {
        token: probability
        for token, probability in zip(tokens, kept.tolist(), strict=True)
        if probability > 0
    }
    if missing := set(found) - set(NEXT):
        raise Wrong(f"'{sorted(missing)[0]}' is not one of the tokens.")
    if set(found) != set(right):
        more = "more" if len(found) > len(right) else "fewer"
        raise Wrong(f"There are {more} tokens than in the smallest set that has 0.75 together.")
    if any(not near(found[token], right[token]) for token in right):
        if all(near(found[token], NEXT[token]) for token in right):
            raise Wrong("These tokens stay, but their probabilities do not sum to one yet.")
        raise Wrong("These tokens stay; their probabilities are not those of the rest.")
    return "These tokens stay, and their probabilities sum to one."


def _penalties(path: Path) -> str:
    cases = [
        ([1.0, 0.5, -1.0], [0, 0, 0], 0.5, 0.7),
        ([1.0, 0.5, -1.0], [3, 1, 0], 0.5, 0.0),
        ([1.0, 0.5, -1.0], [3, 1, 0], 0.0, 0.7),
        ([0.2, 0.1, 0.3, 2.0], [0, 2, 5, 1], 0.25, -0.5),
    ]
    found = calls(path, "penalise", cases)
    for (logits, counts, frequency, presence), returned in zip(cases, found, strict=True):
        right = penalties(
            torch.tensor([logits]), torch.tensor([counts]), frequency=frequency, presence=presence
        )
        if alike(vector(returned, len(logits)), right[0].tolist()):
            continue
        if not any(counts):
            raise Wrong("Tokens that have not been generated must stay as they are.")
        if not presence:
            raise Wrong("The frequency penalty counts how often a token was generated.")
        if not frequency:
            raise Wrong("The presence penalty is the same however often a token was generated.")
        raise Wrong("Each penalty alone is right, both together are not (one may be negative).")
    return "The scores are those of Elman's decoder."


def _perceptron(path: Path) -> str:
    """Evaluate a network of one hidden layer on points between those of the exercise."""
    network = document(path)
    if not isinstance(network, dict) or network.get("activation") not in ACTIVATIONS:
        raise Wrong(f"'activation' must be one of {', '.join(ACTIVATIONS)}.")
    hidden = [network.get(name) for name in ("W", "b", "U")]
    size = len(hidden[0]) if isinstance(hidden[0], list) else 0
    if not 0 < size <= MOST_UNITS:
        raise Wrong(f"W must be a list of 1 to {MOST_UNITS} numbers, one for each hidden unit.")
    W, b, U = (
        torch.tensor(vector(values, size, name)) for name, values in zip("WbU", hidden, strict=True)
    )
    c = vector([network.get("c")], 1, "c")[0]
    x = torch.linspace(-2.9, 2.9, 101)[:, None]
    y = ACTIVATIONS[network["activation"]](x * W + b) @ U + c
    error = float((y - torch.sin(x[:, 0])).square().mean())
    if not error < MOST_ERROR:
        raise Wrong(f"The mean squared error is {error:.3g}, and less than {MOST_ERROR} is asked.")
    return f"The mean squared error between -3 and 3 is {error:.3g}."


EXERCISES = [
    Exercise(
        id="003-1",
        question="The slide's loop fits the location of a normal distribution with scale 1 by "
        "gradient descent. Where does it end for the data 2.1, 3.4, 2.8, 4.0, 3.2, 2.5?",
        answer="a number, right to 0.2 %",
        judge=_location,
    ),
    Exercise(
        id="003-2",
        question="Write one step of the slide's SGD, sgd_step(theta, gradient, b, t, lr, "
        "weight_decay, momentum, dampening, nesterov, maximize). It returns the new theta and the "
        "new b. theta, gradient and b are lists, b is None at t = 1.",
        answer="a Python file with the function sgd_step",
        judge=_sgd,
    ),
    Exercise(
        id="003-3",
        question="After a prefix a model gives books 0.38, laptops 0.27, minds 0.15, exams 0.12, "
        "eyes 0.05 and doors 0.03. From which distribution does top-p sampling draw with p = 0.75? "
        "Write a row for each token that is left, with its probability.",
        answer="a table of two columns, token and probability, without a header",
        judge=_nucleus,
    ),
    Exercise(
        id="003-4",
        question="Write penalise(logits, counts, frequency, presence), the playground's two "
        "penalties: counts says how often each token was generated so far.",
        answer="a Python file with the function penalise",
        judge=_penalties,
    ),
    Exercise(
        id="003-5",
        question="Fit y = sin(x) between -3 and 3 with a network of one hidden layer of at most 16 "
        "units, with a mean squared error below 0.01. Write "
        '{"activation": "tanh", "W": [...], "b": [...], "U": [...], "c": 0.0}: a hidden unit is '
        "activation(W x + b), and y = U h + c.",
        answer="a JSON document",
        judge=_perceptron,
    ),
]
