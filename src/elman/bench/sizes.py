"""Cells and sizes of the recurrent benches, and parsers for lists in options."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

from elman.base.errors import UsageError, nearest

CellName = Literal["lstm", "gru", "mingru", "minlstm", "sru"]
CELLS: tuple[CellName, ...] = ("lstm", "gru", "mingru", "minlstm", "sru")
ALL_CELLS = ",".join(CELLS)
TRAINED_CELLS = (*CELLS, "qrnn", "hgrn", "rglru", "slstm", "rnn")
"""Those of whole training runs, which need no peer outside."""
DEFAULT_CELLS = "lstm,gru,mingru"


@dataclass(frozen=True)
class Size:
    """The sizes of one measurement."""

    hidden_size: int
    batch_size: int
    num_steps: int
    num_layers: int = 1
    vocab_size: int = 65
    embedding_size: int = 64


LAYERS = [
    *(Size(hidden, 32, 128) for hidden in (64, 128, 256, 512)),
    *(Size(256, batch, 128) for batch in (1, 8, 64)),
    *(Size(256, 32, steps) for steps in (16, 512)),
]
"""Single layers: over hidden size, batch size and length."""
STEPS = [
    *(Size(256, batch, 128) for batch in (32, 64)),
    *(Size(512, batch, 128, num_layers=2) for batch in (32, 64)),
    *(Size(width, 20, 35, 2, 10_000, embedding_size=width) for width in (200, 650)),
]
"""Training steps: characters, then words."""
STREAMS = [
    Size(256, 1, 100),
    Size(512, 1, 100, num_layers=2),
    Size(200, 1, 100, 2, 10_000, embedding_size=200),
    Size(650, 1, 50, 2, 10_000, embedding_size=650),
]
"""Generation of one stream: characters, then words."""
SERVED = [Size(512, 1, 32), Size(650, 1, 32, 2, 10_000, embedding_size=650)]
"""Many streams: characters, then words. The number of streams is asked for by itself."""
GPU_LAYERS = [
    *(Size(hidden, batch, 128) for hidden, batch in ((256, 64), (512, 64), (512, 16))),
    *(Size(1024, batch, steps) for batch, steps in ((20, 70), (32, 70), (64, 128))),
    *(Size(1152, batch, 70) for batch in (20, 80)),
    *(Size(1536, 20, 35), Size(2048, 128, 20)),
]
SCANS = [Size(256, 8, 128), Size(256, 32, 512)]
GPU_SCANS = [Size(512, 32, 128), Size(1024, 16, 1024)]
GPU_STEPS = [Size(1150, batch, 70, 3, 10_000, embedding_size=400) for batch in (20, 80)]
"""AWD-LSTM's size (Merity, Keskar and Socher 2018)."""


def parse_names(text: str, known: Collection[str], what: str) -> list[str]:
    """Split a list at commas; refuse names that are not `known`."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise UsageError(f"there is no {what} '{name}' to measure", nearest(name, known))
    return names


def parse_cells(text: str) -> list[CellName]:
    return cast(list[CellName], parse_names(text, CELLS, "cell"))


def parse_sizes(text: str | None, default: Sequence[Size]) -> list[Size]:
    """The default sizes, or those in `text`; what `text` leaves out is taken from a default."""
    if text is None:
        return list(default)
    sizes = []
    for part in text.split(","):
        found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)x([1-9]\d*)(?:x([1-9]\d*))?", part.strip())
        if found is None:
            raise UsageError(f"'{part}' is not a size", "write it as 2x512x64, or 2x200x20x10000")
        layers, hidden, batch = map(int, found.groups()[:3])
        words = int(found[4] or default[0].vocab_size)
        like = next((size for size in default if size.vocab_size == words), default[0])
        size = replace(like, num_layers=layers, hidden_size=hidden, batch_size=batch)
        embedding = hidden if found[4] else like.embedding_size
        sizes.append(replace(size, vocab_size=words, embedding_size=embedding))
    return sizes


MOST_THREADS = 1024


def parse_threads(text: str | None) -> list[int] | None:
    """Parse 4 or 1,2,4; None stays None."""
    if text is None:
        return None
    numbers = [part.strip() for part in text.split(",")]
    for number in numbers:
        if not number.isdecimal() or not 1 <= int(number) <= MOST_THREADS:
            raise UsageError(f"'{number}' is not a number of threads", "write 4, or 1,2,4")
    return [int(number) for number in numbers]


def parse_count(text: str) -> int:
    """Parse 1000000, 1M, 300k, 1B (a billion) or 1T."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMbBtT]?)", text.strip())
    factor = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
    count = int(float(found[1]) * factor[found[2].lower()]) if found else 0
    if count < 1:
        raise UsageError(f"'{text}' is not a positive number", "write it as 300k or 10M")
    return count
