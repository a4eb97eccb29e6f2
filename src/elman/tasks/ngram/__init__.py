"""N-gram language models, fitted by counting."""

from __future__ import annotations

from elman.tasks.common_options import COLUMN, ORDER, TOKENIZER
from elman.tasks.task import Option, Task

NGRAM = Task(
    name="ngram",
    what="an n-gram language model",
    help="Estimate an n-gram model (Kneser-Ney and others).",
    config="elman.tasks.ngram.settings:NgramRun",
    handle="elman.tasks.ngram.handle:NgramHandle",
    fit="elman.tasks.ngram.task:fit",
    open_fitted="elman.tasks.ngram.task:open_fitted",
    corpus="python-docs",
    options=(
        ORDER,
        COLUMN,
        TOKENIZER,
        Option(
            name="smoothing",
            setting="model.smoothing",
            metavar="NAME",
            help="How unseen n-grams are treated: kneser-ney, absolute, witten-bell, "
            "jelinek-mercer, katz, add-delta, maximum-likelihood or stupid-backoff. "
            "[default: kneser-ney]",
        ),
        Option(
            name="prune",
            setting="model.prune",
            metavar="N,N...",
            help="For each length, leave out n-grams that occur this often or less, as in 0,0,1.",
        ),
        Option(
            name="arpa",
            metavar="FILE",
            help="Write the model as an ARPA file (.gz: compressed) too.",
        ),
        Option(
            name="memory",
            metavar="SIZE",
            help="Count in this much memory (2G), beyond it on disk.",
        ),
        Option(
            name="cluster",
            metavar="ADDRESS",
            help="Count on a Dask cluster: local:4 (processes here) or tcp://HOST:8786.",
        ),
        Option(
            name="exchange",
            metavar="ADDRESS",
            help="With --cluster, for workers that do not share the run folder: where their files "
            "pass through, as s3://BUCKET/FOLDER.",
        ),
        Option(
            name="plan",
            type=int,
            minimum=1,
            metavar="N",
            help="Only cut the text into N shards, for the stages of elman ngram.",
        ),
    ),
    resumes=True,
    commands={
        "count": "elman.tasks.ngram.command:count",
        "merge": "elman.tasks.ngram.command:merge",
        "estimate": "elman.tasks.ngram.command:estimate",
        "join": "elman.tasks.ngram.command:join",
    },
    commands_help="Count a large text in stages, as an array of jobs.",
    opens="elman.tasks.ngram.handle:open_arpa_file",
    convert="elman.tasks.ngram.convert:convert",
    convert_layout="elman.tasks.ngram.convert:convert_layout",
    convert_help="an n-gram run becomes an .arpa or .arpa.gz file; an ARPA file becomes another, "
    "or a run folder",
    convert_suffixes=(".arpa", ".arpa.gz"),
    describe="elman.tasks.ngram.task:describe",
    info_rows="elman.tasks.ngram.task:info_rows",
    files=("ngram.safetensors", "stages"),
    summary_rows="elman.tasks.ngram.task:summary_rows",
)
