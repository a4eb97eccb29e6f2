"""N-gram models without a limit on n, from an index of the text."""

from __future__ import annotations

from elman.tasks.common_options import COLUMN, TOKENIZER
from elman.tasks.task import EvaluateOption, Option, Route, Shortcut, Task

INFINIGRAM = Task(
    name="infinigram",
    what="an n-gram model without a limit on n",
    help="Train an n-gram model without a limit on n.",
    config="elman.tasks.infinigram.settings:InfinigramRun",
    handle="elman.tasks.infinigram.handle:InfinigramHandle",
    fit="elman.tasks.infinigram.task:fit",
    open_fitted="elman.tasks.infinigram.task:open_fitted",
    corpus="python-docs",
    options=(
        Option(
            name="order",
            setting="model.order",
            type=int,
            metavar="N",
            help="Order of the Kneser-Ney model that matches are mixed into. [default: 5]",
        ),
        COLUMN,
        TOKENIZER,
        Option(
            name="memory",
            metavar="SIZE",
            help="Sort and count in this much memory (2G), beyond it on disk.",
        ),
    ),
    verbs={
        "find": "elman.tasks.infinigram.command:find",
        "join": "elman.tasks.infinigram.command:join",
    },
    shortcuts=(
        Shortcut(
            name="index",
            help="Index a text, to find any words in it (elman find).",
            settings={"model.order": 1, "model.held_out": 0.0},
        ),
    ),
    routes=(
        Route(
            name="find",
            help="How often a text stands in the training text, what follows it, and where.",
            ask="elman.tasks.infinigram.handle:found_for_clients",
        ),
    ),
    evaluate_options=(
        EvaluateOption(
            name="agreement",
            help="Models of an index: draw how often the longest match guesses the next token.",
            draw="elman.tasks.infinigram.pictures:draw_agreement",
            rows="elman.tasks.infinigram.pictures:agreement_rows",
        ),
    ),
    describe="elman.tasks.infinigram.task:describe",
    info_rows="elman.tasks.infinigram.task:info_rows",
    files=("index.safetensors", "ngram.safetensors", "weights.json"),
    summary_rows="elman.tasks.infinigram.task:summary_rows",
)
