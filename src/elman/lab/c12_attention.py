"""C12: without attention, translations of long sentences are worse; with it they are not."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from elman.api import load
from elman.lab.experiment import Experiment, Knob, Question, Row, Trial
from elman.lab.figures import Figure, Panel, over_seeds
from elman.lab.training import fitted

ATTENTIONS = ("none", "dot", "additive")
LETTERS = "abcdefghijklmnop"
TRAINED = 12
"""The length of the longest strings in training."""
SHORT = 3
"""The length with which the longest one is compared."""


def measure(trial: Trial) -> Iterator[Row]:
    """Train a translator for each kind of attention; then reverse strings of every length."""
    train = trial.pick(tiny=200, small=20_000, large=60_000)
    draw = random.Random(trial.seed)
    strings = [drawn(draw, draw.randint(1, TRAINED)) for _ in range(train)]
    for name, some in (("train", strings[train // 100 :]), ("valid", strings[: train // 100 + 1])):
        write_pairs(trial.folder, name, some)
    longest = max(int(trial.knob), SHORT)
    number = trial.pick(tiny=5, small=100, large=1000)
    lengths = trial.pick(
        tiny=[SHORT, longest],
        small=sorted({1, *range(SHORT, longest, 2 if longest <= 16 else 4), longest}),
        large=list(range(1, longest + 1)),
    )
    asked = {length: [drawn(draw, length) for _ in range(number)] for length in lengths}
    for attention in ATTENTIONS:
        yield from _learn(trial, attention)
        handle = load(trial.folder / attention, device=trial.device)
        for length, some in asked.items():
            texts = handle.translations(some, batch_size=number, greedy=True)
            found = [best.text for best, *_ in texts]
            yield {"attention": attention, "length": length, "share": share_right(some, found)}


def drawn(draw: random.Random, length: int) -> str:
    return "".join(draw.choice(LETTERS) for _ in range(length))


def write_pairs(folder: Path, name: str, strings: Sequence[str]) -> None:
    for suffix, lines in (("in", strings), ("out", [string[::-1] for string in strings])):
        (folder / f"{name}.{suffix}").write_text("".join(f"{line}\n" for line in lines))


def share_right(strings: Sequence[str], found: Sequence[str]) -> float:
    """The share of letters that stand where they stand in the string reversed."""
    right = sum(
        a == b
        for string, text in zip(strings, found, strict=True)
        for a, b in zip(string[::-1], text, strict=False)
    )
    return right / sum(map(len, strings))


def _learn(trial: Trial, attention: str) -> Iterator[Row]:
    width = trial.pick(tiny=8, small=64, large=256)
    steps = trial.pick(tiny=4, small=800, large=1600)
    settings = {
        "tokenizer.kind": "char",
        "model.decoder.attention": attention,
        "model.decoder.hidden_size": width,
        "model.decoder.embedding_size": width,
        **{f"model.decoder.dropout_{place}": 0.0 for place in ("embedding", "input")},
        **{f"model.decoder.dropout_{place}": 0.0 for place in ("hidden", "output")},
        "objective.label_smoothing": 0.0,
        "optimiser.learning_rate": 0.005,
        "training.batch_size": 64,
        "training.validate_every": steps,
        "training.report_every": max(1, steps // 20),
        "training.sample_length": 0,
    }
    train, valid = (
        [trial.folder / f"{name}.{suffix}" for suffix in ("in", "out")]
        for name in ("train", "valid")
    )
    for report in fitted(
        trial, "translator", train, valid=valid, out=attention, settings=settings, steps=steps
    ):
        if report.loss is not None:
            yield {"learning": attention, "update": report.step, "loss": report.loss}


def fall(rows: Sequence[Row], attention: str) -> float:
    """How much less is right at the longest length than at the short one."""
    shares = {row["length"]: row["share"] for row in rows if row.get("attention") == attention}
    return float(shares[SHORT] - shares[max(shares)])


def figure(rows: Sequence[Row]) -> Figure:
    return Figure(
        panels=[
            Panel(
                title=f"Reversing strings, trained up to {TRAINED} letters",
                x_label="length of the string (letters)",
                y_label="share of letters that are right",
                series=over_seeds(rows, x="length", y="share", by="attention"),
            ),
            Panel(
                title="Training",
                x_label="updates",
                y_label="loss (nats per letter)",
                series=over_seeds(rows, x="update", y="loss", by="learning"),
            ),
        ],
        caption="By attention. Means over seeds with 95 % intervals.",
    )


def _with(attention: str, prediction: float) -> Question:
    return Question(
        name=f"{attention} attention: fall from {SHORT} letters to the longest",
        unit="",
        prediction=prediction,
        minimum=0.1,
        rule="below",
        effect=partial(fall, attention=attention),
    )


EXPERIMENT = Experiment(
    id="C12",
    title="attention and long sentences",
    claim="The encoder's last state is a bottleneck: without attention the quality of translation "
    "falls with the length of the sentence, with attention it does not.",
    sources=("002: the bottleneck problem", "002: results with and without attention"),
    design=f"Translators with LSTMs of 64 units, an encoder in both directions and a decoder, "
    f"learn to reverse strings of 1 to {TRAINED} random letters out of {len(LETTERS)}: 800 "
    "updates on 64 pairs each, of 20,000. To reverse a string, all of it must reach the decoder, "
    "and every letter has one right place. They differ in attention alone: none, dot or additive. "
    f"Measured on 100 strings of each length, decoded greedily: the share of letters that stand "
    f"where they should; its fall from {SHORT} letters to the longest length. The strings are "
    "drawn afresh: of the short ones some occurred in training, of the long ones none did.",
    questions=(
        Question(
            name=f"no attention: fall from {SHORT} letters to the longest",
            unit="",
            prediction=0.6,
            minimum=0.4,
            effect=partial(fall, attention="none"),
        ),
        _with("dot", 0.05),
        _with("additive", 0.03),
    ),
    knob=Knob(
        name="longest",
        meaning="letters of the longest strings that are tested",
        values=(6, 12, 16, 20, 30),
        default=12,
        broken=20,
    ),
    breaks=f"No string of training has more than {TRAINED} letters. Beyond that the decoder with "
    "attention loses its place, too: attention removes the bottleneck, but it does not make a "
    "translator read sentences of lengths that it has never seen.",
    limits="Strings have no grammar and no words that go together, so that nothing can be guessed: "
    "a translator of sentences falls more slowly. Without attention, more units and more training "
    "move the length at which it falls. Attention is computed after each step, by Luong's "
    "equations; the lecture's, before each step, are `model.decoder.attend=before`.",
    measure=measure,
    figure=figure,
    equations=(
        "elman.nn.attention:Attention",
        "elman.models.decoder:Decoder",
        "elman.tasks.translation.model:SequenceToSequence.condition",
    ),
    reading=(
        "Cho and others (2014), On the properties of neural machine translation",
        "Bahdanau, Cho and Bengio (2015), Neural machine translation by jointly learning to align "
        "and translate",
    ),
    seconds=110,
)
