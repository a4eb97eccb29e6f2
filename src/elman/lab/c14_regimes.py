"""C14: exposure bias of teacher forcing, and what other training regimes change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from statistics import mean
from typing import Any

from elman.api import load
from elman.evaluate.text_quality import text_quality
from elman.lab.experiment import Experiment, Knob, Question, Row, Trial
from elman.lab.figures import Figure, Panel, over_seeds
from elman.lab.language_models import (
    LARGER,
    continued,
    curve,
    judging,
    surprisals,
)

TEACHER, SCHEDULED, PROFESSOR = "teacher forcing", "scheduled sampling", "professor forcing"
PEOPLE = "people"
BLOCKS = 8
"""Stretches of a continuation; the first and the last two are compared."""


def measure(trial: Trial) -> Iterator[Row]:
    """Train one model with each regime; score its samples, by position, with an n-gram model."""
    length = trial.pick(tiny=24, small=200, large=400)
    number = trial.pick(tiny=4, small=128, large=512)
    parts, judge, prompts, real = judging(trial, number, length)

    def rows(name: str, texts: Sequence[str]) -> Iterator[Row]:
        found = surprisals(judge, prompts, texts)
        width = length // BLOCKS
        for block in range(BLOCKS):
            own = [nats for each in found for nats in each[block * width : (block + 1) * width]]
            position = round((block + 0.5) * width)
            yield {"text": name, "block": block, "position": position, "nats": round(mean(own), 4)}
        distinct = text_quality(texts, unit="char").distinct[4]
        whole = mean(nats for each in found for nats in each)
        yield {"of": name, "surprisal": round(whole, 4), "distinct": round(distinct, 4)}

    yield from rows(PEOPLE, real)
    model = {
        "hidden_size": trial.pick(tiny=8, small=128, large=512),
        "embedding_size": trial.pick(tiny=8, small=32, large=64),
        "dropout_output": 0.0,
    }
    for name, objective in regimes(float(trial.knob)).items():
        yield from curve(
            *(trial, parts, name, model),
            steps=trial.pick(tiny=2, small=300, large=1500),
            points=2,
            batch=trial.pick(tiny=(2, 8), small=(16, 32), large=(64, 64)),
            settings={f"objective.{key}": value for key, value in objective.items()},
        )
        lm = load(trial.folder / name, device=trial.device)
        yield from rows(name, continued(lm, prompts, max_tokens=length, seed=1000 * trial.seed))


def regimes(truth: float) -> dict[str, dict[str, Any]]:
    """The settings of each regime; `truth` is the share of true characters read at the end."""
    return {
        TEACHER: {"regime": "teacher_forcing"},
        SCHEDULED: {
            "regime": "scheduled_sampling",
            "curriculum": "linear",
            "least_truth": truth,
        },
        PROFESSOR: {"regime": "professor_forcing", "judge_size": 32},
    }


def rise(rows: Sequence[Row], name: str) -> float:
    """Surprisal in the last quarter of a continuation, less that in the first."""
    found = {row["block"]: float(row["nats"]) for row in rows if row.get("text") == name}
    last = mean(found[block] for block in (BLOCKS - 2, BLOCKS - 1))
    return last - mean(found[block] for block in (0, 1))


def exposure_bias(rows: Sequence[Row]) -> float:
    """The rise in samples, less that in what people wrote after the same prompts."""
    return rise(rows, TEACHER) - rise(rows, PEOPLE)


def gain(rows: Sequence[Row], regime: str) -> float:
    """How much lower the surprisal of a regime's samples is than with teacher forcing."""
    found = {row["of"]: float(row["surprisal"]) for row in rows if "of" in row}
    return found[TEACHER] - found[regime]


def figure(rows: Sequence[Row]) -> Figure:
    positions = [row for row in rows if "text" in row]
    names = {TEACHER: "teacher\nforcing", SCHEDULED: "scheduled\nsampling"}
    names |= {PROFESSOR: "professor\nforcing"}
    whole = [{**row, "name": names.get(row["of"], row["of"])} for row in rows if "of" in row]
    return Figure(
        panels=[
            Panel(
                title="Along a continuation",
                x_label="characters since the prompt",
                y_label="surprisal under an n-gram model (nats)",
                series=over_seeds(positions, x="position", y="nats", by="text"),
            ),
            Panel(
                title="Quality of samples",
                x_label="text",
                y_label="surprisal under an n-gram model (nats)",
                kind="bars",
                series=over_seeds(whole, x="name", y="surprisal", name="surprisal"),
            ),
            Panel(
                title="Diversity of samples",
                x_label="text",
                y_label="distinct 4-grams of characters (share)",
                kind="bars",
                series=over_seeds(whole, x="name", y="distinct", name="distinct"),
            ),
        ],
        caption="Means over seeds with 95 % intervals. Lower surprisal: more like text of the same "
        "kind.",
    )


def _gain_question(regime: str, prediction: float) -> Question:
    return Question(
        name=f"surprisal of samples, teacher forcing less {regime}",
        unit="nats per character",
        prediction=prediction,
        minimum=0.05,
        effect=partial(gain, regime=regime),
    )


EXPERIMENT = Experiment(
    id="C14",
    title="exposure bias and training regimes",
    claim="With teacher forcing a model learns from true text alone; when it generates, it reads "
    "its own, and its errors pile up. Regimes that let it read its own text in training counter "
    "this.",
    sources=("003: excursion, different training regimes",),
    design="LSTMs of 128 units learn half of Python's reference manual by characters, 300 updates "
    "of 16 x 32, with three regimes: teacher forcing; scheduled sampling, where the share of true "
    "characters read falls in a straight line from 1 to 0.75; professor forcing. Each continues "
    "the same 128 passages of held-out text by 200 characters, drawn at temperature 1. The "
    "surprisal of these characters under a Kneser-Ney 6-gram model of another 40 % of the manual "
    "is measured along the continuation. Errors that pile up show as a rise from the first "
    "quarter to the last, beyond that of what people wrote after the same passages. Expected "
    "before the first run: no rise to speak of, and no gain by the other regimes. " + LARGER,
    questions=(
        Question(
            name="teacher forcing: rise of surprisal along samples, beyond people's text",
            unit="nats per character",
            prediction=0.03,
            minimum=0.1,
            effect=exposure_bias,
        ),
        _gain_question(SCHEDULED, -0.03),
        _gain_question(PROFESSOR, 0.0),
    ),
    knob=Knob(
        name="truth",
        meaning="scheduled sampling: the share of true characters that are read at the end",
        values=(0.0, 0.25, 0.5, 0.75, 0.9, 1.0),
        default=0.75,
        broken=0.0,
    ),
    breaks="The less truth is left, the more scheduled sampling hurts: after its own errors a "
    "model is taught the true next character, which no longer follows from what it read "
    "(Huszár, 2015).",
    limits="Samples of 200 characters of small models, judged by a model that sees five characters "
    "back: it notices made-up words, not sentences without sense. Models that generate "
    "whole translations, with beams, may suffer more.",
    measure=measure,
    figure=figure,
    equations=(
        "elman.objectives.regimes:Regime",
        "elman.objectives.rollout:mixed_inputs",
        "elman.objectives.judge:Judge",
    ),
    reading=(
        "Bengio and others (2015), Scheduled sampling for sequence prediction with recurrent "
        "neural networks",
        "Lamb and others (2016), Professor forcing",
        "Huszár (2015), How (not) to train your generative model",
        "He and others (2021), Exposure bias versus self-recovery",
    ),
    seconds=100,
)
