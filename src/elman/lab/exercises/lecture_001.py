"""Exercises on training recurrent language models and on ELMo (lecture 001)."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from elman.lab.exercises.answers import alike, calls, model, near, number, vector
from elman.lab.exercises.exercise import Exercise, Wrong
from elman.lab.exercises.texts import OBJECTS, UNSEEN
from elman.nn.layer_mix import LayerMix
from elman.tasks.language_model_handle import LM
from elman.train.gradients import clip

PROBABILITIES = (0.2, 0.5, 0.1, 0.4)
U = ((0.5, 1.0), (-0.2, 0.5))
LEAST_SHARE = 0.9


def _loss(path: Path) -> str:
    answer = number(path)
    surprisals = [-math.log(probability) for probability in PROBABILITIES]
    total = sum(surprisals)
    right = total / len(surprisals)
    if near(answer, right):
        return "It is the mean of the four surprisals."
    if near(answer, total):
        raise Wrong("That is the sum: the loss is the average over the time steps.")
    if near(answer, right / math.log(2)):
        raise Wrong("That is in bits: the loss uses the natural logarithm.")
    if near(answer, math.exp(right)):
        raise Wrong("That is the perplexity, the exponential of the loss.")
    raise Wrong("It is not the average of -log P of the four true words.")


def _clip(path: Path) -> str:
    cases = [([3.0, 4.0], 1.0), ([0.3, -0.4], 1.0), ([0.0, 0.0, 0.0], 2.0), ([-6.0, 0.5, 2.0], 3.0)]
    found = calls(path, "clip", cases)
    for (gradient, threshold), returned in zip(cases, found, strict=True):
        clipped = vector(returned, len(gradient))
        parameter = torch.nn.Parameter(torch.zeros(len(gradient), dtype=torch.float64))
        parameter.grad = torch.tensor(gradient, dtype=torch.float64)
        clip([parameter], threshold)
        if alike(clipped, parameter.grad.tolist()):
            continue
        if math.hypot(*gradient) < threshold:
            raise Wrong("A gradient whose norm is below the threshold must stay as it is.")
        if alike(clipped, [max(-threshold, min(threshold, value)) for value in gradient]):
            raise Wrong("Each number is clipped by itself here, which changes the direction.")
        raise Wrong("A long gradient must keep its direction and have the threshold as its norm.")
    return "The gradients are those of Elman's own clipping."


def _scale(path: Path) -> str:
    answer = number(path)
    matrix = torch.tensor(U, dtype=torch.float64)
    radius = float(torch.linalg.eigvals(matrix).abs().max())
    if near(answer, 1 / radius):
        return "With this factor the largest eigenvalue has an absolute value of 1."
    if near(answer, radius):
        raise Wrong("That is the largest absolute value of an eigenvalue now, not the factor.")
    if near(answer, 1 / float(torch.linalg.matrix_norm(matrix, 2))):
        raise Wrong("That makes the largest singular value 1: powers follow the eigenvalues.")
    grown = float(torch.linalg.matrix_norm(torch.linalg.matrix_power(matrix * answer, 200)))
    happens = "vanishes" if grown < 1 else "explodes"
    raise Wrong(f"With this factor the product of 200 steps still {happens}.")


def _shares(path: Path) -> str:
    lm = model(path, LM)
    things = {f" {thing}": kind for kind in OBJECTS for thing in OBJECTS[kind]}
    share = dict.fromkeys(OBJECTS, 0.0)
    for thing, kind in things.items():
        # A model of characters takes several tokens for the noun, so lines are compared.
        share[kind] += math.exp(lm.logprob(UNSEEN + thing, include_end=False))
    total = sum(share.values())
    if total == 0:
        raise Wrong("The model gives every one of these nouns the probability 0.")
    part = share["learners"] / total
    if part < LEAST_SHARE:
        raise Wrong(
            f"{part:.0%} of the nouns' probability goes to what learners open, and "
            f"{LEAST_SHARE:.0%} is asked for: does the model read the subject, and long enough?"
        )
    return f"{part:.0%} of the nouns' probability goes to what learners open."


def _mix(path: Path) -> str:
    cases = [
        ([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]], [0.0, 0.0, 0.0], 1.0),
        ([[1.0, -1.0], [0.5, 2.0], [3.0, 0.0]], [1.0, -2.0, 0.5], 0.3),
    ]
    found = calls(path, "elmo_vector", cases)
    for (layers, weights, gamma), returned in zip(cases, found, strict=True):
        mixed = vector(returned, 2)
        layers_LBTD = torch.tensor(layers, dtype=torch.float64)[:, None, None]
        mix = LayerMix(len(layers), 2, "mix", layer_norm=False, scale=gamma).double()
        assert mix.weights_L is not None
        with torch.no_grad():
            mix.weights_L.copy_(torch.tensor(weights))
            right = mix(layers_LBTD)[0, 0]
            plain = gamma * (torch.tensor(weights).double()[:, None] * layers_LBTD[:, 0, 0]).sum(0)
        if alike(mixed, right.tolist()):
            continue
        if alike(mixed, plain.tolist()):
            raise Wrong("The weights are used as they are: they pass through a softmax first.")
        if alike(mixed, (right / gamma).tolist()):
            raise Wrong("The factor gamma is missing.")
        raise Wrong("The vector is not the weighted sum of the layers.")
    return "The vectors are those of LayerMix."


EXERCISES = [
    Exercise(
        id="001-1",
        question="A model reads a sentence of four words and gives the true next words the "
        "probabilities 0.2, 0.5, 0.1 and 0.4. What is the loss of this sentence?",
        answer="a number, right to 1 %",
        judge=_loss,
    ),
    Exercise(
        id="001-2",
        question="Write clip(gradient, threshold): norm clipping of a gradient, a list of numbers.",
        answer="a Python file with the function clip",
        judge=_clip,
    ),
    Exercise(
        id="001-3",
        question="A recurrent network without nonlinearity has U = [[0.5, 1.0], [-0.2, 0.5]]. By "
        "which factor must U be multiplied so that gradients through many steps neither vanish "
        "nor explode?",
        answer="a number, right to 1 %",
        judge=_scale,
    ),
    Exercise(
        id="001-4",
        question='In school.txt, "scholars opened their" does not occur. Train a model on it that '
        "nevertheless gives 90 % of the nouns' probability after this prefix to what learners open "
        "(books, laptops, exams, minds), and only 10 % to the cooks' things.",
        answer="a run folder",
        judge=_shares,
    ),
    Exercise(
        id="001-5",
        question="Write elmo_vector(layers, weights, gamma): the vector that a task reads for one "
        "word. layers is a list of vectors, lowest first; weights are numbers of any size and "
        "sign, as they are learnt, one per layer.",
        answer="a Python file with the function elmo_vector",
        judge=_mix,
    ),
]
