"""Exercises on recurrent architectures, sequence to sequence and attention (lecture 002)."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from elman.lab.exercises.answers import alike, calls, model, near, number, pair, table, vector
from elman.lab.exercises.exercise import Exercise, Wrong
from elman.lab.exercises.texts import messages
from elman.nn.attention import Attention

INPUTS = (1.0, 0.0, 1.0, 0.0)
TRUNCATED = 2
SENTENCE = "students opened their books ."
BOUNDARY = "<eos>"
EMBEDDING_SIZE, HIDDEN_SIZE = 32, 64
LEAST_ACCURACY = 0.9


def _teacher_forcing(path: Path) -> str:
    rows = [(row[0].strip(), row[1].strip()) for row in table(path, 2)]
    tokens = [BOUNDARY, *SENTENCE.split(), BOUNDARY]
    right = list(pairwise(tokens))
    if rows == right:
        return "Each word is predicted from the true word before it, the end included."
    if rows == [(word, word) for word in tokens[1:-1]]:
        raise Wrong("The input is the word itself here: a model would only learn to copy.")
    if rows == [(later, earlier) for earlier, later in right]:
        raise Wrong("Input and target are exchanged.")
    if rows == right[1:]:
        raise Wrong("The first word has to be predicted too: from which token?")
    if rows == right[:-1]:
        raise Wrong("A model must also learn where a sentence ends.")
    raise Wrong("Each target must be the input of the next row, from boundary to boundary.")


def _truncated(path: Path) -> str:
    answer = number(path)
    right, whole = _slope(TRUNCATED), _slope(len(INPUTS))
    if near(answer, right):
        return "Automatic differentiation through the last two steps gives the same."
    if near(answer, whole):
        raise Wrong("That goes back to the beginning: the gradient must be cut after two steps.")
    if near(answer, _slope(1)):
        raise Wrong("That is the last step alone, with the state before it as a constant.")
    if near(answer, right + _slope(1)) or near(answer, whole - right):
        raise Wrong("The steps are summed in another way than the chain rule does.")
    raise Wrong("Treat h(2) as a constant, and differentiate h(4) with respect to u.")


def _slope(num_steps: int) -> float:
    """The derivative of the last state with respect to u through the last `num_steps` steps."""
    u = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    h = torch.zeros((), dtype=torch.float64)
    for time, x in enumerate(INPUTS):
        if time == len(INPUTS) - num_steps:
            h = h.detach()
        h = torch.sigmoid(u * h + x)
    (gradient,) = torch.autograd.grad(h, u)
    return float(gradient)


def _window(path: Path) -> str:
    answer = number(path)
    sizes = [nn.Linear(size * EMBEDDING_SIZE, HIDDEN_SIZE).weight.numel() for size in (3, 8)]
    if answer == sizes[1] - sizes[0]:
        return "W has this many weights more; U of a recurrent network would have none more."
    if answer in sizes:
        raise Wrong("That is the size of W for one of the windows, not the growth.")
    if answer == 5 * EMBEDDING_SIZE:
        raise Wrong("That is how much longer e is: each hidden unit has a weight for each of it.")
    raise Wrong("W maps the concatenated embeddings to the hidden layer: which shape has it?")


def _attention(path: Path) -> str:
    generator = torch.Generator().manual_seed(0)
    cases: list[list[Any]] = []
    for num_states, size in ((3, 2), (5, 4)):
        numbers = torch.randn(num_states + 1, size, generator=generator, dtype=torch.float64)
        cases.append([numbers[0].tolist(), numbers[1:].tolist()])
    attend = Attention("dot", 0, 0)
    for (query, states), returned in zip(cases, calls(path, "attention", cases), strict=True):
        weights, context = pair(returned, "the weights", "the context")
        memory_BSM = torch.tensor([states])
        mask_BS = torch.ones(1, len(states), dtype=torch.bool)
        right_BTM, weights_BTS = attend(torch.tensor([[query]]), memory_BSM, memory_BSM, mask_BS)
        found = vector(weights, len(states), "The weights")
        if not alike(found, weights_BTS[0, 0].tolist()):
            scores = (memory_BSM[0] @ torch.tensor(query)).tolist()
            if alike(found, scores):
                raise Wrong("These are the scores: the weights are their softmax.")
            total = f"{sum(found):.3g}"
            raise Wrong(f"The weights are wrong; they sum to {total}, and yours should sum to 1.")
        if not alike(vector(context, len(query), "The context"), right_BTM[0, 0].tolist()):
            raise Wrong("The weights are right; the context is their weighted sum of the states.")
    return "Weights and contexts agree with dot-product attention on random states."


def _spam(path: Path) -> str:
    reader: Any = model(path, object)
    if not hasattr(reader, "classify_all"):
        raise Wrong("The folder holds another kind of model: it must give a text a label.")
    fresh = messages(200, seed=99)
    found = [guess.label for guess in reader.classify_all(text for _, text in fresh)]
    accuracy = sum(label == guess for (label, _), guess in zip(fresh, found, strict=True)) / len(
        fresh
    )
    if accuracy < LEAST_ACCURACY:
        raise Wrong(f"{accuracy:.1%} of 200 new messages are right, not {LEAST_ACCURACY:.0%}.")
    return f"{accuracy:.1%} of 200 new messages are right."


EXERCISES = [
    Exercise(
        id="002-1",
        question=f'Teacher forcing on "{SENTENCE}": write one row for each step, the input and the '
        f"target between a tab. The boundary token {BOUNDARY} stands before and after a sentence.",
        answer="a table of two columns, without a header",
        judge=_teacher_forcing,
    ),
    Exercise(
        id="002-2",
        question="A network of one unit, h(t) = sigmoid(u h(t-1) + x(t)) with u = 1 and h(0) = 0, "
        "reads 1, 0, 1, 0. What is the derivative of h(4) with respect to u if backpropagation is "
        "truncated after two steps, that is, h(2) counts as a constant?",
        answer="a number, right to 1 %",
        judge=_truncated,
    ),
    Exercise(
        id="002-3",
        question="A fixed-window model has embeddings of 32 numbers and 64 hidden units. How many "
        "weights more has W with a window of 8 words than with 3?",
        answer="a number",
        judge=_window,
    ),
    Exercise(
        id="002-4",
        question="Write attention(query, states), dot-product attention: it returns the weights "
        "and the context. query is the decoder's state, states are the encoder's, as lists.",
        answer="a Python file with the function attention",
        judge=_attention,
    ),
    Exercise(
        id="002-5",
        question="Train a model on spam.tsv that labels 90 % of messages right that it has never "
        "seen. (The check makes new ones.)",
        answer="a run folder",
        judge=_spam,
    ),
]
