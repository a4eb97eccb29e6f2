"""`elman bench index`: the cost of an index of a text, and how soon it answers.

The index is made by a program of its own, within a limit of memory. Then it is opened here, and
stretches of the text are looked up: how often, what follows, and places. Every other one has its
last word exchanged, so that most of those are not there.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from elman.base.threads import usable_cores
from elman.bench.counting import text_of
from elman.bench.measuring import run_program
from elman.bench.rows import Row, note

LENGTHS = (1, 2, 3, 5, 8)


def measure(
    files: Sequence[str], folder: Path, num_tokens: int, memory: str, queries: int
) -> Iterator[Row]:
    from elman.api import load

    text, out = text_of(files, folder, num_tokens), folder / "index"
    shutil.rmtree(out, ignore_errors=True)
    cost = run_program(
        [
            *(sys.executable, "-m", "elman.cli", "index", *text, "--out", str(out)),
            *("--set", "tokenizer.kind=pretokenized", "--memory", memory),
        ]
    )
    started = time.perf_counter()
    handle: Any = load(str(out))
    opened = time.perf_counter() - started
    handle.find("the", as_is=True)  # load the compiled loops
    index = handle.model.counts.index
    tokens, vocab_size = index.num_tokens, handle.tokenizer.vocab_size
    size = sum(file.stat().st_size for file in out.iterdir())
    settings = {"tokens": tokens, "types": vocab_size, "memory": memory, "threads": usable_cores()}
    note(f"{tokens:,} tokens: {cost.seconds:,.0f} s")
    yield Row("make the index", cost.seconds, None, None, "s", settings | vars(cost))
    yield Row("memory", cost.peak_bytes / 1e6, None, None, "MB", settings)
    yield Row("size", size / tokens, None, None, "bytes per token", settings)
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
