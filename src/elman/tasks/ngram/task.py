"""N-gram models: from text files to a run folder, by counting.

    read      text to token ids: in one pass where tokens are words, else as for any other model
    count     all n-grams, in memory or within a limit on disk
    smooth    counts to probabilities
    write     ngram.safetensors, tokenizer.json, config.json, card.md

torch is not imported: that takes longer than counting a small text.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from elman.base.counting import counted as in_words
from elman.base.errors import UsageError
from elman.base.files import replacing
from elman.base.memory import return_large_arrays, trim
from elman.batches.encoded import EncodedText, encode_files
from elman.ngrams.arpa_files import (
    check_writable_as_arpa,
    needed_beside,
    new_tokenizer_beside,
    save_arpa,
)
from elman.ngrams.backoff import BackoffModel
from elman.ngrams.cluster import MEMORY, SHARES, Cluster, connected
from elman.ngrams.counting import count
from elman.ngrams.exchange import Exchange
from elman.ngrams.kneser_ney import last_ngram
from elman.ngrams.packed_runs import can_pack
from elman.ngrams.scratch import Scratch, check_memory, memory_size
from elman.ngrams.stages import Needed, bytes_per_token, disk_needed, divided, work
from elman.ngrams.storage import MODEL_FILE, load, open_model
from elman.ngrams.trie import MEMORY as NO_LIMIT
from elman.ngrams.trie import CountTrie
from elman.runs.new_folder import check_free, filling, new_file
from elman.runs.run_folder import CONFIG_FILE, STAGES_FOLDER, TOKENIZER_FILE
from elman.tasks import counted
from elman.tasks.counted import CountedText, note, section
from elman.tasks.ngram.settings import NgramRun
from elman.tasks.ngram.staged import StagedRun, estimate_on_worker, save_model
from elman.terminal.console import number, size
from elman.tokens.tokenizer import Tokenizer
from elman.tokens.word_table import TableBackend
from elman.train.report import Report


def fit(
    config: NgramRun,
    out: Path,
    *,
    arpa: str | Path | None = None,
    memory: str | int | None = None,
    cluster: str | None = None,
    exchange: str | None = None,
    plan: int | None = None,
    resume: bool = False,
    num_threads: int | None = None,
) -> Iterator[Report]:
    """Make an n-gram model in the new folder `out`; the last report has the summary.

    Perplexity is reported on the validation text or the share of the text that is held out; None
    without them.
    `arpa` is a file to write the model to as well. `memory` is the most memory to count in, in
    bytes or as in "2G"; beyond it, counting goes to disk in stages (`staged`). `cluster` is
    where to run them: "local:4", or the address of a Dask scheduler. `exchange` is an address for
    files of workers that do not share the run folder. `plan` makes a plan for that
    number of shards and ends. `resume` continues after the last stage that is done. A run
    that fails before the first stage leaves nothing behind.
    """
    started = time.perf_counter()
    return_large_arrays()
    files, staged = counted.check(config, out), StagedRun(out)
    memory = memory_size(memory) if isinstance(memory, str) else memory
    if memory is not None:
        check_memory(memory)
    resumed = resume and staged.is_planned
    if resumed:
        staged.check_texts(files)
        arpa = arpa or staged.arpa
    arpa = None if arpa is None else Path(arpa)
    if arpa is not None:
        check_free(arpa)
        check_writable_as_arpa(arpa)
    if not resumed:
        staged.remove()
    if cluster and plan:
        raise UsageError("--cluster contradicts --plan", "drop one of them")
    if exchange and not cluster:
        raise UsageError("--exchange needs --cluster", "name the workers: --cluster local:4")
    data, model, named = config.data, config.model, None if plan else arpa
    with (
        new_file(named),
        new_file(None if named is None else new_tokenizer_beside(named)),
        # The ARPA file gets its name after the run folder is complete. A run that is killed before
        # can be repeated: there is no file in its way. Not durable: see `write_arpa`.
        nullcontext() if named is None else replacing(named, durable=False) as unnamed,
        filling(out, last=CONFIG_FILE) as folder,
        nullcontext() if cluster is None else connected(cluster) as workers,
        nullcontext() if memory is None else Scratch(limit=memory) as limits,
    ):
        summary: dict[str, Any] = {"out": str(out), "perplexity": None, "steps": 0}
        if resumed:
            text, held_out, in_stages = staged.text, staged.held_out(), True
            left = _left(limits, text, arpa)
            yield note(f"continuing the run in {out}")
        else:
            with nullcontext() if memory is None else Scratch(limit=memory) as scratch:
                text, held_out, not_counted = yield from _read(config, files, scratch)
                if arpa is not None:
                    needed_beside(arpa, text.tokenizer)  # before counting, which may take hours
                taken = len(text.ids) * bytes_per_token(model.order)
                left = _left(scratch, text, arpa)
                in_stages = bool(plan or cluster) or (left is not None and taken > left)
                counting = time.perf_counter()
                if in_stages:
                    num_shards, num_ranges = divided(len(text.ids), model.order, left or MEMORY)
                    if plan:
                        num_shards = num_ranges = plan
                    elif workers is not None:
                        num_ranges = SHARES * workers.num_workers
                        num_shards = max(num_shards, num_ranges)
                    # Over a network, fewer bytes pay for the time that compressing takes.
                    packed = can_pack() if plan or cluster else None
                    needed = disk_needed(
                        text.ids, model.order, num_shards,
                        memory=left, packed=packed, **text.sizes,
                    )  # fmt: skip
                    yield from _disk_notes(needed, text, out, arpa)
                    with _removed_on_failure(staged):
                        staged.plan(
                            config, text, not_counted, files, num_shards, num_ranges, arpa,
                            packed=needed.packed,
                        )  # fmt: skip
                    summary["disk_estimate"], text = needed.most, staged.text
                else:
                    with_spellings = arpa is not None
                    trie, last = _counted(text, model.order, folder, with_spellings, num_threads)
                    text = text.without_ids()
                    yield note(f"{sum(map(len, trie.levels)):,} n-grams up to length {model.order}")
                    summary |= save_model(
                        folder / MODEL_FILE, config, trie, text, held_out, last, num_threads
                    )
                    del trie
        if plan:
            done = _planned(staged, out, started)
        else:
            if in_stages:
                counting = time.perf_counter()
                if workers is None:
                    yield from map(note, work(staged.stages, left or MEMORY, num_threads))
                    staged.estimate(memory, num_threads)
                else:
                    yield from _by_workers(staged, workers, exchange, memory, num_threads)
                summary |= staged.hand_over(folder)
            seconds_counting = time.perf_counter() - counting
            made, _ = load(folder / MODEL_FILE, limits or NO_LIMIT)
            tested = counted.encoded(data.test, text.tokenizer)
            summary |= counted.measured(made, text.tokenizer, held_out, tested, num_threads)
            notes = [*made.about["notes"], *counted.why_perplexities_are_infinite(summary)]
            yield from map(note, notes)
            if arpa is not None and unnamed is not None:
                where: dict[str, Any] = {"temporary": unnamed, "num_threads": num_threads}
                yield from map(note, save_arpa(arpa, made, text.tokenizer, **where))
                summary["arpa"] = str(arpa)
            summary |= {"ngrams": made.num_ngrams, "notes": notes}
            done = counted.finish(
                config,
                out,
                folder,
                text,
                summary,
                started=started,
                seconds_counting=seconds_counting,
                what=f"A {model.order}-gram language model",
                rows=[f"| smoothing | {model.smoothing} |", *_held_out_row(config)],
                sections=_card_sections(made, summary),
            )
    if not plan:
        staged.remove()
    yield done


def _left(scratch: Scratch | None, text: CountedText, arpa: Path | None) -> int | None:
    """Return the bytes that are left to count in, beside the words; None without a limit."""
    if scratch is None:
        return None
    # What is computed from the words and kept, so that it is there before.
    _prepare(text.tokenizer, arpa is not None)
    return scratch.budget(f"Python and {text.tokenizer.vocab_size:,} types of tokens")


def _read(
    config: NgramRun, files: list[Path], scratch: Scratch | None
) -> Generator[Report, None, tuple[CountedText, EncodedText | None, EncodedText | None]]:
    """Return the text, the validation text, and the part of the text that is not to be counted."""
    text = counted.read_text(files, config.tokenizer, scratch)
    yield from map(note, text.notes)
    held_out, not_counted = counted.encoded(config.data.valid, text.tokenizer), None
    if config.held_out:
        text, not_counted = _hold_out(text, files, config.held_out)
        fits = config.model.smoothing == "jelinek-mercer"
        why = "to fit the weights" if fits else "for validation"
        yield note(f"{_end_of_text(config)} is held out {why}")
    yield note(f"{len(text.ids):,} tokens, {text.tokenizer.vocab_size:,} types")
    return text, held_out or not_counted, not_counted


def _counted(
    text: CountedText, order: int, folder: Path, with_spellings: bool, num_threads: int | None
) -> tuple[CountTrie, list[int]]:
    """Count in memory, and save the tokenizer; return the counts and the `last_ngram`.

    The ids of the text are overwritten.
    """
    with ThreadPoolExecutor(1) as aside:
        # What takes one thread is done while others count.
        saving = aside.submit(_save_tokenizer, text.tokenizer, folder, with_spellings)
        found = aside.submit(last_ngram, text.ids, order, **text.sizes)
        trie = count(text.ids, order, num_threads=num_threads, release=found.result, **text.sizes)
        saving.result()
        trim()  # what saving leaves behind would stay beside the estimate
        return trie, found.result()


def _disk_notes(
    needed: Needed, text: CountedText, out: Path, arpa: Path | None
) -> Iterator[Report]:
    """Say how much disk counting takes, and whether there is as much."""
    how = "compressed" if needed.packed else "not compressed"
    if not can_pack():
        how += " (pip install 'elman[zstd]' to compress them)"
    folder = out / STAGES_FOLDER
    parts = f"{size(needed.runs)} of them for runs, {how}"
    yield note(f"counting goes to disk: it takes about {size(needed.most)} of {folder}, {parts}")
    free = shutil.disk_usage(next(path for path in (out, *out.parents) if path.exists())).free
    if free < needed.most:
        yield note(f"only {size(free)} are free there; --out can name a folder on another disk")
    if arpa is not None:
        spelling = text.num_bytes / max(1, len(text.ids))
        lengths = enumerate(needed.ngrams, start=1)
        written = sum(number * (20 + length * spelling) for length, number in lengths)
        yield note(f"{arpa} takes about {size(int(written))} more")


def _by_workers(
    staged: StagedRun,
    workers: Cluster,
    exchange: str | None,
    memory: int | None,
    num_threads: int | None,
) -> Iterator[Report]:
    """Count, merge and estimate on a cluster; with `exchange` the estimate is made here."""
    if not exchange:
        workers.check_sees(staged.folder / CONFIG_FILE)
    yield note(f"{workers.num_workers} workers; Dask's page: {workers.page}")
    if exchange:
        between = Exchange.of(exchange, staged.stages)
        yield from map(note, workers.work_through(between, staged.stages))
        staged.estimate(memory, num_threads)
    else:
        yield from map(note, workers.work(staged.stages))
        workers.one(estimate_on_worker, str(staged.out.absolute()), memory)
        yield note("estimated probabilities")


def _planned(staged: StagedRun, out: Path, started: float) -> Report:
    stages = staged.stages
    summary = {
        "out": str(out),
        "tokens": stages.plan.num_tokens,
        "shards": stages.num_shards,
        "ranges": stages.num_ranges,
        "seconds": round(time.perf_counter() - started, 3),
    }
    return Report(kind="done", tokens=stages.plan.num_tokens, progress=1.0, summary=summary)


@contextmanager
def _removed_on_failure(staged: StagedRun) -> Iterator[None]:
    try:
        yield
    except BaseException:
        staged.remove()
        raise


def open_fitted(path: Path, config: NgramRun) -> Any:
    from elman.tasks.counted_model import open_counts

    return open_counts(path, MODEL_FILE, open_model)


def describe(run: Any) -> dict[str, Any]:
    """Values for `elman info`: settings, n-grams and storage by order.

    With validation text, `unseen` has the shares of its n-grams and contexts that the training text
    lacks.
    """
    model = run.model.counts
    values = counted.describe(run, MODEL_FILE)
    summary = values["summary"]
    if "source" in model.about:  # converted from a file that says no more about itself
        values["model"] = {name: values["model"][name] for name in ("kind", "order")}
    return values | {
        "layout": model.layout,
        "ngrams": model.growth(),
        "unseen": summary.get("unseen"),
        "notes": list(dict.fromkeys([*summary.get("notes", []), *model.about["notes"]])),
    }


def info_rows(part: dict[str, Any]) -> list[tuple[str, str]]:
    """Show in figures that storage grows with n, and so does the share of unseen n-grams."""
    rows = [
        (f"{row['order']}-grams", f"{row['ngrams']:,}, {size(row['bytes'])} up to here")
        for row in part["ngrams"]
    ]
    rows += _unseen_rows("in the validation text, never seen in training", part.get("unseen"))
    rows += _unseen_rows("in the held-out text, not listed in the model", part.get("held_out"))
    if "summary" not in part:  # an ARPA file says no more about itself
        return rows + [("note", text) for text in part["notes"]]
    rows.append(("layout", part["layout"]))
    if share := part["data"].get("valid_fraction"):
        rows.append(("held out", f"the last {100 * share:.3g}% of the text"))
    return rows + counted.counted_rows(part)


def summary_rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    if "shards" in summary:
        amounts = [(name, number(summary[name])) for name in ("tokens", "shards", "ranges")]
        return [*amounts, ("to count", f"elman ngram count {summary['out']} --shard 0 and others")]
    arpa = [("ARPA file", summary["arpa"])] if summary.get("arpa") else []
    made = [("n-grams", number(sum(summary["ngrams"])))]
    return counted.summary_table(summary, made) + arpa


def _unseen_rows(what: str, found: list[dict[str, Any]] | None) -> list[tuple[str, str]]:
    """A row that says what is measured, then one for each order."""
    if not found:
        return []
    rows = [(what, f"of {found[0]['ngrams']:,} tokens")]
    for row in found:
        text = f"{row['unseen_ngrams']:.1%} of {row['ngrams']:,}"
        if row["order"] > 1:
            text += f", and {row['unseen_contexts']:.1%} of their contexts"
        rows.append((f"  {row['order']}-grams", text))
    return rows


def _end_of_text(config: NgramRun) -> str:
    return f"the last {100 * config.held_out:.3g}% of the text"


def _held_out_row(config: NgramRun) -> list[str]:
    return [f"| held out | {_end_of_text(config)} |"] if config.held_out else []


def _hold_out(
    text: CountedText, files: list[Path], share: float
) -> tuple[CountedText, EncodedText]:
    """Leave the end of the text uncounted, from where a network would leave it out."""
    # Encoded once more: `text` does not record where a token stands in the files, so that the bytes
    # of its end, which bits per byte need, are unknown.
    _, end = encode_files(files, text.tokenizer).split(1 - share)
    cut = len(text.ids) - len(end)
    if cut in (0, len(text.ids)):
        raise UsageError(
            f"too little text to hold out a part of it: {in_words(len(text.ids), 'token')}",
            "give more text, or --valid FILE",
        )
    return replace(text, ids=text.ids[:cut]), end


def _save_tokenizer(tokenizer: Tokenizer, out: Path, with_spellings: bool) -> None:
    """Write the tokenizer, and have it compute and cache what later steps need."""
    tokenizer.save(out / TOKENIZER_FILE)
    _prepare(tokenizer, with_spellings)


def _prepare(tokenizer: Tokenizer, with_spellings: bool) -> None:
    _ = tokenizer.hash
    if with_spellings and not isinstance(tokenizer.backend, TableBackend):
        tokenizer.spellings()


def _card_sections(model: BackoffModel, summary: dict[str, Any]) -> list[str]:
    notes = [f"- {sentence}" for sentence in summary["notes"]]
    sizes = [
        (row["order"], f"{row['ngrams']:,}", f"{row['bytes'] / 1e6:.1f} MB")
        for row in model.growth()
    ]
    lines = ["", *notes] if notes else []
    lines += section("N-grams", ("order", "n-grams", "size up to here"), sizes)
    if rows := summary.get("unseen"):
        shares = [
            (
                row["order"],
                f"{row['ngrams']:,}",
                f"{row['unseen_ngrams']:.1%}",
                f"{row['unseen_contexts']:.1%}",
            )
            for row in rows
        ]
        names = ("order", "n-grams", "unseen", "unseen contexts")
        lines += section("In the validation text, never seen in training", names, shares)
    return lines + counted.uses("elman convert FOLDER MODEL.arpa.gz")
