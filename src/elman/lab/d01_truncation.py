"""D1: backpropagation truncated after T steps is not a window of T words."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

import elman
from elman.lab.experiment import Experiment, Knob, Question, Row, Trial
from elman.lab.figures import Figure, Panel, over_seeds
from elman.lab.texts import written
from elman.lab.training import PLAIN, fitted

T = 5
LONGEST, MEAN_MORE = 30, 8
"""The longest distance of a mark, and the mean beyond the shortest one, in words."""
MARKS = ("red", "blue")
FILLERS = ("and", "then", "so", "now")
MODELS: dict[str, tuple[str, int, dict[str, Any]]] = {
    f"lstm, truncated after {T}": ("lm", T, {"model.cell": "lstm", "model.hidden_size": 32}),
    "lstm, truncated after 40": ("lm", 40, {"model.cell": "lstm", "model.hidden_size": 32}),
    f"window of {T}": ("window", T, {"model.window_size": T, "model.hidden_size": 32}),
}
TRUNCATED, LONG, WINDOW = MODELS


def line(draw: random.Random, mark: str, distance: int) -> str:
    """A mark, other words, a question, and the mark again `distance` words after the first."""
    return " ".join([mark, *draw.choices(FILLERS, k=distance - 2), "which", mark])


def text(seed: int, shortest: int, num_lines: int) -> list[str]:
    """Lines with random marks; each further word of distance is less likely than the last."""
    draw = random.Random(seed)
    distances = [
        min(LONGEST, shortest + int(draw.expovariate(1 / MEAN_MORE))) for _ in range(num_lines)
    ]
    return [line(draw, draw.choice(MARKS), distance) for distance in distances]


def measure(trial: Trial) -> Iterator[Row]:
    """Train each model on the same text; how well it recalls the mark, by distance."""
    num_lines = trial.pick(tiny=300, small=3000, large=12_000)
    lines = text(trial.seed, int(trial.knob), num_lines)
    train = written(trial, "train.txt", lines)
    valid = written(trial, "valid.txt", text(1000 + trial.seed, int(trial.knob), 40))
    for name, (task, chunk_length, own) in MODELS.items():
        settings = {
            **PLAIN,
            "tokenizer.kind": "word",
            "tokenizer.min_count": 1,
            "model.embedding_size": 16,
            "training.chunk_length": chunk_length,
            **own,
        }
        if task == "lm":
            settings["model.tied"] = False
        steps = trial.pick(tiny=2, small=1000, large=4000)
        out = name.replace(" ", "-").replace(",", "")
        for _ in fitted(
            trial, task, [train], valid=[valid], out=out, settings=settings, steps=steps
        ):
            pass
        lm = elman.load(trial.folder / out, device=trial.device)
        marks = torch.tensor([lm.tokenizer.id(mark) for mark in MARKS], device=trial.device)
        draw = random.Random(trial.seed)
        for distance in range(2, LONGEST + 1, trial.pick(tiny=7, small=1, large=1)):
            yield {"model": name, "distance": distance, "share": recall(lm, draw, marks, distance)}


def recall(lm: elman.LM, draw: random.Random, marks: torch.Tensor, distance: int) -> float:
    """The mean share of the right mark, of both, after fresh lines."""
    shares = []
    for right, mark in enumerate(MARKS):
        lines = [line(draw, mark, distance) for _ in range(8)]
        ids_BT = torch.tensor([lm.tokenizer.encode(each).tolist()[:distance] for each in lines])
        first_B1 = torch.full((len(lines), 1), lm.tokenizer.boundary_id)
        tokens_BT = torch.cat([first_B1, ids_BT], dim=1).to(marks.device)
        state = lm.model.initial_state(len(lines))
        with torch.no_grad():
            for tokens_B in tokens_BT.T:
                logprobs_BV, state = lm.model.step(tokens_B, state)
        shares.append(logprobs_BV[:, marks].softmax(1)[:, right].mean().item())
    return sum(shares) / len(shares)


def beyond(rows: Sequence[Row], model: str) -> float:
    """The mean share of the right mark where it is further back than T words."""
    found = [float(r["share"]) for r in rows if r["model"] == model and r["distance"] > T]
    return sum(found) / len(found)


def window_off_chance(rows: Sequence[Row]) -> float:
    return beyond(rows, WINDOW) - 0.5


def figure(rows: Sequence[Row]) -> Figure:
    return Figure(
        panels=[
            Panel(
                title="What is recalled",
                x_label="distance of the mark (words)",
                y_label="share of the right mark",
                series=over_seeds(rows, x="distance", y="share", by="model"),
                levels={"chance": 0.5},
            )
        ],
        caption="Means over seeds with 95 % intervals.",
    )


EXPERIMENT = Experiment(
    id="D1",
    title="truncation is not a window",
    claim="Backpropagation through time is truncated: the weights are updated every T steps. This "
    'is not equivalent to using only a window of size T, because we still have "infinite memory".',
    sources=("003: training process",),
    design=f"Made-up lines: a mark, red or blue, up to {LONGEST - 2} other words (about "
    f"{MEAN_MORE} on average, few more often than many), the word *which*, and the mark again, so "
    "that it must be recalled. An LSTM with 32 units is trained by updates "
    f"every {T} words, from the state that the last words left; a window model reads {T} words; "
    "an LSTM truncated after 40 words is there for comparison. All take 1,000 updates. "
    "On fresh lines, the share of the right mark is P(right) / (P(red) + P(blue)), a "
    f"mean over all distances beyond {T}. No gradient ever spans such a distance; lines "
    "with shorter ones teach the cell to keep a mark.",
    questions=(
        Question(
            name=f"lstm truncated after {T}: share of the right mark beyond {T} words",
            unit="",
            prediction=0.95,
            minimum=0.8,
            effect=partial(beyond, model=TRUNCATED),
        ),
        Question(
            name=f"window of {T}: distance of that share from chance",
            unit="",
            prediction=0.0,
            minimum=0.1,
            rule="within",
            effect=window_off_chance,
        ),
    ),
    knob=Knob(
        name="shortest distance",
        meaning="shortest distance in the training text, in words",
        values=(2, 4, 6, 10, 20),
        default=2,
        broken=20,
    ),
    breaks="If every distance in the text is longer than T, no gradient ever tells the cell to "
    "keep a mark. The memory is there, and nothing teaches its use: what is not learnt within T "
    "steps is learnt by luck, from the traces that a random recurrence keeps: with a shortest "
    "distance of 20, some seeds learn it and others do not.",
    limits="The text is made so that keeping is easy to learn from short distances and carries "
    "over to long ones. Where near and far ask for different things, truncation does cost.",
    measure=measure,
    figure=figure,
    equations=("elman.train.loop", "elman.batches.lanes:Lanes"),
    reading=(
        "Williams and Peng (1990), An efficient gradient-based algorithm for on-line training of "
        "recurrent network trajectories",
        "Tallec and Ollivier (2017), Unbiasing truncated backpropagation through time",
    ),
    seconds=75,
)
