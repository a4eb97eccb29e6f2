"""Text of any length for measuring speed, sampled from the n-grams of other text.

Repeating a text makes no new n-grams, and a counter would look quicker than it is. Here each word
follows the last four as it did somewhere in the source, or the last three, two, one or none: at
every length a coin decides whether to look back less far. Where nothing is looked back at, a word
may also be new, by Zipf's law. Lines go on past many a line end. The same seed gives the same text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elman.base.files import replacing
from elman.ngrams.compiled import Scalar, compiled
from elman.ngrams.counting import count
from elman.ngrams.reading import read_stretches, word_tokenizer
from elman.ngrams.trie import Array, CountTrie

ORDER = 5
LOOK_BACK_LESS = 0.5
"""The chance, at each length, to look back one word less far."""
GO_ON = 0.6
"""The chance that the line goes on where in the source it ended."""
NEW_WORD = 0.05
"""The chance that a word for which nothing is looked back at is a new one."""
NEW_WORDS = 1e7
"""How many new words there are."""
_STRETCH = 1 << 20


def write_sampled_text(
    path: Path, files: Sequence[Path], num_tokens: int, *, seed: int = 0
) -> None:
    """Write about `num_tokens` tokens, line ends included, with spaces between the words."""
    stretches = read_stretches(files)
    tokenizer = word_tokenizer(stretches, "word")
    ids = stretches.ids(tokenizer)
    sizes = {"vocab_size": tokenizer.vocab_size, "boundary_id": tokenizer.boundary_id}
    trie = count(ids, ORDER, **sizes)
    spellings = tokenizer.spellings()
    spellings[tokenizer.boundary_id] = "\n"
    vocab_size = len(spellings)
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for part in _sampled(trie, num_tokens, seed):
            words = (spellings[i] if i < vocab_size else f"w{i - vocab_size}" for i in part)
            file.write(" ".join(words).replace(" \n", "\n").replace("\n ", "\n") + " ")
        file.write("\n")


def _sampled(trie: CountTrie, num_tokens: int, seed: int) -> Iterator[list[int]]:
    """The text's token ids; those past the vocabulary are new words."""
    levels = trie.levels
    starts = np.cumsum([0, *(len(level) for level in levels)])
    words = np.concatenate([level.words for level in levels])
    up_to = np.cumsum([0, *(np.sum(level.counts, dtype=np.int64) for level in levels)])
    before = np.concatenate(
        [
            np.cumsum(level.counts, dtype=np.int64) - level.counts + n
            for level, n in zip(levels, up_to[:-1], strict=True)
        ]
        + [up_to[-1:]]
    )
    first_child = np.concatenate(
        [level.first_child[:-1] + start for level, start in zip(levels, starts[1:-1], strict=False)]
        + [starts[-1:]]
    )
    suffix = np.concatenate(
        [np.full(len(levels[0]), -1)]
        + [level.suffix + start for level, start in zip(levels[1:], starts, strict=False)]
    )
    state = np.array([trie.boundary_id, seed], np.int64)
    while num_tokens > 0:
        ids = np.empty(min(num_tokens, _STRETCH), np.int64)
        _sample(words, before, first_child, suffix, trie.boundary_id, trie.vocab_size, state, ids)
        yield ids.tolist()
        num_tokens -= len(ids)


@compiled
def _uniform(state: NDArray[np.int64]) -> Scalar:
    """A number from 0 to 1 (Steele, Lea and Flood: SplitMix)."""
    state[1] += np.int64(-7046029254386353131)
    mixed = np.uint64(state[1])
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(13787848793156543929)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(10723151780598845931)
    mixed ^= mixed >> np.uint64(31)
    return np.float64(mixed >> np.uint64(11)) / 9007199254740992.0


@compiled
def _sample(
    words: Array, before: NDArray[np.int64], first_child: NDArray[np.int64],
    suffix: NDArray[np.int64], boundary_id: int, vocab_size: int, state: NDArray[np.int64],
    ids: NDArray[np.int64],
) -> None:  # fmt: skip
    """Fill `ids`; `state` is the n-gram to continue, or -1, and that of the random numbers."""
    num_contexts = len(first_child) - 1
    node = state[0]
    i = 0
    while i < len(ids):
        while node >= 0 and (
            first_child[node] == first_child[node + 1] or _uniform(state) < LOOK_BACK_LESS
        ):
            node = suffix[node]
        if node < 0 and _uniform(state) < NEW_WORD:
            ids[i] = vocab_size + np.int64(NEW_WORDS ** _uniform(state))
            i += 1
            continue
        low, high = (first_child[node], first_child[node + 1]) if node >= 0 else (0, vocab_size)
        wanted = before[low] + np.int64(_uniform(state) * (before[high] - before[low]))
        while high - low > 1:  # the last n-gram with no more than `wanted` before it
            middle = (low + high) >> 1
            if before[middle] <= wanted:
                low = middle
            else:
                high = middle
        node = low if low < num_contexts else suffix[low]
        if words[low] == boundary_id:
            node = np.int64(boundary_id)
            if _uniform(state) < GO_ON:
                node = np.int64(-1)
                continue
        ids[i] = words[low]
        i += 1
    state[0] = node
