"""`elman train ngram`: from text files to a run folder with an n-gram model.

    read      text to token ids: in one pass where tokens are words, else as for any other model
    count     all n-grams, in memory or within a limit on disk
    smooth    counts to probabilities
    write     ngram.safetensors, tokenizer.json, config.json, card.md

Nothing here needs torch: a small text is a model before torch would have been imported.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.base.config import parse_overrides, to_dict
from elman.base.errors import ElmanError, UsageError, nearest
from elman.base.files import read_json_lines, write_json, write_text
from elman.batches.encoded import EncodedText, encode_files
from elman.ngrams import merging
from elman.ngrams.arpa_files import check_writable_as_arpa, save_arpa
from elman.ngrams.backoff import BackoffModel
from elman.ngrams.counting import count
from elman.ngrams.kneser_ney import last_ngram
from elman.ngrams.merging import bytes_per_token, count_within
from elman.ngrams.reading import read_stretches, word_tokenizer
from elman.ngrams.scratch import Scratch
from elman.ngrams.smoothing import about, estimate
from elman.ngrams.statistics import Scorer, fit, growth, unseen, why_infinite
from elman.ngrams.storage import MODEL_FILE, load, save_estimate
from elman.ngrams.trie import CountTrie
from elman.runs.new_folder import filling, new_file
from elman.tasks.ngram.settings import NgramConfig
from elman.tasks.snm.settings import SNMConfig
from elman.text.sources import expand
from elman.tokens.choose import choose
from elman.tokens.tokenizer import TOKENIZER_FILE, Tokenizer
from elman.tokens.tokenizer_config import TokenizerConfig
from elman.tokens.train import train_tokenizer

Note = Callable[[str], None]

FORMAT = 1
CONFIG_FILE, METRICS_FILE, CARD_FILE = "config.json", "metrics.jsonl", "card.md"
HELD_OUT = 0.1
"""How much of the text is held out to fit weights to, where a smoothing needs that and there is no
validation text."""


def train_ngram(
    data: Sequence[str],
    out: Path,
    *,
    valid: Sequence[str] = (),
    test: Sequence[str] = (),
    model: NgramConfig | None = None,
    tokenizer: TokenizerConfig | None = None,
    arpa: Path | None = None,
    memory: int | None = None,
    num_threads: int | None = None,
    note: Note = lambda text: None,
) -> dict[str, Any]:
    """Make an n-gram model of text files in the new folder `out`; return the summary.

    All of the text is counted: perplexity is reported on `valid`, and is None without. `arpa` is a
    file to write the model to as well. `memory` is the most bytes to count in; past them counting
    goes to disk. `note` hears what is going on. Where anything fails, no half of a run is left.
    """
    started = time.perf_counter()
    config, tokens = model or NgramConfig(), tokenizer or TokenizerConfig()
    claim(out)
    check_memory(memory)
    if arpa is not None:
        check_free(arpa)
        check_writable_as_arpa(arpa)
    files = expand(data)
    for paths in (valid, test):
        if paths:
            expand(paths)
    with new_file(arpa), filling(out, last=CONFIG_FILE) as folder:
        with _workplace(memory) as scratch:
            text = read_text(files, tokens, scratch, note)
            held_out = encode_files(expand(valid), text.tokenizer) if valid else None
            if config.smoothing == "jelinek-mercer" and held_out is None:
                text, held_out = _hold_out(text, note)
            num_tokens = len(text.ids)
            note(f"{num_tokens:,} tokens, {text.tokenizer.vocab_size:,} types")
            counting = time.perf_counter()
            with ThreadPoolExecutor(1) as aside:
                # Python's own work on the words is done while compiled loops count.
                saving = aside.submit(_save_tokenizer, text.tokenizer, folder, arpa is not None)
                trie = _count(text, config.order, scratch, memory, num_threads, note)
                saving.result()
            note(f"{sum(map(len, trie.levels)):,} n-grams up to length {config.order}")
            summary: dict[str, Any] = {"out": str(out), "perplexity": None, "steps": 0}
            if held_out is not None:  # from the counts: a model may lack what pruning left out
                unknown_id = text.tokenizer.unknown_id
                summary["unseen"] = unseen(trie, held_out.ids, unknown_id=unknown_id)
            trie, found = estimate(
                trie,
                config,
                last=last_ngram(text.ids, config.order, **text.sizes),
                held_out=None if held_out is None else held_out.ids,
                num_threads=num_threads,
            )
            header = {"tokenizer": text.tokenizer.hash, "vocab_size": text.tokenizer.vocab_size}
            save_estimate(folder / MODEL_FILE, trie, found, about(config, found), header)
            ended = time.perf_counter()
            del trie, found
        made, _ = load(folder / MODEL_FILE)
        notes = list(made.about["notes"])
        if held_out is not None:
            summary |= measured(made, held_out, text.tokenizer, "", num_threads)
        if test:
            tested = encode_files(expand(test), text.tokenizer)
            summary |= measured(made, tested, text.tokenizer, "test_", num_threads)
        notes += _infinities(summary)
        for sentence in notes:
            note(sentence)
        if arpa is not None:
            for sentence in save_arpa(arpa, made, text.tokenizer, num_threads=num_threads):
                note(sentence)
        summary |= {"tokens": num_tokens, "ngrams": made.num_ngrams, "notes": notes}
        summary["seconds"] = round(time.perf_counter() - started, 3)
        summary["tokens_per_second"] = round(num_tokens / max(1e-9, ended - counting), 1)
        report = {"kind": "done", "tokens": num_tokens, "seconds": summary["seconds"]}
        write_text(folder / METRICS_FILE, json.dumps(report | {"summary": summary}) + "\n")
        write_text(folder / CARD_FILE, _card(out, data, config, text.tokenizer, made, summary))
        write_json(folder / CONFIG_FILE, config_of(data, valid, test, text.tokens, config))
    return summary


def info(folder: Path) -> dict[str, Any]:
    """What the n-gram model in a run folder is: settings, n-grams and storage by order.

    Where there was validation text, `unseen` has the shares of its n-grams and contexts that the
    training text lacks.
    """
    model, _ = load(folder / MODEL_FILE)
    summary = read_summary(folder)
    return {
        **model.about,
        "order": model.order,
        "ngrams": sum(model.num_ngrams),
        "by_order": growth(model),
        "unseen": summary.get("unseen"),
        "bytes": (folder / MODEL_FILE).stat().st_size,
        "summary": summary,
        "notes": summary.get("notes", model.about["notes"]),
    }


def read_summary(folder: Path) -> dict[str, Any]:
    """What metrics.jsonl says at its end about a model that was counted."""
    reports = read_json_lines(folder / METRICS_FILE)
    if not reports or not isinstance(reports[-1].get("summary"), dict):
        raise ElmanError(
            f"{folder / METRICS_FILE} is damaged: it does not end with a summary",
            "restore the file from a copy, or train the model again",
        )
    summary: dict[str, Any] = reports[-1]["summary"]
    return summary


def counting_settings(settings: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The settings of a counting model and its tokenizer, as the user gave them."""
    asked = parse_overrides(settings)
    for name in asked:
        if name not in ("model", "tokenizer"):
            raise UsageError(
                f"unknown setting '{name}' of an n-gram model",
                nearest(name, ("model", "tokenizer")),
            )
    return {name: dict(asked.get(name, {})) for name in ("model", "tokenizer")}


def memory_size(text: str) -> int:
    """Bytes from a text such as 2G, 500M or 1.5GiB."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise UsageError(f"'{text}' is not an amount of memory", "write it as 500M or 2G")
    power = " KMGT".index(found[2].upper() or " ")
    return int(float(found[1]) * 1024**power)


def check_memory(memory: int | None) -> None:
    """See that there is room for work, whatever the text."""
    least = merging.SMALLEST_MEMORY
    if memory is not None and memory < least:
        raise UsageError(
            f"{memory:,} bytes of memory are too few to count in",
            f"give {least >> 20}M or more; M and G are the units",
        )


@dataclass(frozen=True)
class Text:
    """The training text."""

    ids: NDArray[Any]
    tokenizer: Tokenizer
    tokens: TokenizerConfig
    """How the tokenizer was made, choices included."""
    num_bytes: int

    @property
    def sizes(self) -> dict[str, int]:
        """What counting needs to know of the tokenizer."""
        return {
            "vocab_size": self.tokenizer.vocab_size,
            "boundary_id": self.tokenizer.boundary_id,
        }


def check_free(path: Path) -> None:
    """What is there already is not replaced."""
    if path.exists():
        raise UsageError(f"{path} is there already", "choose another name, or remove it first")


def claim(out: Path) -> None:
    """See that `out` can be used: no run is there."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file", "choose another --out")
    if (out / CONFIG_FILE).exists() or (out / MODEL_FILE).exists():
        raise UsageError(f"{out} already holds a run", "choose another --out")


@contextmanager
def _workplace(memory: int | None) -> Iterator[Scratch | None]:
    """A folder for arrays that memory has no room for, where memory is limited."""
    if memory is None:
        yield None
    else:
        with Scratch(limit=memory) as scratch:
            yield scratch


def read_text(
    files: list[Path], tokens: TokenizerConfig, scratch: Scratch | None, note: Note
) -> Text:
    """The text's token ids.

    Left to choose, an n-gram model takes words, and all of them: an unknown word is then one that
    the training text lacks, as in KenLM.
    """
    known = None if tokens.file is None else Tokenizer.load(tokens.file)
    if known is None and tokens.kind == "auto":
        chosen = choose(files)
        is_word = chosen.kind != "pretokenized"
        note("tokens are words" if is_word else chosen.reason)
        tokens = replace(tokens, kind="word" if is_word else "pretokenized")
    if (known.kind if known else tokens.kind) not in ("word", "pretokenized"):
        known = known or train_tokenizer(files, tokens)[0]
        encoded = encode_files(files, known)
        return Text(encoded.ids, known, tokens, encoded.num_bytes)
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
    return Text(stretches.ids(known), known, tokens, stretches.num_bytes)


def _hold_out(text: Text, note: Note) -> tuple[Text, EncodedText]:
    """Leave the end of the text uncounted."""
    cut = int(len(text.ids) * (1 - HELD_OUT))
    if text.tokenizer.marks_lines:
        ends = np.flatnonzero(text.ids[:cut] == text.tokenizer.boundary_id)
        cut = int(ends[-1]) + 1 if len(ends) else cut
    note(f"the last {HELD_OUT:.0%} of the text is held out to fit weights to")
    num_bytes = round(text.num_bytes * (len(text.ids) - cut) / max(1, len(text.ids)))
    return replace(text, ids=text.ids[:cut]), EncodedText(text.ids[cut:], num_bytes=num_bytes)


def _save_tokenizer(tokenizer: Tokenizer, out: Path, spelled: bool) -> None:
    """Write the tokenizer, and have it work out and remember what will be asked of it."""
    tokenizer.save(out / TOKENIZER_FILE)
    _ = tokenizer.hash
    if spelled:
        tokenizer.spellings()


def _count(
    text: Text,
    order: int,
    scratch: Scratch | None,
    memory: int | None,
    num_threads: int | None,
    note: Note,
) -> CountTrie:
    """The counts of the text, on disk where memory is short."""
    needed = len(text.ids) * bytes_per_token(order)
    if scratch is None or memory is None or needed <= memory:
        return count(text.ids, order, num_threads=num_threads, **text.sizes)
    note(f"counting takes about {needed >> 20:,} MiB, more than allowed: it goes to disk")
    return count_within(text.ids, order, scratch, memory, num_threads=num_threads, **text.sizes)


def measured(
    model: Scorer,
    text: EncodedText,
    tokenizer: Tokenizer,
    prefix: str,
    num_threads: int | None,
) -> dict[str, Any]:
    """The figures of a summary: how well a model predicts a text."""
    found = fit(model, text.ids, unknown_id=tokenizer.unknown_id, num_threads=num_threads)
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


def _infinities(summary: dict[str, Any]) -> list[str]:
    """Why a perplexity of the summary is infinite, where it is."""
    return [
        f"of the {name} text {why_infinite(summary[f'{prefix}impossible'], summary[tokens])}"
        for prefix, name, tokens in (
            ("", "validation", "valid_tokens"),
            ("test_", "test", "test_tokens"),
        )
        if summary.get(f"{prefix}impossible")
    ]


def config_of(
    data: Sequence[str],
    valid: Sequence[str],
    test: Sequence[str],
    tokens: TokenizerConfig,
    config: NgramConfig | SNMConfig,
) -> dict[str, Any]:
    """config.json of an n-gram run: the part of a `RunConfig` that counting depends on."""

    def absolute(paths: Sequence[str]) -> list[str]:
        found = [Path(path).expanduser() for path in paths]
        return [str(f.resolve()) if f.exists() else p for f, p in zip(found, paths, strict=True)]

    return {
        "format": FORMAT,
        "task": config.kind,
        "recipe": "automatic",
        "data": {"train": absolute(data), "valid": absolute(valid), "test": absolute(test)},
        "tokenizer": to_dict(tokens),
        "model": to_dict(config),
    }


def card_figures(summary: dict[str, Any]) -> list[str]:
    """Rows of a card's table: how well a counted model does on what it was measured on."""
    return [
        f"| {name} | perplexity {summary[f'{prefix}perplexity']:.2f}, "
        f"{summary[f'{prefix}bits_per_byte']:.4f} bits per byte |"
        for prefix, name in (("", "validation"), ("test_", "test"))
        if summary.get(f"{prefix}perplexity") is not None
    ]


def _card(
    out: Path,
    data: Sequence[str],
    config: NgramConfig,
    tokenizer: Tokenizer,
    model: BackoffModel,
    summary: dict[str, Any],
) -> str:
    """card.md: what the model is and how well it does, for whoever finds the folder."""
    lines = [
        f"# {out.name}",
        "",
        f"A {config.order}-gram language model over {tokenizer.vocab_size:,} tokens "
        f"({tokenizer.kind}), made by counting, with Elman.",
        "",
        "| | |",
        "|---|---|",
        f"| text | {', '.join(Path(path).name for path in data)}, {summary['tokens']:,} tokens |",
        f"| smoothing | {config.smoothing} |",
        f"| made in | {summary['seconds']:.1f} seconds |",
        *card_figures(summary),
    ]
    if summary["notes"]:
        lines += ["", *(f"- {sentence}" for sentence in summary["notes"])]
    lines += ["", "## N-grams", "", "| order | n-grams | size up to here |", "|---|---|---|"]
    lines += [
        f"| {row['order']} | {row['ngrams']:,} | {row['bytes'] / 1e6:.1f} MB |"
        for row in growth(model)
    ]
    if rows := summary.get("unseen"):
        lines += ["", "## In the validation text, never seen in training", ""]
        lines += ["| order | n-grams | unseen | unseen contexts |", "|---|---|---|---|"]
        lines += [
            f"| {row['order']} | {row['ngrams']:,} | {row['unseen_ngrams']:.1%} | "
            f"{row['unseen_contexts']:.1%} |"
            for row in rows
        ]
    lines += [
        "",
        "## Use",
        "",
        "    elman next FOLDER PREFIX",
        "    elman evaluate FOLDER TEXT",
        "    elman convert FOLDER MODEL.arpa.gz",
    ]
    return "\n".join(lines) + "\n"
