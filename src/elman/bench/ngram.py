"""`elman bench ngram`: estimate and score n-gram models beside KenLM.

    text to ARPA        elman train ngram --arpa         lmplz
    text to queries     elman train ngram                lmplz, then build_binary (probing)
    memory              peak of each of these
    scoring             text to its perplexity           query, minus its time on empty text

Both read the same words. Our scoring is timed in this process after opening the files, reading and
encoding included. With `--threads 1,2,4` our times alone, as they change with the number of
threads: of the programs, of scoring, and of each step from text to ARPA. With `--layouts` the
layouts of a model (`ngram_layouts`). KenLM's `query` is timed
as a program, once more on empty text to subtract
starting and loading. Without `query`, KenLM's Python module is the peer, and rows say so.
"""

from __future__ import annotations

import math
import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from elman.base.errors import UsageError
from elman.base.threads import forget_threads, set_threads, usable_cores
from elman.bench.measuring import Cost, Work, in_turns, run_program
from elman.bench.ngram_layouts import layout_rows
from elman.bench.rows import Row, less_is_better, more_is_better, note
from elman.bench.sampled_text import write_sampled_text
from elman.ngrams.arpa_files import save_arpa
from elman.ngrams.counting import count
from elman.ngrams.kneser_ney import last_ngram
from elman.ngrams.reading import read_stretches, word_tokenizer
from elman.ngrams.smoothing import KneserNey, about, estimate
from elman.ngrams.statistics import fit
from elman.ngrams.storage import MODEL_FILE, load, save_estimate
from elman.text.sources import corpus_blocks, expand
from elman.tokens.tokenizer import TOKENIZER_FILE, Tokenizer

SOURCES = ("python-docs", "python-source")
"""Default text is sampled from these corpora, which need no download."""
HELD_OUT, MOST_HELD_OUT = 0.1, 1_000_000
"""Fraction of the tokens to score instead of count, and its maximum in tokens."""
PROGRAMS = ("lmplz", "build_binary", "query")


@dataclass(frozen=True)
class KenLM:
    """KenLM's programs and Python module; None for those that are not installed."""

    lmplz: str | None = None
    build_binary: str | None = None
    query: str | None = None
    module: Any = None

    @classmethod
    def find(cls, folder: Path | None) -> KenLM:
        """Look in `folder`, or on the PATH."""
        path = None if folder is None else str(folder)
        if folder is not None and shutil.which("lmplz", path=path) is None:
            raise UsageError(f"there is no lmplz in {folder}", "name the folder that has it")
        try:
            module = import_module("kenlm")
        except ImportError:
            module = None
        lmplz, build_binary, query = (shutil.which(name, path=path) for name in PROGRAMS)
        return cls(lmplz, build_binary, query, module)

    def tell_what_is_missing(self) -> None:
        absent = [name for name in PROGRAMS if getattr(self, name) is None]
        if absent:
            text = f"KenLM's {', '.join(absent)} not found (name the folder with --kenlm)"
            module = "query" in absent and self.module is not None
            rest = "; scoring is compared with KenLM's Python module" if module else ""
            note(f"{text}: not compared{rest}")


def compare(
    files: Sequence[str],
    folder: Path,
    num_tokens: int,
    order: int,
    repeat: int,
    kenlm: KenLM,
    lmplz_memory: str,
) -> Iterator[Row]:
    kenlm.tell_what_is_missing()
    train, held_out, found = _prepare(files, folder, num_tokens)
    settings = _settings(found, order, repeat)
    note(f"{found:,} tokens; medians of {repeat} rounds")
    _warm_up(folder, train, order)
    if kenlm.lmplz:
        settings["lmplz_memory"] = lmplz_memory
    yield from _estimating(folder, train, kenlm, settings)
    note("scoring")
    yield from _scoring(folder, held_out, kenlm, settings)


def layouts(
    files: Sequence[str],
    folder: Path,
    num_tokens: int,
    order: int,
    repeat: int,
    kenlm: KenLM,
    test: Path | None = None,
) -> Iterator[Row]:
    """Size, speed and perplexity of each layout. A model that is in `folder` is used again.

    `test` is the text to score, instead of the end of the text.
    """
    kenlm.tell_what_is_missing()
    if (folder / "run" / MODEL_FILE).exists():
        note(f"using the model in {folder}")
        train, held_out = folder / "train.txt", folder / "held-out.txt"
        found = sum(_num_tokens(block.data) for block in corpus_blocks([train], end_lines=True))
    else:
        rest = None if test is None else 0
        train, held_out, found = _prepare(files, folder, num_tokens, held_out=rest)
        if test is not None:
            shutil.copyfile(test, held_out)
        note(f"{found:,} tokens")
        _elman(folder, train, order)
    settings = _settings(found, order, repeat)
    yield from layout_rows(folder, held_out, kenlm.build_binary, kenlm.query, settings)


def curve(
    files: Sequence[str], folder: Path, sizes: Sequence[int], order: int, repeat: int
) -> Iterator[Row]:
    """The cost of a token over the size of the text, from text to queries.

    `over_n_log_n` in the settings is the time relative to the first size, divided by the same ratio
    of n log n: at most 1 if the cost grows no faster.
    """
    first: tuple[int, float] | None = None
    for size in sizes:
        train, _, found = _prepare(files, folder, size, held_out=0)
        if first is None:
            _warm_up(folder, train, order)
        cost = in_turns({"ours": partial(_elman, folder, train, order)}, repeat)["ours"]
        note(f"{found:,} tokens: {cost.seconds:.1f} s, {cost.peak_bytes >> 20:,} MiB")
        first = first or (found, cost.seconds)
        expected = found * math.log(found) / (first[0] * math.log(first[0]))
        yield less_is_better(
            f"text to queries, {found:,} tokens",
            cost.seconds / found * 1e6,
            None,
            "μs per token",
            **_settings(found, order, repeat),
            **vars(cost),
            over_n_log_n=cost.seconds / first[1] / expected,
        )


def scaling(
    files: Sequence[str],
    folder: Path,
    num_tokens: int,
    order: int,
    repeat: int,
    threads: Sequence[int],
) -> Iterator[Row]:
    """Our times by the number of threads; the peer of each is the first number."""
    train, held_out, found = _prepare(files, folder, num_tokens)
    note(f"{found:,} tokens; medians of {repeat} rounds; {usable_cores()} cores")
    _warm_up(folder, train, order)
    works: dict[str, Work] = {}
    for number in threads:
        works[f"text to queries|{number}"] = partial(_elman, folder, train, order, threads=number)
        works[f"text to ARPA|{number}"] = partial(
            _elman, folder, train, order, arpa=True, threads=number
        )
    costs = in_turns(works, repeat)
    steps = [_steps(folder, train, held_out, order, number) for number in (*threads, *threads)]
    for number, one, other in zip(threads, steps, steps[len(threads) :], strict=False):
        for name, cost in one.items():
            costs[f"{name}|{number}"] = min(cost, other[name], key=lambda some: some.seconds)
    names = list(dict.fromkeys(name.partition("|")[0] for name in costs))
    for name in names:
        for number in threads:
            mine, first = costs[f"{name}|{number}"], costs[f"{name}|{threads[0]}"]
            settings = _settings(found, order, repeat) | {"threads": number}
            settings["cpu_seconds"] = mine.cpu_seconds
            plural = "s" if number > 1 else ""
            label = f"{name}, {number} thread{plural}"
            yield less_is_better(label, mine.seconds, first.seconds, "s", **settings)


def _steps(
    folder: Path, train: Path, held_out: Path, order: int, num_threads: int
) -> dict[str, Cost]:
    """Return the cost of each step in this process."""
    costs: dict[str, Cost] = {}

    @contextmanager
    def step(name: str) -> Iterator[None]:
        started, cpu_seconds = time.perf_counter(), time.process_time()
        yield
        seconds = time.perf_counter() - started
        costs[name] = Cost(seconds, time.process_time() - cpu_seconds, 0)

    set_threads(num_threads)
    try:
        with step("read the text"):
            stretches = read_stretches([train], num_threads=num_threads)
        with step("make the vocabulary"):
            tokenizer = word_tokenizer(stretches, "pretokenized")
            tokenizer.save(folder / "steps.tokenizer.json")
            _ = tokenizer.hash
        with step("encode"):
            ids = stretches.ids(tokenizer)
        sizes: dict[str, Any] = {
            "vocab_size": tokenizer.vocab_size,
            "boundary_id": tokenizer.boundary_id,
        }
        with step("count"):
            trie = count(ids, order, num_threads=num_threads, **sizes)
        with step("estimate"):
            last = last_ngram(ids, order, **sizes)
            trie, found = estimate(trie, KneserNey(), last=last, num_threads=num_threads)
        with step("write the model"):
            save_estimate(
                folder / "steps.model",
                trie,
                found,
                about(KneserNey(), found),
                num_threads=num_threads,
            )
        model, _ = load(folder / "steps.model")
        with step("write the ARPA file"):
            save_arpa(folder / "steps.arpa", model, tokenizer, num_threads=num_threads)
        scored = read_stretches([held_out], num_threads=num_threads).ids(tokenizer)
        fit(model, scored, num_threads=num_threads)  # page the model in
        with step("score a tenth"):
            fit(model, scored, num_threads=num_threads)
    finally:
        forget_threads()
    return costs


def _settings(num_tokens: int, order: int, repeat: int) -> dict[str, Any]:
    return {"tokens": num_tokens, "order": order, "repeat": repeat, "threads": usable_cores()}


def _prepare(
    files: Sequence[str], folder: Path, num_tokens: int, *, held_out: int | None = None
) -> tuple[Path, Path, int]:
    """Write the text to count and the text to score; return both and the tokens of the first.

    Tokens include line ends. Files are cut at lines: what follows `num_tokens` tokens is scored, or
    the last tenth of shorter files.
    """
    scored = min(int(num_tokens * HELD_OUT), MOST_HELD_OUT) if held_out is None else held_out
    text, train, rest = (folder / name for name in ("text.txt", "train.txt", "held-out.txt"))
    if files:
        sources = expand(files)
        whole = sum(_num_tokens(block.data) for block in corpus_blocks(sources, end_lines=True))
        if whole < num_tokens + scored:
            scored = min(int(whole * HELD_OUT), scored)
            num_tokens = max(1, whole - scored)
    else:
        write_sampled_text(text, expand(SOURCES), num_tokens + scored)
        sources = [text]
    found = 0
    with train.open("wb") as counted, rest.open("wb") as left:
        for block in corpus_blocks(sources, end_lines=True):
            for line in block.data.splitlines(keepends=True):
                size = _num_tokens(line)
                if found < num_tokens:
                    counted.write(line)
                    found += size
                elif scored > 0:
                    left.write(line)
                    scored -= size
    text.unlink(missing_ok=True)
    return train, rest, found


def _num_tokens(text: bytes) -> int:
    return len(text.split()) + text.count(b"\n")


def _warm_up(folder: Path, train: Path, order: int) -> None:
    """Compile the loops, and load the text into the file cache."""
    start = folder / "little.txt"
    with train.open("rb") as file:
        start.write_bytes(b"".join(file.readlines(1 << 16)))
    _elman(folder, start, order, arpa=True)
    train.read_bytes()


def _elman(
    folder: Path, train: Path, order: int, *, arpa: bool = False, threads: int | None = None
) -> Cost:
    """Run our program in a fresh process; its files stay in `folder`."""
    run, file = folder / "run", folder / "ours.arpa"
    shutil.rmtree(run, ignore_errors=True)
    if arpa:
        file.unlink(missing_ok=True)
    command: list[str | Path] = [
        *(sys.executable, "-m", "elman.cli", "train", "ngram", train, "--out", run),
        *("--order", str(order), "--set", "tokenizer.kind=pretokenized"),
        *(("--arpa", file) if arpa else ()),
        *(("--threads", str(threads)) if threads else ()),
    ]
    return run_program(command)


def _estimating(folder: Path, train: Path, kenlm: KenLM, settings: dict[str, Any]) -> Iterator[Row]:
    order = settings["order"]
    theirs, binary = folder / "kenlm.arpa", folder / "kenlm.bin"
    works: dict[str, Work] = {"arpa": partial(_elman, folder, train, order, arpa=True)}
    if kenlm.lmplz:
        command = [
            *(kenlm.lmplz, "-o", str(order), "-S", settings["lmplz_memory"], "-T", folder),
            "--discount_fallback",  # no effect if the discounts can be estimated
        ]
        works["lmplz"] = partial(run_program, command, stdin=train, stdout=theirs)
    works["queries"] = partial(_elman, folder, train, order)
    if kenlm.lmplz and kenlm.build_binary:
        works["build_binary"] = partial(
            run_program, [kenlm.build_binary, "probing", theirs, binary]
        )
    note(f"estimating: {', '.join(works)}")
    costs = in_turns(works, settings["repeat"])
    binary_cost = costs["lmplz"] + costs["build_binary"] if "build_binary" in costs else None
    pairs = {
        "text to ARPA": (costs["arpa"], costs.get("lmplz")),
        "text to queries": (costs["queries"], binary_cost),
    }
    for name, (ours, peer) in pairs.items():
        cpu = {"cpu_seconds": ours.cpu_seconds}
        if peer is not None:
            cpu["peer_cpu_seconds"] = peer.cpu_seconds
        seconds = None if peer is None else peer.seconds
        yield less_is_better(name, ours.seconds, seconds, "s", **settings, **cpu)
    for name, (ours, peer) in pairs.items():
        memory = None if peer is None else peer.peak_bytes / 1e6
        yield less_is_better(f"memory, {name}", ours.peak_bytes / 1e6, memory, "MB", **settings)


def _scoring(folder: Path, held_out: Path, kenlm: KenLM, settings: dict[str, Any]) -> Iterator[Row]:
    model, _ = load(folder / "run" / MODEL_FILE)
    tokenizer = Tokenizer.load(folder / "run" / TOKENIZER_FILE)
    binary, nothing = folder / "kenlm.bin", folder / "nothing.txt"
    nothing.write_bytes(b"")
    perplexities: dict[str, float] = {}
    num_tokens = 0

    def score(num_threads: int) -> None:
        nonlocal num_tokens
        ids = read_stretches([held_out], num_threads=num_threads).ids(tokenizer)
        perplexities["perplexity"] = fit(model, ids, num_threads=num_threads).perplexity
        num_tokens = len(ids)

    def query(text: Path) -> Cost:
        assert kenlm.query is not None
        answers = folder / "answers.txt"
        cost = run_program([kenlm.query, "-v", "summary", binary], stdin=text, stdout=answers)
        if text == held_out:
            found = re.search(r"including OOVs:\s*(\S+)", answers.read_text())
            perplexities["peer_perplexity"] = float(found[1]) if found else math.nan
        return cost

    def module() -> None:
        with held_out.open(encoding="utf-8") as file:
            for line in file:
                peer_model.score(line)

    score(usable_cores())  # page the model in, as KenLM does when it loads
    works: dict[str, Work] = {"one": partial(score, 1), "all": partial(score, usable_cores())}
    has_binary = binary.exists()
    if has_binary and kenlm.query:
        works |= {"query": partial(query, held_out), "loading": partial(query, nothing)}
    elif kenlm.module is not None:
        quiet = kenlm.module.Config()
        quiet.show_progress = False
        quiet.arpa_complain = kenlm.module.ARPALoadComplain.NONE
        peer_model = kenlm.module.Model(str(binary if has_binary else folder / "ours.arpa"), quiet)
        works["module"] = module
    costs = in_turns(works, settings["repeat"])
    seconds = None
    if "query" in costs:
        seconds = max(1e-9, costs["query"].seconds - costs["loading"].seconds)
    elif "module" in costs:
        seconds = costs["module"].seconds
    settings = settings | {"scored": num_tokens} | perplexities
    peer = None if seconds is None else num_tokens / seconds
    # The module gets its lines one by one from Python, unlike `query`: another comparison.
    beside = ", beside KenLM's Python module" if "module" in costs else ""
    for name, threads in (("one", 1), ("all", settings["threads"])):
        plural = "s" if threads > 1 else ""
        row = more_is_better(
            f"scoring, {threads} thread{plural}{beside}",
            num_tokens / costs[name].seconds,
            peer,
            "tokens/s",
            **settings,
        )
        yield replace(row, settings=row.settings | {"threads": threads})
