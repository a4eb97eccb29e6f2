"""C6: neural language models share what they learn across similar prefixes; n-grams do not."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import elman
from elman.lab.experiment import Experiment, Knob, Question, Row, Trial
from elman.lab.figures import Figure, Panel, over_seeds
from elman.lab.texts import written
from elman.lab.training import PLAIN, fitted

GROUPS = {
    "students": ("pupils", "scholars", "undergraduates", "learners", "freshmen", "trainees"),
    "cooks": ("chefs", "bakers", "brewers", "butchers", "waiters", "caterers"),
}
"""Words of a group are used alike; two of each are never seen to open or lose anything."""
NUM_NEW = 2
THINGS = {
    "students": {"opened": "books", "closed": "laptops", "lost": "notes", "found": "pens"},
    "cooks": {"opened": "ovens", "closed": "kitchens", "lost": "knives", "found": "spices"},
}
"""What a group does its verb to: the verb alone leaves two equally likely things."""
TELLING = {
    "students": ("the {} read in the library", "the {} pass an exam", "the {} write an essay"),
    "cooks": ("the {} taste the soup", "the {} heat the stove", "the {} wash the dishes"),
}
NEUTRAL = ("the {} are here", "we saw the {} today", "where are the {} now")
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "n-gram": ("ngram", {"model.order": 5}),
    "window": ("window", {"model.window_size": 3, "model.hidden_size": 48}),
    "rnn": ("lm", {"model.cell": "rnn", "model.hidden_size": 48, "model.tied": False}),
    "lstm": ("lm", {"model.cell": "lstm", "model.hidden_size": 48, "model.tied": False}),
}


def sentences(seed: int, telling: float, num_lines: int) -> tuple[list[str], dict[str, list[str]]]:
    """Lines of made-up text, and the words of each group that never open or lose anything.

    All other words of a group do so in half of their lines. `telling` is the share of the other
    lines that only the words of one group occur in.
    """
    draw = random.Random(seed)
    new = {group: draw.sample(words, NUM_NEW) for group, words in GROUPS.items()}
    lines = []
    for _ in range(num_lines // 2):
        for group, words in GROUPS.items():  # as many lines of each
            word = draw.choice([group, *words])
            if word not in new[group] and draw.random() < 0.5:
                verb = draw.choice(list(THINGS[group]))
                lines.append(f"{word} {verb} their {THINGS[group][verb]}")
            else:
                frames = TELLING[group] if draw.random() < telling else NEUTRAL
                lines.append(draw.choice(frames).format(word))
    draw.shuffle(lines)  # in turns, the group of a line would tell that of the next
    return lines, new


def measure(trial: Trial) -> Iterator[Row]:
    """Train each model, then ask it what the new words opened, closed, lost and found."""
    num_lines = trial.pick(tiny=200, small=4000, large=8000)
    lines, new = sentences(trial.seed, float(trial.knob), num_lines)
    train = written(trial, "train.txt", lines)
    valid = written(trial, "valid.txt", lines[: max(20, num_lines // 40)])
    for name, (task, own) in MODELS.items():
        settings = {"tokenizer.kind": "word", "tokenizer.min_count": 1, **own}
        steps = None
        if name != "n-gram":
            steps = trial.pick(tiny=3, small=500, large=2000)
            settings |= {**PLAIN, "model.embedding_size": 24, "training.chunk_length": 16}
            settings["training.report_every"] = max(1, steps // 10)
        for report in fitted(
            trial, task, [train], valid=[valid], out=name, settings=settings, steps=steps
        ):
            if report.loss is not None:
                yield {"training": name, "update": report.step, "loss": report.loss}
        model = elman.load(trial.folder / name, device=trial.device)
        for group, words in new.items():
            other = next(each for each in GROUPS if each != group)
            for word in words:
                for verb, thing in THINGS[group].items():
                    found = dict(model.next(f"{word} {verb} their", k=model.tokenizer.vocab_size))
                    right, wrong = found[thing], found[THINGS[other][verb]]
                    share = right / (right + wrong)
                    yield {"model": name, "prefix": f"{word} {verb} their", "share": share}


def right_share(rows: Sequence[Row], model: str) -> float:
    """The mean share of the right thing, of the right one and that of the other group."""
    found = [float(row["share"]) for row in rows if row.get("model") == model]
    return sum(found) / len(found)


def off_chance(rows: Sequence[Row]) -> float:
    return right_share(rows, "n-gram") - 0.5


def figure(rows: Sequence[Row]) -> Figure:
    seeds = {row["seed"] for row in rows}
    means = [
        {"seed": seed, "model": model, "share": right_share(own, model)}
        for seed in sorted(seeds)
        for own in [[row for row in rows if row["seed"] == seed]]
        for model in MODELS
        if any(row.get("model") == model for row in own)
    ]
    curves = [row for row in rows if "training" in row]
    return Figure(
        panels=[
            Panel(
                title='"scholars opened their ..."',
                x_label="model",
                y_label="share of the right noun, prefixes never seen",
                kind="bars",
                series=over_seeds(means, x="model", y="share", name="share"),
                levels={"chance": 0.5},
            ),
            Panel(
                title="Training",
                x_label="updates",
                y_label="training loss (nats per word)",
                series=over_seeds(curves, x="update", y="loss", by="training"),
            ),
        ],
        caption="Means over seeds with 95 % intervals.",
    )


def _question(model: str, prediction: float) -> Question:
    return Question(
        name=f"{model}: share of the right noun",
        unit="",
        prediction=prediction,
        minimum=0.9,
        effect=partial(right_share, model=model),
    )


EXPERIMENT = Experiment(
    id="C6",
    title="sharing across similar prefixes",
    claim="N-grams treat all prefixes independently of each other, even those that are alike. "
    "Neural language models are able to share information across semantically similar prefixes "
    "(students, pupils, scholars opened their ...), and so overcome sparsity.",
    sources=("001: what changed from n-gram LMs to neural LMs?",),
    design="Made-up text: seven words for students and seven for cooks. Students open books, close "
    "laptops, lose notes and find pens; cooks open ovens, close kitchens, lose knives and find "
    "spices. Two words of each group, drawn by the seed, never do any of this, but occur where "
    "only their group occurs (in the library, at the stove). After a prefix such as *scholars "
    "opened their*, which was never seen, the right noun's share is P(books) / (P(books) + "
    "P(ovens)), a mean over 16 prefixes. A 5-gram model (Kneser-Ney) can only back off to *opened "
    "their*, where both are equally likely.",
    questions=(
        Question(
            name="n-gram: distance of the right noun's share from chance",
            unit="",
            prediction=0.0,
            minimum=0.1,
            rule="within",
            effect=off_chance,
        ),
        _question("window", 0.93),
        _question("rnn", 0.98),
        _question("lstm", 0.98),
    ),
    knob=Knob(
        name="telling contexts",
        meaning="share of the new words' lines that tell their group; the others are the same for "
        "all words",
        values=(0.0, 0.1, 0.25, 0.5, 1.0),
        default=1.0,
        broken=0.0,
    ),
    breaks="Without telling contexts nothing says that scholars are like students, and the neural "
    "models guess too, each seed its own way. They share across words that are used alike, not "
    "across words that mean the like.",
    limits="The text is made by rule, the groups are as clear as can be. In real text the evidence "
    "for a rare word is thin, and a subword or pre-trained vector adds to it.",
    measure=measure,
    figure=figure,
    equations=(
        "elman.tasks.language_model.window:WindowLM.hidden",
        "elman.models.recurrent:RecurrentLM.hidden",
        "elman.ngrams.kneser_ney",
    ),
    reading=("Bengio, Ducharme, Vincent and Jauvin (2003), A neural probabilistic language model",),
    seconds=75,
)
