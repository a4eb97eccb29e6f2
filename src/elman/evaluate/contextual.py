"""Vectors of words in context, for files of any size, and the nearest of them.

Sentences are read a window at a time, those of like length side by side, and handed out in their
order; a window has as many as fit in `WINDOW_BYTES`.

L layers, B batch, T words, D numbers per word and layer, K neighbours, Q queries.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from elman.base.errors import UsageError, nearest
from elman.models.embedder import Embedder
from elman.nn.shapes import Float

Layers = Literal["all", "mix", "top"]
WINDOW_BYTES = 1 << 28
"""Vectors that are in memory at a time, roughly; the words of one sentence are, whatever it has."""
WINDOW_SENTENCES = 1 << 14
WORDS_PER_BATCH = {"cpu": 2048, "cuda": 16384}
"""Words that are read in one pass."""
FEW_ROWS = {"cpu": 24, "cuda": 512}
"""Batches of fewer sentences are filled up with longer ones: padding costs less than they gain."""


def layer_vectors(
    embedder: Embedder,
    sentences: Iterable[Sequence[str]],
    *,
    layers: Layers = "mix",
    carry_state: bool = False,
) -> Iterator[Float[Tensor, "*layers T D"]]:
    """The vectors of each sentence, in order: (layers, T, D) of all, (T, D) of the top one or, for
    `mix`, of the mean of all.

    Each sentence is read for itself, unless `carry_state`: then, as the program did that ELMo was
    published with, from the states in which the previous one ended.
    """
    if layers not in get_args(Layers):
        raise UsageError(f"layers cannot be '{layers}'", nearest(layers, get_args(Layers)))
    reduce = REDUCE[layers]
    if carry_state:
        state = None
        for words in sentences:
            with torch.no_grad():
                layers_LBTD, _, state = embedder.read([words], state)
                vectors = reduce(layers_LBTD)[..., 0, :, :].float().cpu()
            yield vectors
        return
    kept = embedder.num_layers if layers == "all" else 1
    most_words = WINDOW_BYTES // (4 * kept * embedder.size)
    device = next(embedder.parameters()).device.type
    for window in _windows(sentences, most_words):
        found: dict[int, Tensor] = {}
        for indices in _batches([len(words) for words in window], device):
            with torch.no_grad():
                layers_LBTD, _ = embedder([window[i] for i in indices])
                rows = reduce(layers_LBTD).float().cpu().unbind(-3)
            for i, row in zip(indices, rows, strict=True):
                # A row is its own: one that is kept would otherwise keep its whole batch.
                found[i] = row[..., : len(window[i]), :].clone()
        for index in range(len(window)):
            yield found.pop(index) if index in found else _nothing(embedder, layers)


REDUCE: dict[str, Callable[[Tensor], Tensor]] = {
    "all": lambda layers_LBTD: layers_LBTD,
    "mix": lambda layers_LBTD: layers_LBTD.mean(0),
    "top": lambda layers_LBTD: layers_LBTD[-1],
}


@dataclass(frozen=True, order=True)
class Neighbour:
    """A word of a text, and how near it is."""

    cosine: float
    line: int
    """Which sentence it is in, from 1."""
    place: int
    """Which word of it, from 0."""
    words: tuple[str, ...]
    """The sentence."""

    @property
    def word(self) -> str:
        """The word itself."""
        return self.words[self.place]


def nearest_in_context(
    embedder: Embedder,
    queries: Sequence[tuple[Sequence[str], int]],
    sentences: Iterable[Sequence[str]],
    *,
    k: int = 5,
    layers: Layers = "top",
    keep: Callable[[Sequence[str], int], bool] | None = None,
) -> list[list[Neighbour]]:
    """For each query, a sentence and the place of a word in it, the k words of `sentences` whose
    vectors are nearest by cosine, best first.

    `keep` says which words are candidates; without it all are. A query that stands in the text is
    not its own neighbour.
    """
    if layers == "all":
        raise UsageError("neighbours are found by one vector", "use the layers top or mix")
    texts = [tuple(words) for words, _ in queries]
    asked: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    for query, (text, (_, place)) in enumerate(zip(texts, queries, strict=True)):
        asked.setdefault(text, []).append((query, place))
    vectors = layer_vectors(embedder, texts, layers=layers)
    rows = [v[place] for v, (_, place) in zip(vectors, queries, strict=True)]
    queries_QD = F.normalize(torch.stack(rows), dim=-1)
    best: list[list[Neighbour]] = [[] for _ in queries]
    least_Q1 = torch.full((len(queries), 1), -2.0)  # the cosine that a word must have to matter
    stream = _Remembered(sentences)
    for line, vectors_TD in zip(count(1), layer_vectors(embedder, stream, layers=layers)):
        words = stream.pop()
        cosines_QT = queries_QD @ F.normalize(vectors_TD, dim=-1).T
        if keep is not None:
            kept_T = torch.tensor([keep(words, place) for place in range(len(words))]).bool()
            cosines_QT = torch.where(kept_T, cosines_QT, -torch.inf)
        for query, place in asked.get(words, ()):
            cosines_QT[query, place] = -torch.inf
        for query, place in (cosines_QT >= least_Q1).nonzero().tolist():
            found = Neighbour(float(cosines_QT[query, place]), line, place, words)
            if len(best[query]) < k:
                heapq.heappush(best[query], found)
            else:
                heapq.heappushpop(best[query], found)
            if len(best[query]) == k:
                least_Q1[query] = best[query][0].cosine
    return [sorted(found, reverse=True) for found in best]


class _Remembered:
    """Sentences on their way to the embedder, remembered until their vectors come out."""

    def __init__(self, sentences: Iterable[Sequence[str]]) -> None:
        self._sentences = iter(sentences)
        self._waiting: deque[tuple[str, ...]] = deque()

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        for words in self._sentences:
            self._waiting.append(tuple(words))
            yield self._waiting[-1]

    def pop(self) -> tuple[str, ...]:
        """The first of them that has not been fetched yet."""
        return self._waiting.popleft()


def _windows(sentences: Iterable[Sequence[str]], most_words: int) -> Iterator[list[Sequence[str]]]:
    window: list[Sequence[str]] = []
    num_words = 0
    for words in sentences:
        full = num_words + len(words) > most_words or len(window) == WINDOW_SENTENCES
        if window and full:
            yield window
            window, num_words = [], 0
        window.append(words)
        num_words += len(words)
    if window:
        yield window


def _batches(lengths: Sequence[int], device: str) -> Iterator[list[int]]:
    """Sentences to read together, the shortest first: of one length, unless these are few."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        longest = lengths[index]
        if not longest:
            continue
        full = (len(batch) + 1) * longest > WORDS_PER_BATCH[device]
        other = len(batch) >= FEW_ROWS[device] and longest != lengths[batch[-1]]
        if batch and (full or other):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _nothing(embedder: Embedder, layers: Layers) -> Tensor:
    """The vectors of an empty sentence."""
    shape = (embedder.num_layers,) if layers == "all" else ()
    return torch.zeros(*shape, 0, embedder.size)
