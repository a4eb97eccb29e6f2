"""`elman bench ngram`: estimating and scoring n-gram models, beside KenLM.

    text to ARPA        elman train ngram --arpa         lmplz
    text to queries     elman train ngram                lmplz, then build_binary (probing)
    memory              the most that each of these uses
    scoring             text to its perplexity           query, less the time on no text

Both read the same words. Our scoring is timed in this process from the opened files on, reading and
encoding the text included. KenLM's `query` has no such clock: it is timed as a program, and so is
the same program on an empty text, which is what starting it and loading the model take. Without
`query`, KenLM's Python module takes its place, and the rows say so.
"""

from __future__ import annotations

import math
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from elman.base.errors import UsageError
from elman.bench.measuring import (
    Cost,
    Row,
    interleaved,
    less_is_better,
    median,
    more_is_better,
    run_program,
)
from elman.bench.sampled_text import write_sampled_text
from elman.ngrams.compiled import default_threads
from elman.ngrams.reading import read_stretches
from elman.ngrams.statistics import fit
from elman.ngrams.storage import MODEL_FILE, load
from elman.text.sources import corpus_blocks, expand
from elman.tokens.tokenizer import TOKENIZER_FILE, Tokenizer

SOURCES = ("python-docs", "python-source")
"""What text is sampled from where none is given: corpora that need no download."""
HELD_OUT, MOST_HELD_OUT = 0.1, 1_000_000
"""Which part of the tokens is scored and not counted, and how many at most."""
LMPLZ_MEMORY = "1G"
"""What lmplz may use unless told: its own default, 80 % of the machine, makes it slower."""

PROGRAMS = ("lmplz", "build_binary", "query")
Note = Callable[[str], None]


@dataclass(frozen=True)
class KenLM:
    """The programs of KenLM, and its Python module, as far as they are there."""

    lmplz: str | None = None
    build_binary: str | None = None
    query: str | None = None
    module: Any = None

    @classmethod
    def find(cls, folder: Path | None) -> KenLM:
        """Look in `folder`, or where programs are found."""
        path = None if folder is None else str(folder)
        if folder is not None and shutil.which("lmplz", path=path) is None:
            raise UsageError(f"there is no lmplz in {folder}", "name the folder where it is")
        try:
            module = import_module("kenlm")
        except ImportError:
            module = None
        lmplz, build_binary, query = (shutil.which(name, path=path) for name in PROGRAMS)
        return cls(lmplz, build_binary, query, module)

    @property
    def missing(self) -> str | None:
        """A sentence on what is not there."""
        absent = [name for name in PROGRAMS if getattr(self, name) is None]
        if not absent:
            return None
        said = f"KenLM's {', '.join(absent)} not found (--kenlm names the folder): no comparison "
        said += "with it" if len(absent) == 1 else "with them"
        if "query" in absent and self.module is not None:
            said += ", and scoring is compared with KenLM's Python module"
        return said


def bench(
    files: Sequence[str],
    folder: Path,
    *,
    num_tokens: int,
    order: int = 5,
    repeat: int = 3,
    kenlm: KenLM | None = None,
    lmplz_memory: str = LMPLZ_MEMORY,
    note: Note = lambda text: None,
) -> Iterator[Row]:
    """Measure on `num_tokens` tokens of the files, or of sampled text; work in `folder`."""
    kenlm = kenlm or KenLM()
    train, held_out, found = prepare(files, folder, num_tokens)
    settings: dict[str, Any] = {
        "tokens": found,
        "order": order,
        "repeat": repeat,
        "threads": default_threads(),
    }
    note(f"{found:,} tokens; {repeat} times in turn, medians")
    _warm(folder, train, order)
    if kenlm.lmplz:
        settings["lmplz_memory"] = lmplz_memory
    yield from _estimating(folder, train, kenlm, settings, note)
    note("scoring")
    yield from _scoring(folder, held_out, kenlm, settings)


def curve(
    files: Sequence[str],
    folder: Path,
    sizes: Sequence[int],
    *,
    order: int = 5,
    repeat: int = 3,
    note: Note = lambda text: None,
) -> Iterator[Row]:
    """The cost of a token over the size of the text, text to queries.

    `over_n_log_n` in the settings is the time over that of the first size, divided by what
    n log n would make of it: no more than 1, and the cost grows no faster.
    """
    first: tuple[int, float] | None = None
    for size in sizes:
        train, _, found = prepare(files, folder, size, held_out=0)
        if first is None:
            _warm(folder, train, order)
        cost = median([_elman(folder, train, order) for _ in range(repeat)])
        note(f"{found:,} tokens: {cost.seconds:.1f} s, {cost.peak_bytes >> 20:,} MiB")
        first = first or (found, cost.seconds)
        expected = found * math.log(found) / (first[0] * math.log(first[0]))
        yield Row(
            f"text to queries, {found:,} tokens",
            cost.seconds / found * 1e6,
            None,
            None,
            "μs per token",
            {
                "tokens": found,
                "order": order,
                "repeat": repeat,
                "threads": default_threads(),
                "seconds": cost.seconds,
                "cpu_seconds": cost.cpu_seconds,
                "peak_bytes": cost.peak_bytes,
                "over_n_log_n": cost.seconds / first[1] / expected,
            },
        )


def prepare(
    files: Sequence[str], folder: Path, num_tokens: int, *, held_out: int | None = None
) -> tuple[Path, Path, int]:
    """The text to count, the text to score, and how many tokens the first has, line ends included.

    Text of files is cut at lines: whatever comes after `num_tokens` tokens is scored. Where they
    have less, the last tenth is.
    """
    if num_tokens < 1:
        raise UsageError("there must be tokens to measure on", "--tokens 1000000")
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


def _warm(folder: Path, train: Path, order: int) -> None:
    """Compile the loops, once and for all, and have the text in the system's cache."""
    little = folder / "little.txt"
    with train.open("rb") as file:
        little.write_bytes(b"".join(file.readlines(1 << 16)))
    _elman(folder, little, order, arpa=True)
    train.read_bytes()


def _elman(folder: Path, train: Path, order: int, *, arpa: bool = False) -> Cost:
    """Our own program, in a fresh process; what it makes stays in `folder`."""
    run, file = folder / "run", folder / "ours.arpa"
    shutil.rmtree(run, ignore_errors=True)
    if arpa:
        file.unlink(missing_ok=True)
    command: list[str | Path] = [
        *(sys.executable, "-m", "elman.cli", "train", "ngram", train, "--out", run),
        *("--order", str(order), "--set", "tokenizer.kind=pretokenized"),
        *(("--arpa", file) if arpa else ()),
    ]
    return run_program(command)[0]


def _estimating(
    folder: Path, train: Path, kenlm: KenLM, settings: dict[str, Any], note: Note
) -> Iterator[Row]:
    order = settings["order"]
    theirs, binary = folder / "kenlm.arpa", folder / "kenlm.bin"

    def lmplz() -> Cost:
        assert kenlm.lmplz is not None
        command = [
            *(kenlm.lmplz, "-o", str(order), "-S", settings["lmplz_memory"], "-T", folder),
            "--discount_fallback",  # changes nothing where the discounts have an answer
        ]
        return run_program(command, stdin=train, stdout=theirs)[0]

    def build_binary() -> Cost:
        assert kenlm.build_binary is not None
        return run_program([kenlm.build_binary, "probing", theirs, binary])[0]

    tasks: dict[str, Callable[[], Cost]] = {"arpa": lambda: _elman(folder, train, order, arpa=True)}
    if kenlm.lmplz:
        tasks["lmplz"] = lmplz
    tasks["queries"] = lambda: _elman(folder, train, order)
    if kenlm.lmplz and kenlm.build_binary:
        tasks["build_binary"] = build_binary
    note(f"estimating: {', '.join(tasks)}")
    costs = {name: median(found) for name, found in interleaved(tasks, settings["repeat"]).items()}
    peers = {"text to ARPA": ("arpa", costs.get("lmplz")), "text to queries": ("queries", None)}
    if "build_binary" in costs:
        peers["text to queries"] = ("queries", costs["lmplz"] + costs["build_binary"])
    for name, (ours, peer) in peers.items():
        cost = costs[ours]
        cpu = {"cpu_seconds": cost.cpu_seconds}
        if peer is not None:
            cpu["peer_cpu_seconds"] = peer.cpu_seconds
        seconds = None if peer is None else peer.seconds
        yield less_is_better(name, cost.seconds, seconds, "s", **settings, **cpu)
    for name, (ours, peer) in peers.items():
        memory = None if peer is None else peer.peak_bytes / 1e6
        yield less_is_better(
            f"memory, {name}", costs[ours].peak_bytes / 1e6, memory, "MB", **settings
        )


def _scoring(folder: Path, held_out: Path, kenlm: KenLM, settings: dict[str, Any]) -> Iterator[Row]:
    model, _ = load(folder / "run" / MODEL_FILE)
    tokenizer = Tokenizer.load(folder / "run" / TOKENIZER_FILE)
    binary, nothing = folder / "kenlm.bin", folder / "nothing.txt"
    nothing.write_bytes(b"")
    perplexities: dict[str, float] = {}
    num_tokens = 0

    def score(num_threads: int) -> Cost:
        nonlocal num_tokens
        started, cpu = time.perf_counter(), time.process_time()
        ids = read_stretches([held_out], num_threads=num_threads).ids(tokenizer)
        perplexities["perplexity"] = fit(model, ids, num_threads=num_threads).perplexity
        num_tokens = len(ids)
        return Cost(time.perf_counter() - started, time.process_time() - cpu, 0)

    def query(text: Path) -> Cost:
        assert kenlm.query is not None
        answers = folder / "answers.txt"
        cost, _ = run_program([kenlm.query, "-v", "summary", binary], stdin=text, stdout=answers)
        if text == held_out:
            said = re.search(r"including OOVs:\s*(\S+)", answers.read_text())
            perplexities["peer_perplexity"] = float(said[1]) if said else math.nan
        return cost

    def module() -> Cost:
        started, cpu = time.perf_counter(), time.process_time()
        with held_out.open(encoding="utf-8") as file:
            for line in file:
                peer_model.score(line)
        return Cost(time.perf_counter() - started, time.process_time() - cpu, 0)

    score(default_threads())  # brings the pages of the model in, as KenLM does when it loads
    tasks: dict[str, Callable[[], Cost]] = {
        "one": lambda: score(1),
        "all": lambda: score(default_threads()),
    }
    has_binary = binary.exists()
    if has_binary and kenlm.query:
        tasks |= {"query": lambda: query(held_out), "loading": lambda: query(nothing)}
    elif kenlm.module is not None:
        quiet = kenlm.module.Config()
        quiet.show_progress = False
        quiet.arpa_complain = kenlm.module.ARPALoadComplain.NONE
        peer_model = kenlm.module.Model(str(binary if has_binary else folder / "ours.arpa"), quiet)
        tasks["module"] = module
    costs = {name: median(found) for name, found in interleaved(tasks, settings["repeat"]).items()}
    seconds = None
    if "query" in costs:
        seconds = max(1e-9, costs["query"].seconds - costs["loading"].seconds)
    elif "module" in costs:
        seconds = costs["module"].seconds
    settings = settings | {"scored": num_tokens} | perplexities
    peer = None if seconds is None else num_tokens / seconds
    # Its lines come from Python one by one, which `query` is spared: another comparison.
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
