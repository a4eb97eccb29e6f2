"""Sparse non-negative matrix models: from text files to a run folder, by counting.

read      text to token ids, as for an n-gram model
count     n-grams and skip-grams, in memory
learn     weights of the counts, by leaving one event out at a time
write     snm.safetensors, tokenizer.json, config.json, card.md
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elman.runs.new_folder import filling
from elman.runs.run_folder import CONFIG_FILE, TOKENIZER_FILE
from elman.tasks import counted
from elman.tasks.counted import note
from elman.tasks.snm.settings import SNMRun
from elman.tasks.snm.sparse_matrix import MODEL_FILE, estimate_matrix, load_matrix, save_matrix
from elman.train.report import Report


def fit(config: SNMRun, out: Path, *, num_threads: int | None = None) -> Iterator[Report]:
    """Make a model in the new folder `out`; the last report has the summary.

    All of the text is counted, and the weights of the counts are learnt from it too; the validation
    and test texts are only measured.
    """
    started = time.perf_counter()
    text = counted.read_text(counted.check(config, out), config.tokenizer, None)
    tokenizer = text.tokenizer
    yield from map(note, text.notes)
    yield note(f"{len(text.ids):,} tokens, {tokenizer.vocab_size:,} types")
    counting = time.perf_counter()
    made = estimate_matrix(text.ids, config.model, num_threads=num_threads, **text.sizes)
    found = made.about["leave_one_out_perplexity"]
    yield note(
        f"{len(made.keys):,} contexts of {len(made.templates)} kinds, {len(made.words):,} entries; "
        f"perplexity of words left out {', '.join(f'{p:.1f}' for p in found)}"
    )
    with filling(out, last=CONFIG_FILE) as folder:
        save_matrix(folder / MODEL_FILE, made, {"tokenizer": tokenizer.hash})
        seconds_counting = time.perf_counter() - counting
        tokenizer.save(folder / TOKENIZER_FILE)
        summary: dict[str, Any] = {"out": str(out), "perplexity": None, "steps": 0}
        summary |= {"contexts": len(made.keys), "entries": len(made.words)}
        valid = counted.encoded(config.data.valid, tokenizer)
        test = counted.encoded(config.data.test, tokenizer)
        summary |= counted.measured(made, tokenizer, valid, test, num_threads)
        names = ("remote", "skipped", "adjacent", "contexts", "entries", "mean weight")
        contexts = [
            (row["remote"], row["skip"], row["adjacent"], *_amounts(row))
            for row in made.by_template()
        ]
        done = counted.finish(
            config,
            out,
            folder,
            text,
            summary,
            started=started,
            seconds_counting=seconds_counting,
            what="A sparse non-negative matrix language model",
            rows=[f"| matrix | {len(made.keys):,} contexts, {len(made.words):,} entries |"],
            sections=counted.section("Contexts", names, contexts) + counted.uses(),
        )
    yield done


def open_fitted(path: Path, config: SNMRun) -> Any:
    from elman.tasks.counted_model import open_counts

    return open_counts(path, MODEL_FILE, load_matrix)


def describe(run: Any) -> dict[str, Any]:
    """Values for `elman info`: contexts and entries by kind, figures."""
    return counted.describe(run, MODEL_FILE) | {"contexts": run.model.counts.by_template()}


def info_rows(part: dict[str, Any]) -> list[tuple[str, str]]:
    """The kinds of contexts: a w for each word, an underscore for each that is skipped."""
    contexts = [
        (
            " ".join(["w"] * row["remote"] + ["_"] * row["skip"] + ["w"] * row["adjacent"] + ["?"]),
            "{} contexts, {} entries, weight {}".format(*_amounts(row)),
        )
        for row in part["contexts"]
    ]
    return contexts + counted.counted_rows(part)


def summary_rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    made = [(name, f"{summary[name]:,}") for name in ("contexts", "entries")]
    return counted.summary_table(summary, made)


def _amounts(row: dict[str, Any]) -> tuple[str, str, str]:
    """Format the number of contexts and entries of one kind, and their mean weight."""
    return f"{row['contexts']:,}", f"{row['entries']:,}", f"{row['weight']:.3f}"
