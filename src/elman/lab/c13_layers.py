"""C13: ELMo vectors lift task models; syntax is in lower layers, meaning in higher ones."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from elman.api import load
from elman.lab.experiment import Experiment, Knob, Question, Row, Trial
from elman.lab.figures import Figure, Panel, over_seeds
from elman.lab.texts import write_tagged
from elman.lab.training import fitted
from elman.lab.verses import NO_MARK, Verse, all_verses

SYNTAX, MEANING = "noun or verb", "which noun"
PAIRS = {
    SYNTAX: (
        *(("house", "said"), ("day", "came"), ("land", "went"), ("hand", "made")),
        *(("people", "took"), ("city", "saw"), ("name", "sent"), ("heart", "gave")),
    ),
    MEANING: (
        *(("king", "water"), ("sons", "gold"), ("blood", "servant"), ("bread", "sword")),
        *(("voice", "wife"), ("years", "priest"), ("mouth", "sea"), ("fire", "brother")),
    ),
}
"""Words that become one: their old selves are its parts of speech, or its senses."""
FOLDS = 4
LONGEST = 30
"""Verses with more words are left out."""


def measure(trial: Trial) -> Iterator[Row]:
    """Train ELMo; probe each of its layers; train taggers with and without its vectors."""
    draw = random.Random(trial.seed)
    verses = [verse for verse in all_verses() if 4 <= len(verse[0]) <= LONGEST]
    draw.shuffle(verses)
    merged = {word: "".join(pair) for pairs in PAIRS.values() for pair in pairs for word in pair}
    labels, test = trial.pick(tiny=(40, 20), small=(400, 600), large=(400, 2000))
    # What the taggers are tested on comes first, and is not read.
    text = [" ".join(merged.get(word, word) for word in words) for words, _ in verses[test:]]
    read = trial.pick(tiny=text[:100], small=text, large=text)
    (trial.folder / "text.txt").write_text("".join(f"{line}\n" for line in read))
    yield from _pretrain(trial)
    yield from _probe(trial, draw, verses, merged)
    write_marked(trial.folder / "train.txt", verses[test : test + labels], merged)
    write_marked(trial.folder / "test.txt", verses[:test], merged)
    for arm in (WITHOUT, WITH):
        yield from _tag(trial, arm)


def _pretrain(trial: Trial) -> Iterator[Row]:
    """Train a small ELMo; with random weights, it makes one step of no size."""
    is_random = trial.knob == RANDOM
    steps = 1 if is_random else trial.pick(tiny=2, small=200, large=2000)
    settings = {
        "tokenizer.kind": "pretokenized",
        "model.hidden_size": trial.pick(tiny=8, small=96, large=512),
        "model.character_cnn.filters": trial.pick(
            tiny=(4, 4), small=(8, 16, 32, 32), large=(16, 32, 64, 128, 128)
        ),
        "model.vocab_size": 3000,
        "model.head.kind": "sampled",
        "model.head.num_samples": trial.pick(tiny=16, small=256, large=1024),
        "model.dropout": 0.1,
        "optimiser.learning_rate": 1e-12 if is_random else 0.005,
        "data.valid_fraction": 0.01,
        "training.batch_size": 32,
        "training.validate_every": steps,
        "training.report_every": max(1, steps // 15),
    }
    text = [trial.folder / "text.txt"]
    for report in fitted(trial, "elmo", text, out="elmo", settings=settings, steps=steps):
        if report.loss is not None:
            yield {"update": report.step, "loss": report.loss}


def _probe(
    trial: Trial, draw: random.Random, verses: Sequence[Verse], merged: dict[str, str]
) -> Iterator[Row]:
    """How well a linear classifier tells from each layer which of two merged words stood there."""
    handle = load(trial.folder / "elmo", device=trial.device)
    most = trial.pick(tiny=10, small=200, large=400)
    for kind, pairs in PAIRS.items():
        for pair in pairs:
            found = [occurrences(draw, verses, word, most) for word in pair]
            number = min(map(len, found))
            places = [*found[0][:number], *found[1][:number]]
            labels_N = torch.tensor([0] * number + [1] * number)
            sentences = ([merged.get(w, w) for w in words] for words, _ in places)
            vectors = handle.contextual(sentences, layers="all")
            rows = [
                torch.from_numpy(layers_LTD[:, place])
                for layers_LTD, (_, place) in zip(vectors, places, strict=True)
            ]
            vectors_LND = torch.stack(rows, dim=1)
            for layer, vectors_ND in enumerate(vectors_LND):
                share = probed(vectors_ND, labels_N)
                about = {"kind": kind, "pair": "/".join(pair), "number": number}
                yield about | {"layer": layer, "accuracy": share}


def occurrences(
    draw: random.Random, verses: Sequence[Verse], word: str, most: int
) -> list[tuple[tuple[str, ...], int]]:
    """Verses in which the word stands once, and its place."""
    found = [(words, words.index(word)) for words, _ in verses if words.count(word) == 1]
    return draw.sample(found, min(most, len(found)))


def probed(vectors_ND: Tensor, labels_N: Tensor) -> float:
    """The accuracy of a linear classifier (ridge regression) in cross-validation."""
    generator = torch.Generator().manual_seed(0)
    order_N = torch.randperm(len(labels_N), generator=generator)
    x_ND = vectors_ND[order_N].double()
    x_ND = F.pad((x_ND - x_ND.mean(0)) / (x_ND.std(0) + 1e-6), (0, 1), value=1.0)
    y_N = labels_N[order_N].double() * 2 - 1
    right = 0
    for fold in range(FOLDS):
        test_N = torch.arange(len(y_N)) % FOLDS == fold
        train_MD, penalty = x_ND[~test_N], 0.1 * x_ND.shape[1]
        square_DD = train_MD.T @ train_MD + penalty * torch.eye(x_ND.shape[1]).double()
        weights_D = torch.linalg.solve(square_DD, train_MD.T @ y_N[~test_N])
        right += int((((x_ND[test_N] @ weights_D) > 0) == (y_N[test_N] > 0)).sum())
    return right / len(y_N)


def write_marked(path: Path, verses: Sequence[Verse], merged: dict[str, str]) -> None:
    """Tagged verses: whether a punctuation mark followed the word."""
    write_tagged(
        path,
        (
            (
                [merged.get(word, word) for word in words],
                ["plain" if mark == NO_MARK else "end" for mark in marks],
            )
            for words, marks in verses
        ),
    )


def _tag(trial: Trial, arm: str) -> Iterator[Row]:
    steps = trial.pick(tiny=2, small=120, large=500)
    settings = {
        "model.num_layers": 1,
        "model.dropout_hidden": 0.0,
        "model.hidden_size": trial.pick(tiny=4, small=48, large=128),
        "model.embedding_size": trial.pick(tiny=4, small=48, large=100),
        "model.characters": "none",
        "model.output": "softmax",
        "optimiser.learning_rate": 0.005,
        "training.batch_size": 32,
        "training.validate_every": steps,
        "training.report_every": steps,
    }
    if arm == WITH:
        settings["model.embeddings.path"] = str(trial.folder / "elmo")
    train, test = ([trial.folder / f"{part}.txt"] for part in ("train", "test"))
    for report in fitted(
        trial, "tagger", train, valid=test, out=f"tagger-{arm}", settings=settings, steps=steps
    ):
        if report.kind == "done":
            assert report.valid_metrics is not None
            yield {"tagger": arm, "share": report.valid_metrics["accuracy"]}


WITHOUT, WITH = "own vectors", "with ELMo"
TRAINED, RANDOM = "trained", "random"


def layer_mean(rows: Sequence[Row], kind: str, layer: int) -> float:
    """The accuracy of a layer's probes, over all pairs."""
    found = [r["accuracy"] for r in rows if r.get("kind") == kind and r["layer"] == layer]
    return float(sum(found) / len(found))


def advantage(rows: Sequence[Row], kind: str, layer: int, other: int) -> float:
    """Accuracy of one layer's probes less that of another's, in points."""
    return 100 * (layer_mean(rows, kind, layer) - layer_mean(rows, kind, other))


def lift(rows: Sequence[Row]) -> float:
    """Accuracy of the tagger with ELMo less that without, in points."""
    found = {row["tagger"]: row["share"] for row in rows if "tagger" in row}
    return 100 * float(found[WITH] - found[WITHOUT])


def figure(rows: Sequence[Row]) -> Figure:
    probes = [
        {"seed": seed, "kind": kind, "layer": layer, "percent": 100 * layer_mean(own, kind, layer)}
        for seed in dict.fromkeys(row["seed"] for row in rows)
        for own in [[row for row in rows if row["seed"] == seed]]
        for kind, layer in dict.fromkeys((r["kind"], r["layer"]) for r in own if "kind" in r)
    ]
    taggers = [
        {**row, "percent": 100 * row["share"], "task": "where clauses end"}
        for row in rows
        if "tagger" in row
    ]
    return Figure(
        panels=[
            Panel(
                title="Linear probes of each layer",
                x_label="layer (0: the word's own vector)",
                y_label="right (%)",
                kind="bars",
                series=over_seeds(
                    [{**row, "layer": str(row["layer"])} for row in probes],
                    x="layer",
                    y="percent",
                    by="kind",
                ),
                levels={"chance": 50.0},
            ),
            Panel(
                title="A tagger with 400 labelled verses",
                x_label="task",
                y_label="words with the right tag (%)",
                kind="bars",
                series=over_seeds(taggers, x="task", y="percent", by="tagger"),
            ),
            Panel(
                title="Training ELMo",
                x_label="updates",
                y_label="loss (nats per word, sampled)",
                series=over_seeds(rows, x="update", y="loss", name="ELMo"),
            ),
        ],
        caption="Means over seeds with 95 % intervals.",
    )


EXPERIMENT = Experiment(
    id="C13",
    title="what ELMo's layers know",
    claim="ELMo's vectors lift the models of many tasks. Syntactic information is better "
    "represented at lower layers, while semantic information is captured at higher layers.",
    sources=("001: ELMo, evaluation", "001: first layer against second layer", "003: ELMo"),
    design="A small ELMo (2 layers of 96 units in each direction over a character convolution, "
    "200 updates) reads the King James Bible, in lower case without punctuation. Nobody has "
    "annotated this text, so ambiguity is made: pairs of words are merged into one new word "
    "before training, as `house` and `said` into `housesaid`, and a linear probe (ridge "
    "regression, 4 folds, up to 200 verses of each word) has to tell from the new word's vector "
    "which of the two stood there, which ELMo was never told. Eight pairs of a noun and a verb ask "
    "for its part of speech: syntax. Eight pairs of nouns that differ in what they are about, as "
    "`bread` and `sword`, ask for its sense: meaning. The new word's own vector, layer 0, knows "
    "nothing of this. For the lift, taggers learn from 400 verses where punctuation stood, with "
    "and without ELMo's vectors beside their own; they are tested on 600 verses that ELMo has not "
    "read either.",
    questions=(
        Question(
            name="where clauses end: tagger with ELMo less without",
            unit="points",
            prediction=1.0,
            minimum=0.5,
            effect=lift,
        ),
        Question(
            name="noun or verb: probe of layer 1 less that of layer 2",
            unit="points",
            prediction=1.0,
            minimum=0.5,
            effect=partial(advantage, kind=SYNTAX, layer=1, other=2),
        ),
        Question(
            name="which noun: probe of layer 2 less that of layer 1",
            unit="points",
            prediction=1.0,
            minimum=0.5,
            effect=partial(advantage, kind=MEANING, layer=2, other=1),
        ),
    ),
    knob=Knob(
        name="weights",
        meaning="of ELMo: trained, or random as before the first update",
        values=(TRAINED, RANDOM),
        default=TRAINED,
        broken=RANDOM,
    ),
    breaks="With random weights ELMo brings the tagger nothing. The states still mix in the "
    "neighbouring words, and probes find some of these, more in the lower layer than in the upper: "
    "a difference between layers alone is no sign of what training put there.",
    limits="Merged words have two meanings by construction, which are easier to tell apart than "
    "senses of a word; noun against verb is one part of syntax. The published figures are of 4,096 "
    "units and a billion words: what a layer knows may depend on how much it has learnt.",
    measure=measure,
    figure=figure,
    equations=(
        "elman.tasks.elmo.model:BidirectionalLM.vectors",
        "elman.nn.layer_mix:LayerMix",
        "elman.lab.c13_layers:probed",
    ),
    reading=(
        "Peters and others (2018), Deep contextualized word representations",
        "Gale, Church and Yarowsky (1992), Work on statistical methods for word sense "
        "disambiguation: words merged to make senses",
    ),
    seconds=110,
)
