"""N-gram models: from text files to a run folder, by counting.

    read      text to token ids: in one pass where tokens are words, else as for any other model
    count     all n-grams, in memory or within a limit on disk
    smooth    counts to probabilities
    write     ngram.safetensors, tokenizer.json, config.json, card.md

Nothing here needs torch: a small text is a model before torch would have been imported.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from elman.base.errors import UsageError
from elman.batches.encoded import EncodedText, encode_files
from elman.ngrams import merging
from elman.ngrams.arpa_files import check_writable_as_arpa, save_arpa
from elman.ngrams.backoff import BackoffModel
from elman.ngrams.counting import count
from elman.ngrams.kneser_ney import last_ngram
from elman.ngrams.merging import bytes_per_token, count_within
from elman.ngrams.scratch import Scratch
from elman.ngrams.smoothing import about, estimate
from elman.ngrams.statistics import growth, unseen
from elman.ngrams.storage import MODEL_FILE, load, save_estimate
from elman.ngrams.trie import CountTrie
from elman.runs.new_folder import check_free, filling, new_file
from elman.runs.run_folder import CONFIG_FILE, TOKENIZER_FILE
from elman.tasks.counted import (
    CountedText,
    card_head,
    check_files,
    claim,
    finish,
    measured,
    note,
    read_summary,
    read_text,
    timed,
    why_perplexities_are_infinite,
)
from elman.tasks.ngram.settings import NgramRun
from elman.text.sources import expand
from elman.tokens.tokenizer import Tokenizer
from elman.train.report import Report

HELD_OUT = 0.1
"""The share of the text to hold out where a smoothing fits weights and no validation text is
given."""


def fit(
    config: NgramRun,
    out: Path,
    *,
    arpa: str | Path | None = None,
    memory: str | int | None = None,
    num_threads: int | None = None,
) -> Iterator[Report]:
    """Make an n-gram model in the new folder `out`; the last report has the summary.

    All of the text is counted: perplexity is reported on the validation text, None without one.
    `arpa` is a file to write the model to as well. `memory` is the most memory to count in, in
    bytes or as in "2G"; beyond it, counting goes to disk. A run that fails leaves nothing behind.
    """
    started = time.perf_counter()
    arpa = None if arpa is None else Path(arpa)
    memory = memory_size(memory) if isinstance(memory, str) else memory
    claim(out)
    check_memory(memory)
    if arpa is not None:
        check_free(arpa)
        check_writable_as_arpa(arpa)
    files = check_files(config)
    data, model = config.data, config.model
    with new_file(arpa), filling(out, last=CONFIG_FILE) as folder:
        with _workplace(memory) as scratch:
            text = read_text(files, config.tokenizer, scratch)
            yield from map(note, text.notes)
            held_out = encode_files(expand(data.valid), text.tokenizer) if data.valid else None
            if model.smoothing == "jelinek-mercer" and held_out is None:
                text, held_out = _hold_out(text)
                yield note(f"the last {HELD_OUT:.0%} of the text is held out to fit weights to")
            num_tokens = len(text.ids)
            yield note(f"{num_tokens:,} tokens, {text.tokenizer.vocab_size:,} types")
            needed = num_tokens * bytes_per_token(model.order)
            on_disk = memory is not None and needed > memory
            if on_disk:
                yield note(
                    f"counting takes about {needed >> 20:,} MiB, more than allowed: it goes to disk"
                )
            counting = time.perf_counter()
            with ThreadPoolExecutor(1) as aside:
                # Python's own work on the words is done while compiled loops count.
                saving = aside.submit(_save_tokenizer, text.tokenizer, folder, arpa is not None)
                trie = _count(text, model.order, scratch, memory if on_disk else None, num_threads)
                saving.result()
            yield note(f"{sum(map(len, trie.levels)):,} n-grams up to length {model.order}")
            summary: dict[str, Any] = {"out": str(out), "perplexity": None, "steps": 0}
            if held_out is not None:  # from the counts: a model may lack what pruning left out
                unknown_id = text.tokenizer.unknown_id
                summary["unseen"] = unseen(trie, held_out.ids, unknown_id=unknown_id)
            trie, found = estimate(
                trie,
                model,
                last=last_ngram(text.ids, model.order, **text.sizes),
                held_out=None if held_out is None else held_out.ids,
                num_threads=num_threads,
            )
            header = {"tokenizer": text.tokenizer.hash, "vocab_size": text.tokenizer.vocab_size}
            save_estimate(folder / MODEL_FILE, trie, found, about(model, found), header)
            ended = time.perf_counter()
            del trie, found
        made, _ = load(folder / MODEL_FILE)
        if held_out is not None:
            summary |= measured(made, held_out, text.tokenizer, "", num_threads)
        if data.test:
            tested = encode_files(expand(data.test), text.tokenizer)
            summary |= measured(made, tested, text.tokenizer, "test_", num_threads)
        notes = [*made.about["notes"], *why_perplexities_are_infinite(summary)]
        yield from map(note, notes)
        if arpa is not None:
            told = save_arpa(arpa, made, text.tokenizer, num_threads=num_threads)
            yield from map(note, told)
        summary |= {"tokens": num_tokens, "ngrams": made.num_ngrams, "notes": notes}
        summary |= {"arpa": str(arpa)} if arpa is not None else {}
        timed(summary, num_tokens, started=started, counting=counting, ended=ended)
        config = replace(config, tokenizer=text.tokens)
        done = finish(config, folder, summary, _card(out, config, text.tokenizer, made, summary))
    yield done


def describe(run: Any) -> dict[str, Any]:
    """Values for `elman info`: settings, n-grams and storage by order.

    With validation text, `unseen` has the shares of its n-grams and contexts that the training text
    lacks.
    """
    from elman.base.config import to_dict

    model = run.model.ngrams
    summary = read_summary(run.path)
    settings = to_dict(run.config.model)
    if "source" in model.about:  # converted from a file that says no more about itself
        settings = {name: settings[name] for name in ("kind", "order")}
    return {
        "path": str(run.path),
        "model": settings,
        "recipe": run.config.recipe,
        "data": to_dict(run.config.data),
        "bytes": (run.path / MODEL_FILE).stat().st_size,
        "summary": summary,
        "ngrams": growth(model),
        "unseen": summary.get("unseen"),
        "notes": summary.get("notes", model.about["notes"]),
    }


def memory_size(text: str) -> int:
    """Parse an amount of memory such as 2G, 500M or 1.5GiB; return bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise UsageError(f"'{text}' is not an amount of memory", "write it as 500M or 2G")
    power = " KMGT".index(found[2].upper() or " ")
    return int(float(found[1]) * 1024**power)


def check_memory(memory: int | None) -> None:
    """Check that there is enough memory to work in, whatever the text."""
    least = merging.SMALLEST_MEMORY
    if memory is not None and memory < least:
        raise UsageError(
            f"{memory:,} bytes of memory are too few to count in",
            f"give {least >> 20}M or more; M and G are the units",
        )


@contextmanager
def _workplace(memory: int | None) -> Iterator[Scratch | None]:
    """A folder for arrays that do not fit into memory, where memory is limited."""
    if memory is None:
        yield None
    else:
        with Scratch(limit=memory) as scratch:
            yield scratch


def _hold_out(text: CountedText) -> tuple[CountedText, EncodedText]:
    """Leave the end of the text uncounted."""
    cut = int(len(text.ids) * (1 - HELD_OUT))
    if text.tokenizer.marks_lines:
        ends = np.flatnonzero(text.ids[:cut] == text.tokenizer.boundary_id)
        cut = int(ends[-1]) + 1 if len(ends) else cut
    num_bytes = round(text.num_bytes * (len(text.ids) - cut) / max(1, len(text.ids)))
    return replace(text, ids=text.ids[:cut]), EncodedText(text.ids[cut:], num_bytes=num_bytes)


def _save_tokenizer(tokenizer: Tokenizer, out: Path, with_spellings: bool) -> None:
    """Write the tokenizer, and have it compute and cache what will be asked of it."""
    tokenizer.save(out / TOKENIZER_FILE)
    _ = tokenizer.hash
    if with_spellings:
        tokenizer.spellings()


def _count(
    text: CountedText,
    order: int,
    scratch: Scratch | None,
    memory: int | None,
    num_threads: int | None,
) -> CountTrie:
    """Count the text, on disk where `memory` is given."""
    if scratch is None or memory is None:
        return count(text.ids, order, num_threads=num_threads, **text.sizes)
    return count_within(text.ids, order, scratch, memory, num_threads=num_threads, **text.sizes)


def _card(
    out: Path,
    config: NgramRun,
    tokenizer: Tokenizer,
    model: BackoffModel,
    summary: dict[str, Any],
) -> list[str]:
    lines = card_head(
        out,
        f"A {config.model.order}-gram language model over {tokenizer.vocab_size:,} tokens "
        f"({tokenizer.kind})",
        config,
        summary,
        f"| smoothing | {config.model.smoothing} |",
    )
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
    return lines
