"""C10: where the whole input is known, both directions are at least as good as one; slower."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from elman.api import load
from elman.lab.experiment import Experiment, Knob, Question, Row, Trial
from elman.lab.figures import Figure, Panel, accuracies, over_seeds
from elman.lab.texts import write_tagged
from elman.lab.training import fitted, seconds_of
from elman.lab.verses import Verse, all_verses
from elman.nn.stack import Stack, StackConfig

POINTERS, MARKS = "pointers", "marks"
LETTERS = "abcd"
NUM_WORDS, REACH = 20, 2
"""Words of a sentence of pointers, and how far they point."""
MOST_WORDS = 30
"""Verses with more words are left out."""
ONE, BOTH, WIDE = "one direction", "both, equal parameters", "both, equal units"
UNITS = {"tiny": (6, 4), "small": (96, 64), "large": (384, 256)}
"""Units in one direction, and in each of two with as many parameters in total."""
EMBEDDING = {"tiny": 4, "small": 32, "large": 128}


def measure(trial: Trial) -> Iterator[Row]:
    """Train a tagger for each task and number of directions; then time their layers."""
    draw = random.Random(trial.seed)
    train = trial.pick(tiny=64, small=3000, large=15_000)
    test = trial.pick(tiny=16, small=600, large=3000)
    share = float(trial.knob)
    pointers = [pointing(draw, share) for _ in range(train + test)]
    # Without the last word: a full stop there would tell only who knows where a verse ends.
    short = [(w[:-1], m[:-1]) for w, m in all_verses() if 1 < len(w) <= MOST_WORDS]
    for task, rows in ((POINTERS, pointers), (MARKS, draw.sample(short, train + test))):
        write_tagged(trial.folder / f"{task}.txt", rows[test:])
        write_tagged(trial.folder / f"{task}-test.txt", rows[:test])
        for arm in (ONE, BOTH):
            yield from _learn(trial, task, arm)
    yield from timed(trial)


def pointing(draw: random.Random, to_the_right: float) -> Verse:
    """Words such as <a and >b; the tag is the letter of the word 2 to the left or to the right."""
    words = [
        (">" if draw.random() < to_the_right else "<") + draw.choice(LETTERS)
        for _ in range(NUM_WORDS)
    ]
    places = [i + (REACH if word[0] == ">" else -REACH) for i, word in enumerate(words)]
    tags = [words[place][1] if 0 <= place < len(words) else "none" for place in places]
    return tuple(words), tuple(tags)


def num_weights(units: int, inputs: int, directions: int) -> int:
    """Parameters of a layer of LSTM cells."""
    return directions * 4 * units * (inputs + units + 1)


def timed(trial: Trial) -> Iterator[Row]:
    """The quickest of several passes forward and backward, the arms in turn."""
    one, each = UNITS[trial.size]
    inputs_BTE = torch.randn(32, MOST_WORDS, EMBEDDING[trial.size], device=trial.device)
    stacks = {
        arm: Stack(
            StackConfig(hidden_size=units), EMBEDDING[trial.size], bidirectional=arm != ONE
        ).to(trial.device)
        for arm, units in ((ONE, one), (BOTH, each), (WIDE, one))
    }
    best = dict.fromkeys(stacks, math.inf)
    for _ in range(trial.pick(tiny=2, small=40, large=40)):
        for arm, stack in stacks.items():
            seconds = seconds_of(partial(_pass, stack, inputs_BTE), trial.device)
            best[arm] = min(best[arm], seconds)
    for arm, seconds in best.items():
        words = inputs_BTE.shape[0] * inputs_BTE.shape[1]
        yield {"timed": arm, "milliseconds": 1e3 * seconds / words * 1e3}


def _pass(stack: Stack, inputs_BTE: Tensor) -> None:
    hidden_BTH, _ = stack(inputs_BTE)
    torch.autograd.backward(hidden_BTH.sum())


def _learn(trial: Trial, task: str, arm: str) -> Iterator[Row]:
    one, each = UNITS[trial.size]
    steps = trial.pick(tiny=3, small=250, large=1200)
    settings = {
        "model.bidirectional": arm != ONE,
        "model.hidden_size": each if arm == BOTH else one,
        "model.embedding_size": EMBEDDING[trial.size],
        "model.num_layers": 1,
        "model.characters": "none",
        "model.output": "softmax",
        "model.dropout_input": 0.0 if task == POINTERS else 0.1,
        "model.dropout_hidden": 0.0,
        "model.dropout_output": 0.0 if task == POINTERS else 0.1,
        "optimiser.learning_rate": 0.01,
        "training.batch_size": 32,
        "training.validate_every": steps,
        "training.report_every": max(1, steps // 12),
    }
    data, test = ([trial.folder / f"{task}{part}.txt"] for part in ("", "-test"))
    out = f"{task}-{arm}"
    for report in fitted(
        trial, "tagger", data, valid=test, out=out, settings=settings, steps=steps
    ):
        if report.loss is not None:
            yield {"learning": arm, "on": task, "update": report.step, "loss": report.loss}
    handle = load(trial.folder / out, device=trial.device)
    accuracy = handle.evaluate(test[0]).accuracy
    weights = sum(each.numel() for each in handle.model.stack.parameters())
    yield {"task": task, "arm": arm, "accuracy": accuracy, "parameters": weights}


def gain(rows: Sequence[Row], task: str) -> float:
    """Accuracy of both directions less that of one, in points."""
    found = {row["arm"]: row["accuracy"] for row in rows if row.get("task") == task}
    return 100 * float(found[BOTH] - found[ONE])


def times_slower(rows: Sequence[Row]) -> float:
    """Time for a word in training: both directions, over one direction with the units of each."""
    found = {row["timed"]: row["milliseconds"] for row in rows if "timed" in row}
    return float(found[WIDE] / found[ONE])


TASKS = {POINTERS: "pointers (made)", MARKS: "punctuation (real)"}


def figure(rows: Sequence[Row]) -> Figure:
    times = [{**row, "name": row["timed"].replace(" ", "\n")} for row in rows if "timed" in row]
    return Figure(
        panels=[
            Panel(
                title="Tagging at equal parameters",
                x_label="task",
                y_label="words with the right tag (%)",
                kind="bars",
                series=accuracies(rows, TASKS, by="arm"),
            ),
            Panel(
                title="Punctuation: training",
                x_label="updates",
                y_label="loss (nats per word)",
                series=over_seeds(
                    [row for row in rows if row.get("on") == MARKS],
                    x="update",
                    y="loss",
                    by="learning",
                ),
            ),
            Panel(
                title="Time to train",
                x_label="layer",
                y_label="milliseconds for 1,000 words",
                kind="bars",
                series=over_seeds(times, x="name", y="milliseconds", name="time"),
            ),
        ],
        caption="Means over seeds with 95 % intervals.",
    )


def _question(task: str, prediction: float) -> Question:
    return Question(
        name=f"{TASKS[task]}: both directions less one, equal parameters",
        unit="points",
        prediction=prediction,
        minimum=-0.5,
        effect=partial(gain, task=task),
    )


EXPERIMENT = Experiment(
    id="C10",
    title="one direction or two",
    claim="Where the whole input is known, as in tagging, bidirectional networks usually do at "
    "least as well as unidirectional ones; they are slower to train.",
    sources=(
        "000: bidirectional RNNs",
        "003: bi-directional LMs, strengths and weaknesses",
        "004: bidirectional RNNs",
    ),
    design="Taggers with one layer of LSTM cells: 96 units from left to right, or 64 units in each "
    "direction, which have as many parameters (49,536 and 49,664). 250 updates on 32 sentences "
    "each, 3,000 sentences to learn from, 600 to test. By construction: 20 words such as <a and "
    ">b; the tag is the letter of the word 2 places to the left or right, as the arrow says. "
    "On real text: verses of the King James Bible in lower case without punctuation; the tag is "
    "the mark that followed the word; the last word, with its full stop, is left out. At least as "
    "well: not worse by more than half a point. "
    "For the time, the layers of the taggers and one of 96 units in each direction, the usual way "
    "to go from one to two, read 32 sentences of 30 words forward and backward in turn; the "
    "quickest of 40 passes counts.",
    questions=(
        _question(POINTERS, 35.0),
        _question(MARKS, 3.0),
        Question(
            name="time to train on a word: both directions over one, equal units",
            unit="times",
            prediction=1.8,
            minimum=1.2,
            effect=times_slower,
        ),
    ),
    knob=Knob(
        name="right",
        meaning="share of the made words whose tag stands to their right",
        values=(0.0, 0.25, 0.5, 0.75, 1.0),
        default=0.5,
        broken=0.0,
    ),
    breaks="With 0, only what is to the left matters, and both tag the pointers alike: the second "
    "direction brings nothing there. It does not hurt either, so that the claim, which is that it "
    "does not, stands; punctuation is not touched by the knob.",
    limits="Both directions must see the end of the sentence before the first tag is known: text "
    "that is still being written, or generated, has no right side to read. Tags of the verses come "
    "from the text itself; other tags lean less on what follows.",
    measure=measure,
    figure=figure,
    equations=(
        "elman.nn.bidirectional:Bidirectional",
        "elman.tasks.tagging.model:Tagger.emissions",
    ),
    reading=(
        "Schuster and Paliwal (1997), Bidirectional recurrent neural networks",
        "Graves and Schmidhuber (2005), Framewise phoneme classification with bidirectional LSTM",
    ),
    seconds=100,
    alone=True,
)
