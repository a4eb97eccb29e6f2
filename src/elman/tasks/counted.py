"""Shared by tasks whose models are fitted by counting: reading text, metrics, the run folder.

Nothing here needs torch: fitting a small text takes less time than importing torch.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from elman.base.config import to_dict
from elman.base.errors import ElmanError, UsageError
from elman.base.files import read_json_lines, write_json, write_text
from elman.batches.encoded import EncodedText, encode_files
from elman.ngrams.reading import read_stretches, word_tokenizer
from elman.ngrams.scratch import Scratch
from elman.ngrams.statistics import Scorer, why_infinite
from elman.ngrams.statistics import fit as measure_fit
from elman.runs.run_config import RunConfig
from elman.runs.run_folder import CARD_FILE, CONFIG_FILE, METRICS_FILE, TOKENIZER_FILE, require
from elman.terminal.console import duration, number, size
from elman.text.sources import expand
from elman.tokens.choose import choose
from elman.tokens.tokenizer import Tokenizer
from elman.tokens.tokenizer_config import TokenizerConfig
from elman.train.report import Report

PARTS = (("", "validation", "valid_tokens"), ("test_", "test", "test_tokens"))
"""For each text that a summary has figures of: prefix, name, key of its number of tokens."""


@dataclass(frozen=True, kw_only=True)
class CountedRun(RunConfig):
    """A run that is fitted by counting. All of the text is counted, none is held out."""

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
    def sizes(self) -> dict[str, int]:
        """Arguments of the functions that count."""
        tokenizer = self.tokenizer
        return {"vocab_size": tokenizer.vocab_size, "boundary_id": tokenizer.boundary_id}


def note(text: str) -> Report:
    return Report(kind="note", note=text)


def claim(out: Path) -> None:
    """Check that `out` holds no run."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file", "choose another --out")
    if (out / CONFIG_FILE).exists() or any(out.glob("*.safetensors")):
        raise UsageError(f"{out} already holds a run", "choose another --out")


def check_files(config: CountedRun) -> list[Path]:
    """Return the training files; check the validation and test files too."""
    for paths in (config.data.valid, config.data.test):
        if paths:
            expand(paths)
    return expand(config.data.train)


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
        encoded = encode_files(files, known)
        return CountedText(encoded.ids, known, tokens, encoded.num_bytes, tuple(notes))
    lowercase = "Lowercase" in known.to_json() if known else tokens.lowercase
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
    return CountedText(stretches.ids(known), known, tokens, stretches.num_bytes, tuple(notes))


def measured(
    model: Scorer,
    text: EncodedText,
    tokenizer: Tokenizer,
    prefix: str,
    num_threads: int | None,
) -> dict[str, Any]:
    """Measure a model on a text; return the figures for a summary."""
    found = measure_fit(model, text.ids, unknown_id=tokenizer.unknown_id, num_threads=num_threads)
    figures = {
        "perplexity": found.perplexity,
        "nats_per_token": found.nats_per_token,
        "bits_per_byte": found.nats / math.log(2) / max(1, text.num_bytes),
        "tokens": found.tokens,
        "oov": found.oov,
        "impossible": found.impossible,
    }
    if not prefix:
        figures["valid_tokens"] = figures.pop("tokens")
    return {prefix + name: value for name, value in figures.items()}


def why_perplexities_are_infinite(summary: Mapping[str, Any]) -> list[str]:
    return [
        f"of the {name} text {why_infinite(summary[f'{prefix}impossible'], summary[tokens])}"
        for prefix, name, tokens in PARTS
        if summary.get(f"{prefix}impossible")
    ]


def finish(
    config: CountedRun, folder: Path, summary: dict[str, Any], card: Sequence[str]
) -> Report:
    """Write metrics.jsonl, card.md and config.json, in this order; return the last report."""
    done = {"kind": "done", "tokens": summary["tokens"], "seconds": summary["seconds"]}
    write_text(folder / METRICS_FILE, json.dumps(done | {"summary": summary}) + "\n")
    write_text(folder / CARD_FILE, "\n".join(card) + "\n")
    write_json(folder / CONFIG_FILE, to_dict(config))
    return Report(**done, progress=1.0, summary=summary)


def timed(
    summary: dict[str, Any], num_tokens: int, *, started: float, counting: float, ended: float
) -> None:
    """Add the time and the speed to a summary."""
    summary["seconds"] = round(time.perf_counter() - started, 3)
    summary["tokens_per_second"] = round(num_tokens / max(1e-9, ended - counting), 1)


def card_head(
    out: Path, what: str, config: CountedRun, summary: Mapping[str, Any], *rows: str
) -> list[str]:
    """The first lines of card.md: the model and its figures."""
    names = ", ".join(Path(path).name for path in config.data.train)
    figures = [
        f"| {name} | perplexity {summary[f'{prefix}perplexity']:.2f}, "
        f"{summary[f'{prefix}bits_per_byte']:.4f} bits per byte |"
        for prefix, name, _ in PARTS
        if summary.get(f"{prefix}perplexity") is not None
    ]
    return [
        f"# {out.name}",
        "",
        f"{what}, made by counting, with Elman.",
        "",
        "| | |",
        "|---|---|",
        f"| text | {names}, {summary['tokens']:,} tokens |",
        *rows,
        f"| made in | {summary['seconds']:.1f} seconds |",
        *figures,
    ]


def read_summary(folder: Path) -> dict[str, Any]:
    """The summary at the end of metrics.jsonl."""
    reports = read_json_lines(folder / METRICS_FILE)
    if not reports or not isinstance(reports[-1].get("summary"), dict):
        raise ElmanError(
            f"{folder / METRICS_FILE} is damaged: it does not end with a summary",
            "restore the file from a copy, or train the model again",
        )
    return dict(reports[-1]["summary"])


def open_tokenizer(path: Path, model_file: str) -> Tokenizer:
    """Load the tokenizer of a run folder; check that its model file exists."""
    require(path, TOKENIZER_FILE, model_file)
    return Tokenizer.load(path / TOKENIZER_FILE)


def counted_rows(part: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows of `elman info`: size, data, training, figures."""
    summary = part["summary"]
    rows = [("size on disk", size(part["bytes"]))]
    if "source" in summary:
        rows.append(("converted from", summary["source"]))
    else:
        rows += [
            ("counted", ", ".join(part["data"]["train"])),
            ("training", f"{summary['tokens']:,} tokens, {duration(summary['seconds'])}"),
        ]
    for prefix, name, _ in PARTS:
        if summary.get(f"{prefix}perplexity") is not None:
            bits = summary[f"{prefix}bits_per_byte"]
            perplexity = number(summary[f"{prefix}perplexity"])
            rows.append((name, f"perplexity {perplexity}, {bits:.4f} bits per byte"))
    return rows + [("note", text) for text in part["notes"]]


def summary_table(summary: Mapping[str, Any], made: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Rows that training prints at the end: figures, what was `made`, time."""
    rows = []
    for prefix, name, _ in PARTS:
        if summary.get(f"{prefix}perplexity") is not None:
            rows += [
                (f"{name} perplexity", number(summary[f"{prefix}perplexity"])),
                (f"{name} bits per byte", f"{summary[f'{prefix}bits_per_byte']:.4f}"),
            ]
    return [
        *rows,
        *made,
        ("tokens read", number(summary["tokens"])),
        ("time", duration(summary["seconds"])),
        ("run folder", summary["out"]),
    ]
