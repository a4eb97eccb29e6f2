"""C5: n-grams become sparse and large as n grows; smoothing and backing off answer that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import elman
from elman.lab.experiment import Experiment, Knob, Question, Row, Trial
from elman.lab.figures import Figure, Panel, over_seeds
from elman.lab.texts import paragraphs, split
from elman.lab.training import fitted

UNSMOOTHED = "maximum-likelihood"


def measure(trial: Trial) -> Iterator[Row]:
    """Models of orders 1 to 7, by maximum likelihood and with the smoothing of the knob."""
    lines = paragraphs(trial.pick(tiny="python-docs", small="python-docs", large="python-source"))
    train, test = split(trial, lines[: trial.pick(tiny=300, small=len(lines), large=len(lines))])
    orders = range(1, trial.pick(tiny=5, small=7, large=7) + 1)
    for order in orders:
        for smoothing in (UNSMOOTHED, trial.knob):
            settings = {
                "tokenizer.kind": "word",
                "model.order": order,
                "model.smoothing": smoothing,
            }
            out = f"{smoothing}-{order}"
            *_, done = fitted(trial, "ngram", [train], valid=[test], out=out, settings=settings)
            found = done.summary or {}
            row = {"order": order, "smoothing": smoothing}
            row["impossible"] = found["impossible"] / found["valid_tokens"]
            if not found["impossible"]:
                row |= {"nats": found["nats_per_token"], "perplexity": found["perplexity"]}
            yield row
    unseen = found["unseen"]
    sizes = elman.load(trial.folder / out).model.counts.growth()
    for share, size in zip(unseen, sizes, strict=True):
        yield {
            "n": share["order"],
            "unseen": share["unseen_ngrams"],
            "unseen_contexts": share["unseen_contexts"],
            "ngrams": size["ngrams"],
            "megabytes": size["bytes"] / 1e6,
        }


def _at(rows: Sequence[Row], n: int, name: str) -> float:
    """A value at order n, or at the longest one that was measured."""
    found = {row["n"]: float(row[name]) for row in rows if "n" in row}
    return found[min(n, max(found))]


def rise_of_unseen(rows: Sequence[Row]) -> float:
    return _at(rows, 5, "unseen") - _at(rows, 2, "unseen")


def growth_of_storage(rows: Sequence[Row]) -> float:
    return _at(rows, 5, "megabytes") / _at(rows, 2, "megabytes")


def impossible_share(rows: Sequence[Row]) -> float:
    """The share of held-out words with probability 0 or 0/0, by maximum likelihood, n = 3."""
    found = [row for row in rows if row.get("smoothing") == UNSMOOTHED and row["order"] == 3]
    return float(found[0]["impossible"])


def loss_of_length(rows: Sequence[Row]) -> float:
    """What the longest n-grams lose against the best order, with the smoothing of the knob."""
    found = {
        r["order"]: float(r["nats"])
        for r in rows
        if r.get("smoothing") != UNSMOOTHED and "nats" in r
    }
    return found[max(found)] - min(found.values())


def figure(rows: Sequence[Row]) -> Figure:
    orders = [row for row in rows if "n" in row]
    fits = [row for row in rows if "order" in row]
    smoothing = next((row["smoothing"] for row in fits if row["smoothing"] != UNSMOOTHED), "")
    return Figure(
        panels=[
            Panel(
                title="Sparsity",
                x_label="n",
                y_label="share of the held-out text",
                series=[
                    *over_seeds(orders, x="n", y="unseen", name="n-grams never seen"),
                    *over_seeds(orders, x="n", y="unseen_contexts", name="contexts never seen"),
                ],
            ),
            Panel(
                title="Storage",
                x_label="n",
                y_label="size of the model (MB)",
                series=over_seeds(orders, x="n", y="megabytes", name="megabytes"),
            ),
            Panel(
                title=f"Perplexity, {smoothing}",
                x_label="n",
                y_label="perplexity per word, held out",
                y_log=True,
                series=over_seeds(fits, x="order", y="perplexity", by="smoothing"),
            ),
        ],
        caption="Means over seeds, each of which holds out other paragraphs, with 95 % intervals. "
        "Maximum likelihood has no points where its perplexity is infinite.",
    )


EXPERIMENT = Experiment(
    id="C5",
    title="n-grams: sparsity and storage",
    claim="Increasing n makes sparsity worse, and the model larger: typically one can only go to "
    "n = 5. N-grams never seen get probability 0, which smoothing solves (adding a small δ to "
    "each count); contexts never seen mean a division by 0, which backoff solves.",
    sources=("004: problems with n-gram models",),
    design="N-gram models of orders 1 to 7 of the words of Python's documentation, a paragraph a "
    "line, repeated ones once; a tenth of the paragraphs is held out, others for each "
    "seed. Sparsity is the share of held-out n-grams that never occur in training, storage the "
    "bytes of all n-grams up to n. "
    "Maximum likelihood shows what probability 0 does. Then the counts are smoothed as the "
    "lecture says, by δ = 0.01: if that solved sparsity, longer n-grams would not be worse.",
    questions=(
        Question(
            name="rise of the share of unseen n-grams from n = 2 to n = 5",
            unit="",
            prediction=0.55,
            minimum=0.3,
            effect=rise_of_unseen,
        ),
        Question(
            name="size with n = 5 over size with n = 2",
            unit="",
            prediction=8.0,
            minimum=3.0,
            effect=growth_of_storage,
        ),
        Question(
            name="share of held-out words that maximum likelihood calls impossible, n = 3",
            unit="",
            prediction=0.6,
            minimum=0.05,
            effect=impossible_share,
        ),
        Question(
            name="what n = 7 loses against the best order",
            unit="nats per word",
            prediction=1.5,
            minimum=0.1,
            effect=loss_of_length,
        ),
    ),
    knob=Knob(
        name="smoothing",
        meaning="how counts become probabilities",
        values=("add-delta", "katz", "witten-bell", "absolute", "kneser-ney"),
        default="add-delta",
        broken="kneser-ney",
    ),
    breaks="With interpolated Kneser-Ney the longest n-grams are the best, although they are as "
    "sparse and as large as before: backing off well makes n a matter of memory alone.",
    limits="The text has some 70,000 words. More text moves every curve to the right. Adding δ "
    "spreads each context's counts over the whole vocabulary, so it gets worse as contexts get "
    "rare: it solves probability 0, not sparsity.",
    measure=measure,
    figure=figure,
    equations=(
        "elman.ngrams.statistics:unseen",
        "elman.ngrams.model:NgramModel",
        "elman.ngrams.kneser_ney",
    ),
    reading=(
        "Chen and Goodman (1999), An empirical study of smoothing techniques for language modeling",
        "Brants and others (2007), Large language models in machine translation",
    ),
    seconds=12,
)
