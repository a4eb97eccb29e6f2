"""Join indexes of several texts into one of all of them.

Shards of a text are indexed on their own, by several machines at once, and joined by merging what
is sorted already: the index is the same, byte for byte, as one of all files.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from elman.base.errors import UsageError
from elman.ngrams.scratch import Scratch, check_memory, memory_size
from elman.ngrams.text_index import TextIndex
from elman.runs.lock import locked
from elman.runs.new_folder import filling
from elman.runs.run_folder import CONFIG_FILE
from elman.tasks.counted import CountedText, check_new, note
from elman.tasks.infinigram.task import Made, Maker
from elman.train.report import Report

if TYPE_CHECKING:
    from elman.tasks.infinigram.handle import InfinigramHandle

_READ_AT_ONCE = 1 << 20


def join(
    handles: Sequence[InfinigramHandle],
    out: Path,
    *,
    memory: str | int | None = None,
    num_threads: int | None = None,
) -> Iterator[Report]:
    """Make the index of all texts, in the order given, in the new folder `out`.

    The settings are those of the first. So are the weights of matches: they do not depend on how
    long the text is.
    """
    started = time.perf_counter()
    check_new(out, "choose another --out")
    first = handles[0]
    for other in handles[1:]:
        if other.tokenizer.hash != first.tokenizer.hash:
            raise UsageError(
                f"{first.name} and {other.name} have different tokenizers",
                f"index both texts with one: --tokenizer {first.runs[0].path}/tokenizer.json",
            )
    memory = memory_size(memory) if isinstance(memory, str) else memory
    if memory is not None:
        check_memory(memory)
    parts = [handle.model.counts.index for handle in handles]
    with (
        locked(out),
        filling(out, last=CONFIG_FILE) as folder,
        nullcontext() if memory is None else Scratch(limit=memory) as scratch,
    ):
        ids = _all_tokens(parts, scratch)
        yield note(f"joining {len(parts)} indexes: {len(ids):,} tokens")
        config: Any = first.runs[0].config
        names = [name for handle in handles for name in handle.runs[0].config.data.train]
        data = replace(config.data, train=names, valid=[], test=[])
        config = replace(config, data=data)
        text = CountedText(ids, first.tokenizer, config.tokenizer, 0)
        counting = time.perf_counter()
        left = None if scratch is None else scratch.budget("Python and the words of the text")
        maker = Maker(text, config.model.order, scratch, left, num_threads)
        files = [file for part in parts for file in part.files]
        if not all(part.files for part in parts):
            files = []
        index, backoff = maker.make(folder, len(ids), files, parts)
        made = Made(config, out, folder, text, index, backoff, first.model.counts.weights_LN2)
        yield from made.finish(
            started=started,
            counting=counting,
            weights_from=f"those of {first.name}",
            num_threads=num_threads,
        )


def _all_tokens(parts: Sequence[TextIndex], scratch: Scratch | None) -> NDArray[Any]:
    """The texts one after the other, without the boundary token in front of each."""
    room = np.empty if scratch is None else scratch.empty
    ids = room(sum(part.num_tokens - 1 for part in parts), np.int32)
    at = 0
    for part in parts:
        for begin in range(1, part.num_tokens, _READ_AT_ONCE):
            some = part.tokens(begin, _READ_AT_ONCE)
            ids[at : at + len(some)] = some
            at += len(some)
    return ids
