"""Shared by tasks whose models are fitted by counting: reading text, metrics, the run folder.

Nothing here needs torch: fitting a small text takes less time than importing torch.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.base.config import to_dict
from elman.base.documents import damaged, intact, read_json_lines, sealed, sealed_page
from elman.base.errors import UsageError
from elman.base.files import write_text
from elman.base.memory import trim
from elman.base.origins import origin
from elman.batches.encoded import EncodedText, encode_files
from elman.ngrams.reading import read_stretches, word_tokenizer
from elman.ngrams.scratch import Scratch
from elman.ngrams.statistics import Scorer, why_infinite
from elman.ngrams.statistics import fit as measure_fit
from elman.runs.run_config import RunConfig
from elman.runs.run_folder import CARD_FILE, CONFIG_FILE, METRICS_FILE, write_config
from elman.runs.run_folder import MODEL_FILE as TRAINED_FILE
from elman.terminal.console import duration, number, size, unknown_rows
from elman.text.sources import expand
from elman.tokens.choose import choose
from elman.tokens.tokenizer import Tokenizer
from elman.tokens.tokenizer_config import TokenizerConfig
from elman.train.report import Report

PARTS = (("", "validation", "valid_tokens"), ("test_", "test", "test_tokens"))
"""For each text that a summary has figures of: prefix, name, key of its number of tokens."""


@dataclass(frozen=True, kw_only=True)
class CountedRun(RunConfig):
    """A run that is fitted by counting. All of the text is counted by default."""

    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    """How text becomes tokens."""


@dataclass(frozen=True)
class CountedText:
    """The training text."""

    ids: NDArray[Any]
    tokenizer: Tokenizer
    tokens: TokenizerConfig
    """The tokenizer's settings, automatic choices included."""
    num_bytes: int
    notes: tuple[str, ...] = ()

    @property
    def sizes(self) -> dict[str, Any]:
        """Arguments of the functions that count."""
        tokenizer = self.tokenizer
        return {"vocab_size": tokenizer.vocab_size, "boundary_id": tokenizer.boundary_id}

    def without_ids(self) -> CountedText:
        """Let go of the ids, which take memory beside the model; their number stays."""
        return replace(self, ids=np.broadcast_to(np.zeros(1, np.int32), len(self.ids)))


def note(text: str) -> Report:
    return Report(kind="note", note=text)


def check(config: CountedRun, out: Path) -> list[Path]:
    """Check that `out` holds no run and that all texts exist; return the training files."""
    check_new(out)
    for paths in (config.data.valid, config.data.test):
        if paths:
            expand(paths)
    return expand(config.data.train)


def check_new(
    out: Path, hint: str = "replace it with --overwrite, or choose another --out"
) -> None:
    """Check that `out` holds no run."""
    # A killed run may have left other files, which are replaced; config.json is the last one.
    if (out / CONFIG_FILE).exists() or (out / TRAINED_FILE).exists():
        raise UsageError(f"{out} already holds a run", hint)


def read_text(files: list[Path], tokens: TokenizerConfig, scratch: Scratch | None) -> CountedText:
    """Read and encode the text.

    An automatic tokenizer keeps every word: an unknown word is one that is not in the training
    text, as in KenLM.
    """
    notes = []
    known = None if tokens.file is None else Tokenizer.load(tokens.file)
    if known is None and tokens.kind == "auto":
        chosen = choose(files)
        is_word = chosen.kind != "pretokenized"
        notes.append("tokens are words" if is_word else chosen.reason)
        tokens = replace(tokens, kind="word" if is_word else "pretokenized")
    if (known.kind if known else tokens.kind) not in ("word", "pretokenized"):
        from elman.tokens.train import train_tokenizer

        known = known or train_tokenizer(files, tokens)[0]
        text = encode_files(files, known)
        return CountedText(text.ids, known, tokens, text.num_bytes, tuple(notes))
    lowercase = known.lowercase if known else tokens.lowercase
    stretches = read_stretches(files, lowercase=lowercase, scratch=scratch)
    if known is None:
        tokens = replace(tokens, min_count=max(1, tokens.min_count))
        known = word_tokenizer(
            stretches,
            tokens.kind,
            vocab_size=tokens.vocab_size,
            min_count=tokens.min_count,
            lowercase=tokens.lowercase,
        )
    ids, num_bytes = stretches.ids(known), stretches.num_bytes
    del stretches
    trim()  # what reading leaves behind would stay beside the counts
    return CountedText(ids, known, tokens, num_bytes, tuple(notes))


def encoded(paths: Sequence[str], tokenizer: Tokenizer) -> EncodedText | None:
    """Encode the validation or test text; None if there is none."""
    return encode_files(expand(paths), tokenizer) if paths else None


def measured(
    model: Scorer,
    tokenizer: Tokenizer,
    valid: EncodedText | None,
    test: EncodedText | None,
    num_threads: int | None,
) -> dict[str, Any]:
    """Measure a model on its validation and test texts; return the figures for a summary."""
    figures: dict[str, Any] = {}
    for (prefix, _, tokens), text in zip(PARTS, (valid, test), strict=True):
        if text is not None:
            found = measure_fit(
                model, text.ids, unknown_id=tokenizer.unknown_id, num_threads=num_threads
            )
            figures |= {
                f"{prefix}perplexity": found.perplexity,
                f"{prefix}nats_per_token": found.nats_per_token,
                f"{prefix}bits_per_byte": found.nats / math.log(2) / max(1, text.num_bytes),
                tokens: found.tokens,
                f"{prefix}oov": found.oov,
                f"{prefix}impossible": found.impossible,
            }
    return figures


def why_perplexities_are_infinite(summary: Mapping[str, Any]) -> list[str]:
    return [
        f"of the {name} text {why_infinite(summary[f'{prefix}impossible'], summary[tokens])}"
        for prefix, name, tokens in PARTS
        if summary.get(f"{prefix}impossible")
    ]


def finish(
    config: CountedRun,
    out: Path,
    folder: Path,
    text: CountedText,
    summary: dict[str, Any],
    *,
    started: float,
    seconds_counting: float,
    what: str,
    rows: Sequence[str],
    sections: Sequence[str],
) -> Report:
    """Write the card and the other text files of a run; return the last report.

    `rows` of the card's first table and `sections` after it are the task's own.
    """
    num_tokens, tokenizer = len(text.ids), text.tokenizer
    summary["tokens"] = num_tokens
    summary["seconds"] = round(time.perf_counter() - started, 3)
    summary["tokens_per_second"] = round(num_tokens / max(1e-9, seconds_counting), 1)
    names = ", ".join(Path(origin(path)).name for path in config.data.train)
    card = [
        f"# {out.name}",
        "",
        f"{what} over {tokenizer.vocab_size:,} tokens ({tokenizer.kind}), made by counting, with "
        "Elman.",
        "",
        "| | |",
        "|---|---|",
        f"| text | {names}, {num_tokens:,} tokens |",
        *rows,
        f"| made in | {summary['seconds']:.1f} seconds |",
        *(
            f"| {name} | perplexity {perplexity:.2f}, {bits:.4f} bits per byte |"
            for name, perplexity, bits in _figures(summary)
        ),
        *sections,
    ]
    write_files(folder, replace(config, tokenizer=text.tokens), summary, card)
    seconds = summary["seconds"]
    return Report(kind="done", tokens=num_tokens, seconds=seconds, progress=1.0, summary=summary)


def section(title: str, names: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A section of the card with a table."""
    lines = [f"| {' | '.join(map(str, row))} |" for row in [names, *rows]]
    return ["", f"## {title}", "", lines[0], f"|{'---|' * len(names)}", *lines[1:]]


def uses(*commands: str) -> list[str]:
    """The last section of the card: commands that use the model."""
    shared = ("elman next FOLDER PREFIX", "elman evaluate FOLDER TEXT")
    return ["", "## Use", "", *(f"    {command}" for command in (*shared, *commands))]


def write_files(
    folder: Path, config: CountedRun, summary: Mapping[str, Any], card: Sequence[str]
) -> None:
    """Write metrics.jsonl, card.md and config.json, in this order."""
    done = {"kind": "done", "tokens": summary.get("tokens", 0)}
    done |= {"seconds": summary.get("seconds", 0.0), "summary": summary}
    write_text(folder / METRICS_FILE, sealed(json.dumps(done)) + "\n")
    write_text(folder / CARD_FILE, sealed_page("\n".join(card) + "\n"))
    write_config(folder, config)


def describe(run: Any, model_file: str) -> dict[str, Any]:
    """Values for `elman info` that all counted models have."""
    return {
        "path": str(run.path),
        "model": to_dict(run.config.model),
        "recipe": run.config.recipe,
        "data": to_dict(run.config.data),
        "bytes": (run.path / model_file).stat().st_size,
        "summary": read_summary(run.path),
        "notes": [],
    }


def read_summary(folder: Path) -> dict[str, Any]:
    """The summary at the end of metrics.jsonl."""
    reports = read_json_lines(folder / METRICS_FILE)
    if not reports or not isinstance(reports[-1].get("summary"), dict):
        raise damaged(folder / METRICS_FILE, "it does not end with a summary")
    return dict(reports[-1]["summary"])


def _figures(summary: Mapping[str, Any]) -> Iterator[tuple[str, float, float]]:
    """Yield the name, perplexity and bits per byte of each text that was measured."""
    for prefix, name, _ in PARTS:
        if summary.get(f"{prefix}perplexity") is not None:
            yield name, summary[f"{prefix}perplexity"], summary[f"{prefix}bits_per_byte"]


def counted_rows(part: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows of `elman info`: size, data, training, figures."""
    summary = part["summary"]
    rows = [("size on disk", size(part["bytes"]))]
    if "source" in summary:
        rows.append(("converted from", summary["source"]))
    else:
        rows.append(("counted", ", ".join(map(origin, part["data"]["train"]))))
    with intact(Path(part["path"]) / METRICS_FILE):
        if "source" not in summary:
            trained = f"{summary['tokens']:,} tokens, {duration(summary['seconds'])}"
            rows.append(("training", trained))
        for name, perplexity, bits in _figures(summary):
            rows.append((name, f"perplexity {number(perplexity)}, {bits:.4f} bits per byte"))
    return rows + [("note", text) for text in part["notes"]]


def summary_table(summary: Mapping[str, Any], made: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Rows that training prints at the end: figures, what was `made`, time."""
    rows = []
    for prefix, name, _ in PARTS:
        if summary.get(f"{prefix}perplexity") is not None:
            rows += [
                (f"{name} perplexity", number(summary[f"{prefix}perplexity"])),
                (f"{name} bits per byte", f"{summary[f'{prefix}bits_per_byte']:.4f}"),
                *unknown_rows(summary, prefix, name),
            ]
    return [
        *rows,
        *made,
        ("tokens read", number(summary["tokens"])),
        ("time", duration(summary["seconds"])),
        ("run folder", summary["out"]),
    ]
