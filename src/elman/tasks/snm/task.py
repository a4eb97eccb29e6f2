"""`elman train snm`: from text files to a run folder with a sparse non-negative matrix model.

read      text to token ids, as for an n-gram model
count     n-grams and skip-grams, in memory
learn     what counts are worth, by leaving events out
write     snm.safetensors, tokenizer.json, config.json, card.md
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elman.base.files import write_json, write_text
from elman.batches.encoded import encode_files
from elman.runs.new_folder import filling
from elman.tasks.ngram.task import (
    CARD_FILE,
    CONFIG_FILE,
    METRICS_FILE,
    Note,
    card_figures,
    claim,
    config_of,
    measured,
    read_summary,
    read_text,
)
from elman.tasks.snm.settings import SNMConfig
from elman.tasks.snm.sparse_matrix import (
    MODEL_FILE,
    SparseMatrixModel,
    estimate_matrix,
    load_matrix,
    save_matrix,
)
from elman.text.sources import expand
from elman.tokens.tokenizer import TOKENIZER_FILE, Tokenizer
from elman.tokens.tokenizer_config import TokenizerConfig


def train_snm(
    data: Sequence[str],
    out: Path,
    *,
    valid: Sequence[str] = (),
    test: Sequence[str] = (),
    model: SNMConfig | None = None,
    tokenizer: TokenizerConfig | None = None,
    num_threads: int | None = None,
    note: Note = lambda text: None,
) -> dict[str, Any]:
    """Make a model of text files in the new folder `out`; return the summary.

    All of the text is counted, and the worth of counts is learnt from it too; `valid` and `test`
    are only measured. `note` hears what is going on.
    """
    started = time.perf_counter()
    config, tokens = model or SNMConfig(), tokenizer or TokenizerConfig()
    claim(out)
    files = expand(data)
    for paths in (valid, test):
        if paths:
            expand(paths)
    text = read_text(files, tokens, None, note)
    num_tokens = len(text.ids)
    note(f"{num_tokens:,} tokens, {text.tokenizer.vocab_size:,} types")
    counting = time.perf_counter()
    made = estimate_matrix(text.ids, config, num_threads=num_threads, **text.sizes)
    found = made.about["leave_one_out_perplexity"]
    note(
        f"{len(made.keys):,} contexts of {len(made.templates)} kinds, {len(made.words):,} entries; "
        f"perplexity of words left out {', '.join(f'{p:.1f}' for p in found)}"
    )
    with filling(out, last=CONFIG_FILE) as folder:
        header = {"tokenizer": text.tokenizer.hash}
        save_matrix(folder / MODEL_FILE, made, header)
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
        for paths, prefix in ((valid, ""), (test, "test_")):
            if paths:
                encoded = encode_files(expand(paths), text.tokenizer)
                summary |= measured(made, encoded, text.tokenizer, prefix, num_threads)
        summary["seconds"] = round(time.perf_counter() - started, 3)
        summary["tokens_per_second"] = round(num_tokens / max(1e-9, ended - counting), 1)
        report = {"kind": "done", "tokens": num_tokens, "seconds": summary["seconds"]}
        write_text(folder / METRICS_FILE, json.dumps(report | {"summary": summary}) + "\n")
        write_text(folder / CARD_FILE, _card(out, data, text.tokenizer, made, summary))
        write_json(folder / CONFIG_FILE, config_of(data, valid, test, text.tokens, config))
    return summary


def info(folder: Path) -> dict[str, Any]:
    """What the model in a run folder is: contexts and entries by kind, figures."""
    model, _ = load_matrix(folder / MODEL_FILE)
    return {
        "by_template": model.by_template(),
        "bytes": (folder / MODEL_FILE).stat().st_size,
        "summary": read_summary(folder),
    }


def _card(
    out: Path,
    data: Sequence[str],
    tokenizer: Tokenizer,
    model: SparseMatrixModel,
    summary: dict[str, Any],
) -> str:
    """card.md: what the model is and how well it does, for whoever finds the folder."""
    lines = [
        f"# {out.name}",
        "",
        f"A sparse non-negative matrix language model over {tokenizer.vocab_size:,} tokens "
        f"({tokenizer.kind}), made with Elman.",
        "",
        "| | |",
        "|---|---|",
        f"| text | {', '.join(Path(path).name for path in data)}, {summary['tokens']:,} tokens |",
        f"| matrix | {summary['contexts']:,} contexts, {summary['entries']:,} entries |",
        f"| made in | {summary['seconds']:.1f} seconds |",
        *card_figures(summary),
    ]
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
    return "\n".join(lines) + "\n"
