"""C11: the mean or maximum of all states encodes a sentence better than the last state."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial

from elman.api import load
from elman.lab.experiment import Experiment, Knob, Question, Row, Trial
from elman.lab.figures import Figure, Panel, accuracies, over_seeds
from elman.lab.texts import write_labelled
from elman.lab.training import fitted
from elman.text.corpora import materialise
from elman.text.sources import file_lines

POOLINGS = ("last", "mean", "max")
SIGNAL, TRANSLATION = "signal", "translation"
NUM_WORDS = 80
"""Words of a text with a signal."""
MOST_WORDS = 40
"""Verses with more words are left out."""
BINS = 8
"""Groups of distances from the signal to the end."""

Labelled = tuple[str, str]
"""A label and a text."""


def measure(trial: Trial) -> Iterator[Row]:
    """Train a classifier for each task and pooling; then classify new texts."""
    draw = random.Random(trial.seed)
    train = trial.pick(tiny=64, small=6000, large=30_000)
    test = trial.pick(tiny=24, small=1500, large=6000)
    signals = [signal_text(draw, draw.randrange(NUM_WORDS)) for _ in range(train + test)]
    for task, rows in ((SIGNAL, signals), (TRANSLATION, verses(draw, train + test))):
        write_labelled(trial.folder / f"{task}.tsv", rows[test:])
        write_labelled(trial.folder / f"{task}-valid.tsv", rows[test : test + test // 4])
        for pooling in POOLINGS:
            yield from _learn(trial, task, pooling)
            handle = load(trial.folder / f"{task}-{pooling}", device=trial.device)
            found = [each.label for each in handle.classify_all(text for _, text in rows[:test])]
            right = [label == guess for (label, _), guess in zip(rows[:test], found, strict=True)]
            about = {"task": task, "pooling": pooling}
            yield about | {"accuracy": sum(right) / test}
            if task == SIGNAL:
                yield from by_distance(pooling, rows[:test], right)


def signal_text(draw: random.Random, place: int) -> Labelled:
    """Random words, one of them a signal; the label says which of the two it is."""
    words = [f"w{draw.randrange(20)}" for _ in range(NUM_WORDS)]
    label = draw.choice(("yes", "no"))
    words[place] = f"signal{label}"
    return label, " ".join(words)


def distance(text: str) -> int:
    """Steps from the signal to the last word."""
    place = next(i for i, word in enumerate(text.split()) if word.startswith("signal"))
    return NUM_WORDS - 1 - place


def by_distance(pooling: str, rows: Sequence[Labelled], right: Sequence[bool]) -> Iterator[Row]:
    width = NUM_WORDS // BINS
    groups: dict[int, list[bool]] = {}
    for (_, text), is_right in zip(rows, right, strict=True):
        groups.setdefault(distance(text) // width, []).append(is_right)
    for group, answers in sorted(groups.items()):
        middle = group * width + (width - 1) / 2
        yield {"signal": pooling, "distance": middle, "share": sum(answers) / len(answers)}


def verses(draw: random.Random, number: int) -> list[Labelled]:
    """Verses in one of two translations; none occurs in both, or twice.

    Verses that both translate alike are left out, and repeated ones are used once.
    """
    files = materialise("kjv-asv")
    seen: set[str] = set()
    short = []
    for pair in zip(*map(file_lines, files), strict=True):
        both = [verse.strip() for verse in pair]
        if max(len(verse.split()) for verse in both) > MOST_WORDS:
            continue
        if both[0] != both[1] and not seen.intersection(both):
            short.append(both)
        seen.update(both)
    draw.shuffle(short)
    rows = []
    for both in short[:number]:
        which = draw.randrange(2)
        rows.append((files[which].stem, both[which]))
    return rows


def _learn(trial: Trial, task: str, pooling: str) -> Iterator[Row]:
    steps = trial.pick(tiny=3, small=300, large=1000)
    settings = {
        "data.column": "1",
        "data.text_column": "2",
        "tokenizer.kind": "word",
        "model.cell": trial.knob,
        "model.bidirectional": False,
        "model.pooling": [pooling],
        "model.hidden_size": trial.pick(tiny=8, small=64, large=256),
        "model.embedding_size": trial.pick(tiny=8, small=32, large=128),
        "optimiser.learning_rate": 0.003,
        "training.batch_size": 32,
        "training.validate_every": steps,
        "training.report_every": max(1, steps // 15),
    }
    data, valid = ([trial.folder / f"{task}{part}.tsv"] for part in ("", "-valid"))
    out = f"{task}-{pooling}"
    for report in fitted(
        trial, "classifier", data, valid=valid, out=out, settings=settings, steps=steps
    ):
        if report.loss is not None:
            yield {"learning": pooling, "on": task, "update": report.step, "loss": report.loss}


def gain(rows: Sequence[Row], task: str, pooling: str) -> float:
    """Accuracy of a way of pooling less that of the last state, in points."""
    found = {row["pooling"]: row["accuracy"] for row in rows if row.get("task") == task}
    return 100 * float(found[pooling] - found["last"])


TASKS = {SIGNAL: "which of two signals", TRANSLATION: "which translation"}


def figure(rows: Sequence[Row]) -> Figure:
    return Figure(
        panels=[
            Panel(
                title="Accuracy",
                x_label="task",
                y_label="texts that are right (%)",
                kind="bars",
                series=accuracies(rows, TASKS, by="pooling"),
                levels={"chance": 50.0},
            ),
            Panel(
                title="Which of two signals, by its distance",
                x_label="steps from the signal to the end",
                y_label="share of texts that are right",
                series=over_seeds(rows, x="distance", y="share", by="signal"),
            ),
            Panel(
                title="Training: which translation",
                x_label="updates",
                y_label="loss (nats per text)",
                series=over_seeds(
                    [row for row in rows if row.get("on") == TRANSLATION],
                    x="update",
                    y="loss",
                    by="learning",
                ),
            ),
        ],
        caption="By the way of pooling. Means over seeds with 95 % intervals.",
    )


def _question(task: str, pooling: str, prediction: float) -> Question:
    return Question(
        name=f"{TASKS[task]}: {pooling} less last state",
        unit="points",
        prediction=prediction,
        minimum=1.0,
        effect=partial(gain, task=task, pooling=pooling),
    )


EXPERIMENT = Experiment(
    id="C11",
    title="how to encode a sentence",
    claim="To encode a sentence for classification one can take the last hidden state; usually "
    "better is the element-wise maximum or mean of all hidden states.",
    sources=("000: how to compute a sentence encoding?",),
    design="Classifiers with 64 units that read from left to right, equal but for the pooling: "
    "last state, mean or maximum; 300 updates on 32 texts each. Two tasks, 6,000 texts to learn "
    "from and 1,500 to test. By construction: 80 random words, one of which is one of two signals "
    "at a random place; which? So it is known how far the answer has to be carried to the last "
    "state. On real text: a verse of at most 40 words; is it from the King James or from the "
    "American Standard Bible? No verse occurs twice, in one translation or in both, and those "
    "that both have word for word are left out. The "
    "cell is the lecture's: a vanilla RNN (tanh).",
    questions=(
        _question(SIGNAL, "mean", 20.0),
        _question(SIGNAL, "max", 20.0),
        _question(TRANSLATION, "mean", 5.0),
        _question(TRANSLATION, "max", 5.0),
    ),
    knob=Knob(
        name="cell",
        meaning="the recurrent cell",
        values=("rnn", "gru", "lstm"),
        default="rnn",
        broken="lstm",
    ),
    breaks="A gated cell carries what matters to the end by itself: with an LSTM no pooling is "
    "ahead of the last state beyond the spread of the seeds.",
    limits="At 30 words instead of 80, the last state of a vanilla RNN knew the signal as well, in "
    "a first try: the gain depends on the distance. The maximum and the mean also shorten the way "
    "of the gradient to each word, so a part of the gain is speed of learning: at 300 updates it "
    "counts, with many more it may not.",
    measure=measure,
    figure=figure,
    equations=(
        "elman.tasks.classification.pooling:Pool.forward",
        "elman.tasks.classification.model:Classifier.encode",
    ),
    reading=(
        "Conneau and others (2017), Supervised learning of universal sentence representations "
        "from natural language inference data",
    ),
    seconds=90,
)
