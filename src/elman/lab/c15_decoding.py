"""C15: decoding schemes trade quality against diversity."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from statistics import mean
from typing import Any

from elman.api import load
from elman.evaluate.text_quality import text_quality
from elman.lab.experiment import Experiment, Knob, Question, Row, Trial
from elman.lab.figures import Figure, Panel, Series, over_seeds
from elman.lab.language_models import (
    LARGER,
    continued,
    curve,
    judging,
    surprisals,
)

TEMPERATURES = (0.3, 0.5, 0.7, 1.0, 1.3, 1.6)
SAMPLING, GREEDY, BEAM, PEOPLE = "sampling", "greedy", "beam of 4", "people"
OTHERS: dict[str, dict[str, Any]] = {
    GREEDY: {"greedy": True},
    "top-k, k = 5": {"top_k": 5},
    "top-p, p = 0.8": {"top_p": 0.8},
    BEAM: {"beam_size": 4},
}
DISTINCT = 4
"""The length of the n-grams of characters that are compared."""


def measure(trial: Trial) -> Iterator[Row]:
    """Train a model and, on other text, an n-gram model that judges; then decode and measure."""
    length = trial.pick(tiny=24, small=200, large=200)
    number = trial.pick(tiny=4, small=24, large=128)
    parts, judge, prompts, real = judging(trial, number, length)
    yield from curve(
        *(trial, parts, "lstm"),
        {
            "hidden_size": trial.pick(tiny=8, small=128, large=512),
            "embedding_size": trial.pick(tiny=8, small=32, large=64),
            "dropout_output": 0.0,
        },
        steps=trial.pick(tiny=4, small=400, large=3000),
        points=4,
        batch=trial.pick(tiny=(2, 16), small=(16, 64), large=(64, 128)),
    )
    lm = load(trial.folder / "lstm", device=trial.device)

    def row(scheme: str, texts: Sequence[str], temperature: float | None = None) -> Row:
        found = text_quality(texts, unit="char")
        nats = mean(mean(each) for each in surprisals(judge, prompts, texts))
        about: Row = {"scheme": scheme, "temperature": temperature}
        about |= {"surprisal": round(nats, 4), "distinct": round(found.distinct[DISTINCT], 4)}
        return about | {"repeated": round(found.repeated or 0.0, 4)}

    yield row(PEOPLE, real)
    common: dict[str, Any] = {"max_tokens": length, "frequency_penalty": float(trial.knob)}
    for temperature in TEMPERATURES:
        options = {**common, "temperature": temperature, "seed": 1000 * trial.seed}
        yield row(SAMPLING, continued(lm, prompts, **options), temperature)
    for scheme, options in OTHERS.items():
        if scheme == BEAM:  # searches for the most probable whole, without penalties
            yield row(scheme, continued(lm, prompts, max_tokens=length, **options))
        else:
            more = {} if scheme == GREEDY else {"seed": 1000 * trial.seed}
            yield row(scheme, continued(lm, prompts, **common, **options, **more))


def monotone(rows: Sequence[Row], name: str) -> float:
    """Kendall's rank correlation of a measure with the temperature."""
    found = _by_temperature(rows, name)
    signs = [
        (later > earlier) - (later < earlier)
        for number, (_, earlier) in enumerate(found)
        for _, later in found[number + 1 :]
    ]
    return sum(signs) / len(signs)


def _by_temperature(rows: Sequence[Row], name: str) -> list[tuple[float, float]]:
    return sorted((r["temperature"], r[name]) for r in rows if r.get("scheme") == SAMPLING)


def _of(rows: Sequence[Row], scheme: str, name: str, temperature: float | None = None) -> float:
    return next(
        float(row[name])
        for row in rows
        if row.get("scheme") == scheme and row["temperature"] == temperature
    )


def repeats_more(rows: Sequence[Row]) -> float:
    """The share that greedy decoding repeats, less that of sampling at temperature 1."""
    return _of(rows, GREEDY, "repeated") - _of(rows, SAMPLING, "repeated", 1.0)


def behind_people(rows: Sequence[Row]) -> float:
    """The surprisal of samples as diverse as people's text, less that of people's text.

    Between temperatures, along a straight line.
    """
    wanted, people = _of(rows, PEOPLE, "distinct"), _of(rows, PEOPLE, "surprisal")
    points = list(
        zip(_by_temperature(rows, "distinct"), _by_temperature(rows, "surprisal"), strict=True)
    )
    steps = [(distinct, nats) for (_, distinct), (_, nats) in points]
    if wanted <= steps[0][0]:
        return steps[0][1] - people
    for (low, nats), (high, more) in pairwise(steps):
        if low <= wanted <= high and high > low:
            return nats + (more - nats) * (wanted - low) / (high - low) - people
    return steps[-1][1] - people


def figure(rows: Sequence[Row]) -> Figure:
    measured = [row for row in rows if "scheme" in row]
    sampled = [row for row in measured if row["scheme"] == SAMPLING]
    panels = [
        Panel(
            title="Temperature: quality",
            x_label="temperature",
            y_label="surprisal (nats per character)",
            series=over_seeds(sampled, x="temperature", y="surprisal", name=SAMPLING),
            levels=_level(measured, "surprisal"),
        ),
        Panel(
            title="Temperature: diversity",
            x_label="temperature",
            y_label=f"distinct {DISTINCT}-grams of characters (share)",
            series=over_seeds(sampled, x="temperature", y="distinct", name=SAMPLING),
            levels=_level(measured, "distinct"),
        ),
        Panel(
            title="Quality against diversity",
            x_label=f"distinct {DISTINCT}-grams of characters (share)",
            y_label="surprisal (nats per character)",
            kind="points",
            series=_trade(measured),
        ),
    ]
    return Figure(
        panels=panels,
        caption="Surprisal is that under an n-gram model; the lower, the more like text of the "
        "same kind. Means over seeds with 95 % intervals; on the right, samples have temperatures "
        "from 0.3 to 1.6.",
    )


def _level(rows: Sequence[Row], name: str) -> dict[str, float]:
    found = [row[name] for row in rows if row["scheme"] == PEOPLE]
    return {PEOPLE: mean(found)} if found else {}


def _trade(rows: Sequence[Row]) -> list[Series]:
    """A series of each scheme; the samples are one, in the order of their temperatures."""
    groups: dict[str, dict[Any, list[Row]]] = {}
    for row in rows:
        points = groups.setdefault(row["scheme"], {})
        points.setdefault(row["temperature"], []).append(row)
    series = []
    for scheme, points in groups.items():
        places = sorted(points, key=lambda place: place or 0.0)
        x: list[float | str] = [mean(row["distinct"] for row in points[p]) for p in places]
        spread = [over_seeds(points[p], x="scheme", y="surprisal")[0] for p in places]
        low = [each.low[0] if each.low else math.nan for each in spread]
        high = [each.high[0] if each.high else math.nan for each in spread]
        y = [each.y[0] for each in spread]
        series.append(Series(name=scheme, x=x, y=y, low=low, high=high))
    return series


def _monotone_question(name: str, what: str) -> Question:
    return Question(
        name=f"rank correlation of {what} with the temperature",
        unit="",
        prediction=1.0,
        minimum=0.8,
        effect=partial(monotone, name=name),
    )


EXPERIMENT = Experiment(
    id="C15",
    title="decoding: quality against diversity",
    claim="From the same probabilities, decoding schemes make different text: greedy decoding and "
    "low temperatures expected text that repeats itself, high temperatures diverse text of lower "
    "quality; one is bought with the other.",
    sources=("003: predictions from different decoding schemes, temperature, top-k, top-p",),
    design="An LSTM of 128 units learns one half of Python's reference manual by characters "
    "(400 updates). It continues 24 passages of held-out text by 200 characters with each scheme. "
    "Quality is the surprisal of these characters under a Kneser-Ney 6-gram model of another 40 % "
    "of the manual: a model that neither knows the network nor has read its text. Diversity is the "
    "share of different 4-grams of characters; a repetition is a 16-gram that occurred in the 512 "
    "characters before. What people wrote after the same passages is measured alike. The price of "
    "diversity is the surprisal of samples that are as diverse as people's text (between two "
    "temperatures, by a straight line), less that of people's text. " + LARGER,
    questions=(
        _monotone_question("surprisal", "surprisal"),
        _monotone_question("distinct", "diversity"),
        Question(
            name="share that greedy decoding repeats, less that of sampling",
            unit="",
            prediction=0.6,
            minimum=0.3,
            effect=repeats_more,
        ),
        Question(
            name="surprisal at the diversity of people, less that of people",
            unit="nats per character",
            prediction=0.5,
            minimum=0.1,
            effect=behind_people,
        ),
    ),
    knob=Knob(
        name="frequency penalty",
        meaning="subtracted from a character's log probability for each time it was generated",
        values=(0.0, 0.05, 0.1, 0.2, 0.5),
        default=0.0,
        broken=0.2,
    ),
    breaks="A frequency penalty, as in the playground of the slides, makes less probable what was "
    "written already. Greedy decoding then loops less than half as much.",
    limits="A model of a few seconds of training. The better the model, the less diversity costs: "
    "samples of the true distribution would be people's text. Surprisal under an n-gram model "
    "rewards local fluency, not sense.",
    measure=measure,
    figure=figure,
    equations=(
        "elman.decode.sample:choose",
        "elman.decode.beam:beam_search",
        "elman.evaluate.text_quality:text_quality",
    ),
    reading=(
        "Holtzman and others (2020), The curious case of neural text degeneration",
        "Li and others (2016), A diversity-promoting objective function for neural conversation "
        "models",
        "Caccia and others (2020), Language GANs falling short",
    ),
    seconds=50,
)
