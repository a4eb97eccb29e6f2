"""Sample text of any length for speed measurements from the n-grams of other text.

Repeated text has no new n-grams, so counting it would look faster than it is. Here each word is
sampled after the last four words of the source, or after fewer: at every length a coin decides
whether to drop a word of context. Without context, a word may also be new, by Zipf's law. Some line
ends are skipped, to get longer lines. The same seed gives the same text.
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
SHORTEN = 0.5
"""Probability, at each length, to drop a word of context."""
SKIP_LINE_END = 0.6
NEW_WORD = 0.05
"""Probability that a word without context is new."""
NEW_WORDS = 1e7
"""Number of new words."""
_DIGITS = 8
"""Most digits of a new word: they are w0 to w9999999."""
_STRETCH = 1 << 20


def write_sampled_text(
    path: Path, files: Sequence[Path], num_tokens: int, *, seed: int = 0
) -> None:
    """Write about `num_tokens` tokens, line ends included, separated by spaces."""
    stretches = read_stretches(files)
    tokenizer = word_tokenizer(stretches, "word")
    ids = stretches.ids(tokenizer)
    trie = count(ids, ORDER, vocab_size=tokenizer.vocab_size, boundary_id=tokenizer.boundary_id)
    spellings = [spelling.encode() for spelling in tokenizer.spellings()]
    spellings[tokenizer.boundary_id] = b"\n"
    letters = np.frombuffer(b"".join(spellings), np.uint8)
    ends = np.cumsum([0, *map(len, spellings)])
    longest = 1 + max(_DIGITS + 1, *map(len, spellings))
    with replacing(path) as temporary, temporary.open("wb") as file:
        for part in _sampled(trie, num_tokens, seed):
            text = np.empty(len(part) * longest, np.uint8)
            file.write(text[: _spell(part, letters, ends, tokenizer.boundary_id, text)].data)
        file.write(b"\n")


def _sampled(trie: CountTrie, num_tokens: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Yield token ids; those past the vocabulary are new words."""
    levels = trie.levels
    starts = np.cumsum([0, *(len(level) for level in levels)])
    words = np.concatenate([level.words for level in levels])
    counts = np.concatenate([level.counts for level in levels])
    before = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])  # sum of earlier counts
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
        yield ids
        num_tokens -= len(ids)


@compiled
def _spell(
    ids: NDArray[np.int64], letters: NDArray[np.uint8], ends: NDArray[np.int64], boundary_id: int,
    text: NDArray[np.uint8],
) -> int:  # fmt: skip
    """Write words into `text`, each with a space after it, but none beside a line end within a
    part; return the number of bytes.
    """
    vocab_size, size = len(ends) - 1, 0
    for i in range(len(ids)):
        if ids[i] == boundary_id and i > 0 and ids[i - 1] != boundary_id:
            size -= 1  # no space before a line end
        if ids[i] < vocab_size:
            for place in range(ends[ids[i]], ends[ids[i] + 1]):
                text[size] = letters[place]
                size += 1
        else:
            number, power = ids[i] - vocab_size, 1
            while power * 10 <= number:
                power *= 10
            text[size] = 119  # w
            size += 1
            while power > 0:
                text[size] = 48 + number // power % 10
                power //= 10
                size += 1
        if ids[i] != boundary_id or i == len(ids) - 1:
            text[size] = 32
            size += 1
    return size


@compiled
def _uniform(state: NDArray[np.int64]) -> Scalar:
    """Return a random number in [0, 1) (Steele, Lea and Flood: SplitMix)."""
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
    """Fill `ids`; `state` is the n-gram to continue, or -1, and the random state."""
    num_contexts = len(first_child) - 1
    node = state[0]
    i = 0
    while i < len(ids):
        while node >= 0 and (
            first_child[node] == first_child[node + 1] or _uniform(state) < SHORTEN
        ):
            node = suffix[node]
        if node < 0 and _uniform(state) < NEW_WORD:
            ids[i] = vocab_size + np.int64(NEW_WORDS ** _uniform(state))
            i += 1
            continue
        low, high = (first_child[node], first_child[node + 1]) if node >= 0 else (0, vocab_size)
        wanted = before[low] + np.int64(_uniform(state) * (before[high] - before[low]))
        while high - low > 1:  # find the last n-gram with before <= wanted
            middle = (low + high) >> 1
            if before[middle] <= wanted:
                low = middle
            else:
                high = middle
        node = low if low < num_contexts else suffix[low]
        if words[low] == boundary_id:
            node = np.int64(boundary_id)
            if _uniform(state) < SKIP_LINE_END:
                node = np.int64(-1)
                continue
        ids[i] = words[low]
        i += 1
    state[0] = node
