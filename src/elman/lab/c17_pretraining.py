"""C17: pre-training a language model, then fine-tuning it, beats word vectors alone."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from elman.lab.experiment import Experiment, Knob, Question, Row, Trial
from elman.lab.figures import Figure, Panel, accuracies, over_seeds
from elman.lab.texts import write_labelled
from elman.lab.training import fitted
from elman.lab.verses import all_verses
from elman.recipes.convert import convert

ARMS = ("nothing", "word vectors", "frozen states", "fine-tuned")
TESTAMENT, ORDER = "testament", "order"
TASKS = {TESTAMENT: "which Testament", ORDER: "words in order?"}
LAST_OF_OLD = "lest i come and smite the earth with a curse"
"""How the last verse of the Old Testament ends."""
LENGTHS = range(5, 26)
"""Words of a verse that is used."""

Words = tuple[str, ...]
Labelled = tuple[str, Words]


def measure(trial: Trial) -> Iterator[Row]:
    """Train a language model without labels; then classifiers for each task and each start."""
    draw = random.Random(trial.seed)
    labels = trial.pick(tiny=24, small=int(trial.knob), large=int(trial.knob))
    test = trial.pick(tiny=16, small=1000, large=4000)
    by_testament = testaments()
    for verses in by_testament.values():
        draw.shuffle(verses)
    held = labels // 2 + test // 2 + 5
    rest = [words for verses in by_testament.values() for words in verses[held:]]
    draw.shuffle(rest)
    text = trial.folder / "text.txt"
    num_verses = trial.pick(tiny=300, small=len(rest), large=len(rest))
    text.write_text("".join(" ".join(words) + "\n" for words in rest[:num_verses]))
    yield from _pretrain(trial, text)
    convert(str(trial.folder / "lm"), str(trial.folder / "vectors.txt"))
    labelled = [(name, words) for name, verses in by_testament.items() for words in verses[:held]]
    draw.shuffle(labelled)
    ordered = [in_order(draw, words) for _, words in labelled]
    for task, rows in ((TESTAMENT, labelled), (ORDER, ordered)):
        parts = {"train": rows[:labels], "valid": rows[-10:], "test": rows[labels:-10]}
        for part, some in parts.items():
            texts = ((label, " ".join(words)) for label, words in some)
            write_labelled(trial.folder / f"{task}-{part}.tsv", texts)
        for arm in ARMS:
            yield from _learn(trial, task, arm)


def testaments() -> dict[str, list[Words]]:
    """The verses of each Testament that are neither very short nor long."""
    verses = [words for words, _ in all_verses()]
    end = next(i for i, words in enumerate(verses) if " ".join(words).endswith(LAST_OF_OLD)) + 1
    return {
        name: [words for words in some if len(words) in LENGTHS]
        for name, some in (("old", verses[:end]), ("new", verses[end:]))
    }


def in_order(draw: random.Random, words: Words) -> Labelled:
    """The verse as it is, or with every two neighbours swapped."""
    if draw.random() < 0.5:
        return "written", words
    swapped = list(words)
    for i in range(0, len(words) - 1, 2):
        swapped[i], swapped[i + 1] = words[i + 1], words[i]
    return "swapped", tuple(swapped)


def _pretrain(trial: Trial, text: Path) -> Iterator[Row]:
    steps = trial.pick(tiny=2, small=700, large=3000)
    width = trial.pick(tiny=8, small=64, large=512)
    settings = {
        "tokenizer.kind": "pretokenized",
        "tokenizer.min_count": 1,
        "tokenizer.vocab_size": trial.pick(tiny=100, small=2000, large=10_000),
        "model.cell": "lstm",
        "model.num_layers": 1,
        "model.hidden_size": width,
        "model.embedding_size": width,
        "model.tied": True,
        "optimiser.kind": "adam",
        "optimiser.learning_rate": 0.005,
        "data.valid_fraction": 0.01,
        "training.batch_size": 32,
        "training.chunk_length": 25,
        "training.validate_every": steps,
        "training.report_every": max(1, steps // 15),
        "training.sample_length": 0,
    }
    for report in fitted(trial, "lm", [text], out="lm", settings=settings, steps=steps):
        if report.loss is not None:
            yield {"update": report.step, "loss": report.loss}


def _learn(trial: Trial, task: str, arm: str) -> Iterator[Row]:
    steps = trial.pick(tiny=2, small=200, large=500)
    settings = {
        "data.column": "1",
        "data.text_column": "2",
        "tokenizer.kind": "pretokenized",
        "tokenizer.min_count": 1,
        "model.hidden_size": trial.pick(tiny=4, small=32, large=128),
        "model.embedding_size": trial.pick(tiny=4, small=32, large=128),
        "optimiser.learning_rate": 0.003,
        "training.batch_size": 32,
        "training.validate_every": steps,
        "training.report_every": steps,
    }
    if arm != "nothing":
        source = "vectors.txt" if arm == "word vectors" else "lm"
        settings["model.embeddings.path"] = str(trial.folder / source)
        settings["model.embeddings.fine_tuned"] = arm == "fine-tuned"
    train, valid, test = (
        [trial.folder / f"{task}-{part}.tsv"] for part in ("train", "valid", "test")
    )
    out = f"{task}-{arm.replace(' ', '-')}"
    for report in fitted(
        *(trial, "classifier", train),
        valid=valid,
        test=test,
        out=out,
        settings=settings,
        steps=steps,
    ):
        if report.kind == "done":
            assert report.summary is not None
            yield {"task": task, "arm": arm, "accuracy": report.summary["test_accuracy"]}


def gain(rows: Sequence[Row], task: str) -> float:
    """Accuracy of the fine-tuned model less that of word vectors, in points."""
    found = {row["arm"]: row["accuracy"] for row in rows if row.get("task") == task}
    return 100 * float(found["fine-tuned"] - found["word vectors"])


def figure(rows: Sequence[Row]) -> Figure:
    return Figure(
        panels=[
            Panel(
                title="A few labels, after pre-training",
                x_label="task",
                y_label="verses that are right (%)",
                kind="bars",
                series=accuracies(rows, TASKS, by="arm"),
                levels={"chance": 50.0},
            ),
            Panel(
                title="Pre-training, without labels",
                x_label="updates",
                y_label="loss (nats per word)",
                series=over_seeds(rows, x="update", y="loss", name="language model"),
            ),
        ],
        caption="By what the classifier starts from. Means over seeds with 95 % intervals.",
    )


def _question(task: str, prediction: float) -> Question:
    return Question(
        name=f"{TASKS[task]}: fine-tuned less word vectors",
        unit="points",
        prediction=prediction,
        minimum=1.0,
        effect=partial(gain, task=task),
    )


EXPERIMENT = Experiment(
    id="C17",
    title="pre-training, then fine-tuning",
    claim="Pre-training a language model on text without labels, then fine-tuning it for a task, "
    "beats a model trained on word vectors: representations in context are much stronger than "
    "word-level ones.",
    sources=("001: a broader lesson, pre-training and fine-tuning",),
    design="A language model (one LSTM layer of 64 units, 2,000 words) reads verses of the King "
    "James Bible without labels, 700 updates. Then classifiers, equal but for what they start "
    "from, learn from 200 labelled verses in 200 updates: nothing, the language model's word "
    "vectors, its frozen states (mixed with the vectors, as ELMo does), or the same fine-tuned "
    "layer by layer (ULMFiT). So word vectors and states saw the same text for the same time. Two "
    "tasks: is a verse of the Old or of the New Testament, where words alone say much; and is it "
    "as written, or is every two neighbours swapped, where words alone say nothing. 1,000 verses "
    "to test, which the language model has not seen.",
    questions=(_question(TESTAMENT, 2.0), _question(ORDER, 5.0)),
    knob=Knob(
        name="labels",
        meaning="labelled verses to learn from",
        values=(50, 100, 200, 500, 1000, 2000),
        default=200,
        broken=2000,
    ),
    breaks="With 2,000 labels a classifier on word vectors knows the Testaments as well. The order "
    "of words is the other way round: pre-training brings more with more labels, some 25 points "
    "instead of 10.",
    limits="The language model is small and reads for seconds, and so are its word vectors: "
    "vectors and models that were trained on billions of words are both better. Both tasks have "
    "labels that come from the text itself.",
    measure=measure,
    figure=figure,
    equations=(
        "elman.models.embeddings:Embeddings",
        "elman.models.embedder:LeftContext.read",
        "elman.nn.unfreezing:GradualUnfreezing",
    ),
    reading=(
        "Dai and Le (2015), Semi-supervised sequence learning",
        "Howard and Ruder (2018), Universal language model fine-tuning for text classification",
        "Peters and others (2018), Deep contextualized word representations",
    ),
    seconds=110,
)
