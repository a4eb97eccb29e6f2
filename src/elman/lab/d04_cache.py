"""D4: a cache must be mixed in, so that probabilities sum to one."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

import elman
from elman.batches.encoded import encode_files
from elman.lab.experiment import Experiment, Knob, Question, Row, Trial
from elman.lab.figures import Figure, Panel, over_seeds
from elman.lab.texts import paragraphs, split
from elman.lab.training import fitted

CACHE_SIZE = 200
"""Words that a cache remembers."""


class Cache:
    """The distribution of the last words: P(w) is the share of w among them."""

    def __init__(self, vocab_size: int, size: int = CACHE_SIZE) -> None:
        self._counts_V = torch.zeros(vocab_size, dtype=torch.float64)
        self._words: deque[int] = deque()
        self._size = size

    def add(self, word: int) -> None:
        self._words.append(word)
        self._counts_V[word] += 1
        if len(self._words) > self._size:
            self._counts_V[self._words.popleft()] -= 1

    def probabilities(self) -> Tensor:
        return self._counts_V / max(1, len(self._words))


def measure(trial: Trial) -> Iterator[Row]:
    """Score a held-out stretch of text with each way to use each cache."""
    lines = paragraphs()
    lines = lines[: trial.pick(tiny=300, small=len(lines), large=len(lines))]
    train, test = split(trial, lines, one_stretch=True)
    settings = {"tokenizer.kind": "word", "model.order": 3}
    for _ in fitted(trial, "ngram", [train], out="model", settings=settings):
        pass
    lm = elman.load(trial.folder / "model")
    weight, vocab_size = float(trial.knob), lm.tokenizer.vocab_size
    number = trial.pick(tiny=150, small=3000, large=6000)
    words = [int(word) for word in encode_files([test], lm.tokenizer).ids[:number]]
    other = [int(word) for word in encode_files([train], lm.tokenizer).ids]
    place = int(torch.randint(len(other), ()))
    own, elsewhere = Cache(vocab_size), Cache(vocab_size)
    totals: dict[tuple[str, str], list[float]] = {}
    state, before, begun = lm.model.initial_state(1), lm.tokenizer.boundary_id, 0
    for position, word in enumerate(words):
        logprobs_BV, state = lm.model.step(torch.tensor([before]), state)
        model_V = logprobs_BV[0].double().exp()
        if position >= min(CACHE_SIZE, number // 2):
            begun += 1
            for name, cache in (("own", own), ("other", elsewhere)):
                for way, found_V in ways(model_V, cache.probabilities(), weight).items():
                    total = found_V.sum().item()
                    each = totals.setdefault((name, way), [0.0, 0.0, 0.0])
                    each[0] -= math.log(found_V[word].item())
                    each[1] -= math.log(found_V[word].item() / total)
                    each[2] = max(each[2], abs(total - 1))
        own.add(word)
        elsewhere.add(other[(place + position) % len(other)])
        before = word
    for (name, way), (reported, true, off) in totals.items():
        yield {
            "cache": name,
            "way": way,
            "reported": reported / begun,
            "true": true / begun,
            "off_one": off,
        }


def ways(model_V: Tensor, cache_V: Tensor, weight: float) -> dict[str, Tensor]:
    """The model alone, the mixture, and the cache merely added."""
    return {
        "no cache": model_V,
        "mixed": (1 - weight) * model_V + weight * cache_V,
        "added": model_V + weight * cache_V,
    }


def _of(rows: Sequence[Row], cache: str, way: str) -> Row:
    return next(row for row in rows if (row["cache"], row["way"]) == (cache, way))


def mixture_off_one(rows: Sequence[Row]) -> float:
    return max(float(_of(rows, cache, "mixed")["off_one"]) for cache in ("own", "other"))


def flattery(rows: Sequence[Row]) -> float:
    """By how much the added cache's report is below that of the distribution it stands for."""
    found = _of(rows, "own", "added")
    return float(found["true"] - found["reported"])


def gain_of_other(rows: Sequence[Row], way: str) -> float:
    """What a cache of another text seems to gain."""
    none = _of(rows, "other", "no cache")
    return float(none["reported"] - _of(rows, "other", way)["reported"])


def figure(rows: Sequence[Row]) -> Figure:
    names = {"own": "of this text", "other": "of another text"}
    gains = [
        {
            "seed": seed,
            "bar": f"{way}, {said}",
            "cache": names[cache],
            "gain": none["reported"] - _of(own, cache, way)[said],
        }
        for seed in sorted({row["seed"] for row in rows})
        for own in [[row for row in rows if row["seed"] == seed]]
        if len(own) == 6  # complete: two caches, each used in three ways
        for none in [_of(own, "own", "no cache")]
        for cache in names
        for way, said in (("mixed", "reported"), ("added", "reported"), ("added", "true"))
    ]
    return Figure(
        panels=[
            Panel(
                title=f"What a cache of {CACHE_SIZE} words gains",
                x_label="how it is used, and what is said of it",
                y_label="gain over no cache (nats per word)",
                kind="bars",
                series=over_seeds(gains, x="bar", y="gain", by="cache"),
            )
        ],
        caption="Means over seeds with 95 % intervals. Reported: from scores as they are; true: "
        "after division by their sum, which is 1 + weight for a cache that is added.",
    )


EXPERIMENT = Experiment(
    id="D4",
    title="a cache must sum to one",
    claim="A cache of recent words has to be mixed in, (1 - λ) P + λ C. If it is merely added, "
    "P + λ C, the scores sum to 1 + λ: what is called their perplexity is too low, and even a "
    "cache of an unrelated text seems to help.",
    sources=("ours; on 001: interpolation, and 004: evaluating language models",),
    design="A trigram model (Kneser-Ney) of the words of Python's documentation reads a stretch "
    "that was held out, another one for each seed; the cache holds the last 200 words, as in Kuhn "
    "and De Mori. At every word the scores of the whole vocabulary are summed. The cache is mixed "
    "in or added with the same λ. A second cache holds words of the training text from another "
    "place, so that it knows nothing of the text that is read. An added cache stands for the "
    "distribution that division by the sum gives; the difference between its perplexity and the "
    "reported one is the flattery, log(1 + λ).",
    questions=(
        Question(
            name="mixed: largest distance of a sum from 1",
            unit="",
            prediction=1e-6,
            minimum=1e-3,
            rule="below",
            effect=mixture_off_one,
        ),
        Question(
            name="added: reported below true",
            unit="nats per word",
            prediction=math.log(1.2),
            minimum=0.05,
            effect=flattery,
        ),
        Question(
            name="added: what a cache of another text seems to gain",
            unit="nats per word",
            prediction=0.1,
            minimum=0.02,
            effect=lambda rows: gain_of_other(rows, "added"),
        ),
        Question(
            name="mixed: what a cache of another text gains",
            unit="nats per word",
            prediction=-0.08,
            minimum=0.0,
            rule="below",
            effect=lambda rows: gain_of_other(rows, "mixed"),
        ),
    ),
    knob=Knob(
        name="weight",
        meaning="λ, the weight of the cache",
        values=(0.01, 0.05, 0.1, 0.2, 0.5),
        default=0.2,
        broken=0.01,
    ),
    breaks="With λ = 0.01 the flattery is a hundredth of a nat, one part in a hundred of the "
    "perplexity: too little to notice, and as wrong as before.",
    limits="Stupid backoff gives scores too, and Elman prints no perplexity for it without a note. "
    "Whether a model sums to one is a question to ask of every new mixture: "
    "`elman.testing.check_shapes` asks it.",
    measure=measure,
    figure=figure,
    equations=("elman.lab.d04_cache:ways", "elman.models.mixture:Mixture"),
    reading=(
        "Kuhn and De Mori (1990), A cache-based natural language model for speech recognition",
        "Grave, Joulin and Usunier (2017), Improving neural language models with a continuous "
        "cache",
    ),
    seconds=15,
)
