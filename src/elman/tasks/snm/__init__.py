"""Sparse non-negative matrix language models of skip-grams, fitted by counting."""

from __future__ import annotations

from elman.tasks.common_options import COLUMN, ORDER, TOKENIZER
from elman.tasks.task import Option, Task

SNM = Task(
    name="snm",
    what="a sparse matrix language model",
    help="Estimate a sparse matrix model of n-grams and skip-grams.",
    config="elman.tasks.snm.settings:SNMRun",
    handle="elman.tasks.language_model_handle:LM",
    fit="elman.tasks.snm.task:fit",
    open_fitted="elman.tasks.snm.task:open_fitted",
    corpus="python-docs",
    options=(
        ORDER,
        COLUMN,
        TOKENIZER,
        Option(
            name="skip",
            setting="model.max_skip",
            type=int,
            metavar="N",
            help="Most words in a skip-gram's gap; 0: none. [default: 3]",
        ),
    ),
    describe="elman.tasks.snm.task:describe",
    info_rows="elman.tasks.snm.task:info_rows",
    files=("snm.safetensors",),
    summary_rows="elman.tasks.snm.task:summary_rows",
)
