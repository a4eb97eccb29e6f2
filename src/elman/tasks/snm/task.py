"""Sparse non-negative matrix models: from text files to a run folder, by counting.

read      text to token ids, as for an n-gram model
count     n-grams and skip-grams, in memory
learn     what counts are worth, by leaving events out
write     snm.safetensors, tokenizer.json, config.json, card.md
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from elman.base.config import to_dict
from elman.batches.encoded import encode_files
from elman.runs.new_folder import filling
from elman.runs.run_folder import CONFIG_FILE, TOKENIZER_FILE
from elman.tasks.counted import (
    card_head,
    check_files,
    claim,
    counted_rows,
    finish,
    measured,
    note,
    read_summary,
    read_text,
    summary_table,
    timed,
)
from elman.tasks.snm.settings import SNMRun
from elman.tasks.snm.sparse_matrix import (
    MODEL_FILE,
    SparseMatrixModel,
    estimate_matrix,
    save_matrix,
)
from elman.text.sources import expand
from elman.tokens.tokenizer import Tokenizer
from elman.train.report import Report


def fit(config: SNMRun, out: Path, *, num_threads: int | None = None) -> Iterator[Report]:
    """Make a model in the new folder `out`; the last report has the summary.

    All of the text is counted, and what counts are worth is learnt from it too; the validation and
    test texts are only measured.
    """
    started = time.perf_counter()
    claim(out)
    files = check_files(config)
    text = read_text(files, config.tokenizer, None)
    yield from map(note, text.notes)
    num_tokens = len(text.ids)
    yield note(f"{num_tokens:,} tokens, {text.tokenizer.vocab_size:,} types")
    counting = time.perf_counter()
    made = estimate_matrix(text.ids, config.model, num_threads=num_threads, **text.sizes)
    found = made.about["leave_one_out_perplexity"]
    yield note(
        f"{len(made.keys):,} contexts of {len(made.templates)} kinds, {len(made.words):,} entries; "
        f"perplexity of words left out {', '.join(f'{p:.1f}' for p in found)}"
    )
    with filling(out, last=CONFIG_FILE) as folder:
        save_matrix(folder / MODEL_FILE, made, {"tokenizer": text.tokenizer.hash})
        ended = time.perf_counter()
        text.tokenizer.save(folder / TOKENIZER_FILE)
        summary: dict[str, Any] = {
            "out": str(out),
            "perplexity": None,
            "steps": 0,
            "tokens": num_tokens,
            "contexts": len(made.keys),
            "entries": len(made.words),
        }
        for paths, prefix in ((config.data.valid, ""), (config.data.test, "test_")):
            if paths:
                encoded = encode_files(expand(paths), text.tokenizer)
                summary |= measured(made, encoded, text.tokenizer, prefix, num_threads)
        timed(summary, num_tokens, started=started, counting=counting, ended=ended)
        config = replace(config, tokenizer=text.tokens)
        done = finish(config, folder, summary, _card(out, config, text.tokenizer, made, summary))
    yield done


def describe(run: Any) -> dict[str, Any]:
    """Values for `elman info`: contexts and entries by kind, figures."""
    return {
        "path": str(run.path),
        "model": to_dict(run.config.model),
        "recipe": run.config.recipe,
        "data": to_dict(run.config.data),
        "bytes": (run.path / MODEL_FILE).stat().st_size,
        "summary": read_summary(run.path),
        "contexts": run.model.matrix.by_template(),
        "notes": [],
    }


def info_rows(part: dict[str, Any]) -> list[tuple[str, str]]:
    """The kinds of contexts: a w for each word, an underscore for each that is skipped."""
    contexts = [
        (
            " ".join(["w"] * row["remote"] + ["_"] * row["skip"] + ["w"] * row["adjacent"] + ["?"]),
            f"{row['contexts']:,} contexts, {row['entries']:,} entries, weight {row['weight']:.3f}",
        )
        for row in part["contexts"]
    ]
    return contexts + counted_rows(part)


def summary_rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    made = [(name, f"{summary[name]:,}") for name in ("contexts", "entries")]
    return summary_table(summary, made)


def _card(
    out: Path,
    config: SNMRun,
    tokenizer: Tokenizer,
    model: SparseMatrixModel,
    summary: dict[str, Any],
) -> list[str]:
    lines = card_head(
        out,
        f"A sparse non-negative matrix language model over {tokenizer.vocab_size:,} tokens "
        f"({tokenizer.kind})",
        config,
        summary,
        f"| matrix | {summary['contexts']:,} contexts, {summary['entries']:,} entries |",
    )
    lines += [
        "",
        "## Contexts",
        "",
        "| remote | skipped | adjacent | contexts | entries | mean weight |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['remote']} | {row['skip']} | {row['adjacent']} | {row['contexts']:,} | "
        f"{row['entries']:,} | {row['weight']:.3f} |"
        for row in model.by_template()
    ]
    lines += ["", "## Use", "", "    elman next FOLDER PREFIX", "    elman evaluate FOLDER TEXT"]
    return lines
