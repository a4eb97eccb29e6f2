"""D6: a reported perplexity depends on how boundaries and unknown words are counted."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

import elman
from elman.batches.encoded import encode_files
from elman.evaluate.perplexity import scored_tokens
from elman.lab.experiment import Experiment, Knob, Question, Row, Trial
from elman.lab.figures import Figure, Panel, over_seeds
from elman.lab.texts import paragraphs, split
from elman.lab.training import fitted

MIN_COUNTS = (2, 5, 20)
"""Words seen less often than this are unknown; the first is Elman's default."""
BOUNDARIES = ("all counted", "ends left out", "ends summed, not counted")
UNKNOWN = ("all counted", "unknown left out")


def measure(trial: Trial) -> Iterator[Row]:
    """One model and one text for each vocabulary, with several ways to count."""
    lines = sentences(paragraphs())
    train, test = split(trial, lines[: trial.pick(tiny=400, small=len(lines), large=len(lines))])
    for min_count in MIN_COUNTS:
        settings = {
            "tokenizer.kind": trial.knob,
            "tokenizer.min_count": min_count,
            "model.order": 5,
        }
        out = f"min-count-{min_count}"
        for _ in fitted(trial, "ngram", [train], out=out, settings=settings):
            pass
        lm = elman.load(trial.folder / out)
        tokenizer = lm.tokenizer
        text = encode_files([test], tokenizer)
        scored = list(scored_tokens(lm.model, text, boundary_id=tokenizer.boundary_id))
        surprisals_N = -torch.cat([logprobs for logprobs, _ in scored])
        ids_N = torch.cat([ids for _, ids in scored])
        end_id = tokenizer.boundary_id if tokenizer.marks_lines else tokenizer.id("\n")
        for counting, nats in countings(
            surprisals_N, ids_N == end_id, ids_N == (tokenizer.unknown_id or -1)
        ).items():
            yield {
                "min_count": min_count,
                "vocabulary": tokenizer.vocab_size,
                "counting": counting,
                "nats": nats,
                "perplexity": math.exp(nats),
            }


def sentences(lines: Sequence[str]) -> list[str]:
    """Paragraphs to sentences: cut after a full stop or colon that a capital follows."""
    return [part for line in lines for part in re.split(r"(?<=[.:]) (?=[A-Z])", line)]


def countings(surprisals_N: Tensor, end_N: Tensor, unknown_N: Tensor) -> dict[str, float]:
    """Nats per token of the same surprisals, in five ways."""
    total = surprisals_N.sum()
    return {
        "all counted": surprisals_N.mean().item(),
        "ends left out": surprisals_N[~end_N].mean().item(),
        "ends summed, not counted": (total / (~end_N).sum()).item(),
        "unknown left out": surprisals_N[~unknown_N].mean().item(),
        "both left out": surprisals_N[~unknown_N & ~end_N].mean().item(),
    }


def factor(rows: Sequence[Row], among: Sequence[str]) -> float:
    """The largest perplexity over the smallest, with Elman's default vocabulary."""
    found = [
        float(row["nats"])
        for row in rows
        if row["counting"] in among and row["min_count"] == MIN_COUNTS[0]
    ]
    return math.exp(max(found) - min(found))


def factor_of_vocabulary(rows: Sequence[Row]) -> float:
    """The perplexity with the largest vocabulary over that with the smallest, all counted."""
    found = {row["min_count"]: row["nats"] for row in rows if row["counting"] == "all counted"}
    return math.exp(float(found[MIN_COUNTS[0]] - found[MIN_COUNTS[-1]]))


def figure(rows: Sequence[Row]) -> Figure:
    usual = {
        row["seed"]: row["nats"]
        for row in rows
        if row["counting"] == "all counted" and row["min_count"] == MIN_COUNTS[0]
    }
    ratios = [
        {**row, "rare": f"{row['min_count']}", "ratio": math.exp(row["nats"] - usual[row["seed"]])}
        for row in rows
        if row["seed"] in usual
    ]
    return Figure(
        panels=[
            Panel(
                title="The same text, counted in five ways",
                x_label="tokens seen less often than this are unknown",
                y_label="perplexity over that of the first bar",
                kind="bars",
                series=over_seeds(ratios, x="rare", y="ratio", by="counting"),
                levels={"the first bar": 1.0},
            )
        ],
        caption="Means over seeds, each of which holds out other sentences, with 95 % intervals.",
    )


EXPERIMENT = Experiment(
    id="D6",
    title="perplexity and what is counted",
    claim="A reported perplexity depends on how boundaries and unknown words are counted: the "
    "same model on the same text has several, and figures of two papers can be compared only if "
    "both count alike.",
    sources=("ours; on 004: evaluating language model performance",),
    design="A 5-gram model (Kneser-Ney) of the sentences of Python's documentation, a tenth of "
    "them held out. From one list of surprisals follow perplexities with the ends of sentences "
    "counted, left out, or summed but not counted as tokens (SRILM's ppl1), and with unknown words "
    "counted or left out. Then the vocabulary shrinks: rare words become one unknown word, which "
    "is easy to predict. An effect is a ratio of perplexities; 1.05 would be an improvement that "
    "papers report.",
    questions=(
        Question(
            name="ends of sentences: largest perplexity over smallest",
            unit="",
            prediction=1.4,
            minimum=1.05,
            effect=partial(factor, among=BOUNDARIES),
        ),
        Question(
            name="unknown words: largest perplexity over smallest",
            unit="",
            prediction=1.15,
            minimum=1.05,
            effect=partial(factor, among=UNKNOWN),
        ),
        Question(
            name="vocabulary: perplexity with all words seen twice over that with those seen 20 "
            "times",
            unit="",
            prediction=2.5,
            minimum=1.05,
            effect=factor_of_vocabulary,
        ),
    ),
    knob=Knob(
        name="tokens",
        meaning="the unit of text",
        values=("word", "char"),
        default="word",
        broken="char",
    ),
    breaks="Characters leave nothing unknown: it makes no difference how unknown tokens are "
    "counted, or how often a token must occur. And bits per byte, which "
    "Elman prints beside every perplexity, divide by the same number for every model.",
    limits="Leaving unknown words out changes little with Elman's default vocabulary, of words "
    "seen twice: the few that are unknown are about as surprising as the others. With the words "
    "seen 20 times it raises the perplexity by a fifth, since `<unk>` has become an easy word. How "
    "much each choice matters depends on the text: short sentences have more ends, a text of "
    "another kind more unknown words.",
    measure=measure,
    figure=figure,
    equations=("elman.lab.d06_counting:countings", "elman.evaluate.perplexity:evaluate"),
    reading=(
        "Stolcke (2002), SRILM, an extensible language modeling toolkit",
        "Mielke (2019), Can you compare perplexity across different segmentations?",
    ),
    seconds=10,
)
