"""`elman bench index`: the cost of an index of a text, and how soon it answers.

The index is made by a program of its own, within a limit of memory. Then it is opened here, and
stretches of the text are looked up: how often, what follows, and places. Every other one has its
last word exchanged, so that most of those are not there. `joined` indexes parts of the text and
joins them.
"""

from __future__ import annotations

import filecmp
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from elman.base.threads import usable_cores
from elman.bench.counting import text_of
from elman.bench.measuring import Cost, run_program
from elman.bench.rows import Row, note
from elman.ngrams.text_index import INDEX_FILE

LENGTHS = (1, 2, 3, 5, 8)
_COPIED_AT_ONCE = 1 << 24


def measure(
    files: Sequence[str], folder: Path, num_tokens: int, memory: str, queries: int, made: bool
) -> Iterator[Row]:
    """`made`: the folder already has the index."""
    from elman.api import load

    text, out = text_of(files, folder, num_tokens), folder / "index"
    kind = ("--set", "tokenizer.kind=pretokenized")
    cost = None if made else _made(out, "index", *text, *kind, "--memory", memory)
    started = time.perf_counter()
    handle: Any = load(str(out))
    opened = time.perf_counter() - started
    handle.find("the", as_is=True)  # load the compiled loops
    index = handle.model.counts.index
    tokens, vocab_size = index.num_tokens, handle.tokenizer.vocab_size
    size = sum(file.stat().st_size for file in out.iterdir())
    settings = {"tokens": tokens, "types": vocab_size, "memory": memory, "threads": usable_cores()}
    if cost is not None:
        note(f"{tokens:,} tokens: {cost.seconds:,.0f} s")
        yield Row("make the index", cost.seconds, None, None, "s", settings | vars(cost))
        yield Row("memory", cost.peak_bytes / 1e6, None, None, "MB", settings)
    yield Row("size", size / tokens, None, None, "bytes per token", settings)
    own = (out / INDEX_FILE).stat().st_size
    yield Row(f"size of {INDEX_FILE}", own / tokens, None, None, "bytes per token", settings)
    yield Row("open it", opened * 1e3, None, None, "ms", settings)
    for length in LENGTHS:
        taken, found = [], 0
        for words in _stretches(Path(text[0]), length, queries):
            started = time.perf_counter()
            answer = handle.find(" ".join(words), as_is=True)
            taken.append(1e3 * (time.perf_counter() - started))
            found += answer.count > 0
        shares = {"found": found / max(1, len(taken)), "worst": max(taken)}
        middle, slow = np.quantile(taken, [0.5, 0.99]).tolist()
        plural = "s" if length > 1 else ""
        named = f"find {length} word{plural}"
        yield Row(f"{named}, median", middle, None, None, "ms", settings | shares)
        yield Row(f"{named}, 99 of 100", slow, None, None, "ms", settings | shares)


def joined(
    files: Sequence[str], folder: Path, num_tokens: int, memory: str, num_parts: int
) -> Iterator[Row]:
    """The cost of joining indexes of parts of the text, beside that of one index of all parts."""
    (text, *_), whole = text_of(files, folder, num_tokens), folder / "index"
    parts = _split(Path(text), folder, num_parts)
    kind = ("--set", "tokenizer.kind=pretokenized")
    limit = ("--memory", memory)
    at_once = _made(whole, "index", *parts, *kind, *limit)
    known = ("--tokenizer", str(whole / "tokenizer.json"))
    made = [folder / f"index-{number}" for number in range(num_parts)]
    costs = [
        _made(out, "index", part, *known, *limit) for out, part in zip(made, parts, strict=True)
    ]
    out = folder / "joined"
    joining = _made(out, "join", *map(str, made), *limit)
    same = filecmp.cmp(whole / INDEX_FILE, out / INDEX_FILE, shallow=False)
    settings = {"parts": num_parts, "memory": memory, "threads": usable_cores(), "same bytes": same}
    for what, cost in (
        ("all at once", at_once),
        *((f"part {number}", cost) for number, cost in enumerate(costs, start=1)),
        ("join them", joining),
    ):
        yield Row(what, cost.seconds, None, None, "s", settings | vars(cost))


def _made(out: Path, verb: str, *arguments: str) -> Cost:
    """Run a command of `elman` that makes the folder `out`."""
    shutil.rmtree(out, ignore_errors=True)
    return run_program([sys.executable, "-m", "elman.cli", verb, *arguments, "--out", str(out)])


def _split(path: Path, folder: Path, num_parts: int) -> list[str]:
    """Cut a file into parts of about the same size, at line ends."""
    size, parts = path.stat().st_size, []
    with path.open("rb") as file:
        for number in range(num_parts):
            part = folder / f"part-{number}.txt"
            with part.open("wb") as output:
                while (left := size * (number + 1) // num_parts - file.tell()) > 0:
                    output.write(file.read(min(left, _COPIED_AT_ONCE)))
                output.write(file.readline())
            parts.append(str(part))
    return parts


def _stretches(path: Path, length: int, number: int) -> Iterator[list[str]]:
    """Words of a line somewhere in the file; every other time with a word from elsewhere at the
    end."""
    rng = np.random.default_rng(length)
    with path.open("rb") as file:
        size = path.stat().st_size
        previous = "the"
        for i in range(number):
            words: list[str] = []
            while len(words) < length:
                file.seek(int(rng.integers(size)))
                file.readline()
                words = file.readline().decode(errors="replace").split()
            first = int(rng.integers(len(words) - length + 1))
            found = words[first : first + length]
            previous, last = found[-1], previous
            yield [*found[:-1], last] if i % 2 else found
