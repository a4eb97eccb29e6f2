"""Vectors of words in context for files of any size, and nearest neighbours among them.

Sentences are read a window at a time, those of similar length together, and returned in order; a
window holds as many as fit in `WINDOW_BYTES`.

L layers, B batch, T words, D numbers per word and layer, K neighbours, Q queries.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import tee
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from elman.base.errors import UsageError, nearest
from elman.batches.buckets import batches_by_length
from elman.models.embedder import Embedder
from elman.nn.shapes import Float

Layers = Literal["all", "mix", "top"]
WINDOW_BYTES = 1 << 28
"""Approximate limit on the vectors in memory; a single sentence may exceed it."""
WINDOW_SENTENCES = 1 << 14
WORDS_PER_BATCH = {"cpu": 2048, "cuda": 16384}
"""Words per pass."""
FEW_ROWS = {"cpu": 24, "cuda": 512}
"""Batches with fewer sentences also take longer ones: that gains more than the padding costs."""


def layer_vectors(
    embedder: Embedder,
    sentences: Iterable[Sequence[str]],
    *,
    layers: Layers = "mix",
    carry_state: bool = False,
) -> Iterator[Float[Tensor, "*layers T D"]]:
    """Yield the vectors of each sentence, in order: (layers, T, D) for `all`, (T, D) for the top
    one or the mean (`mix`).

    Each sentence is read by itself. With `carry_state` it starts from the state at the end of the
    previous one, as in the program that ELMo was published with.
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
        lengths = [len(words) for words in window]
        size, alike = WORDS_PER_BATCH[device], FEW_ROWS[device]
        for indices in batches_by_length(lengths, size, alike=alike):
            with torch.no_grad():
                layers_LBTD, _ = embedder([window[i] for i in indices])
                rows = reduce(layers_LBTD).float().cpu().unbind(-3)
            for i, row in zip(indices, rows, strict=True):
                # Cloned: a view would keep the whole batch in memory.
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
    cosine: float
    line: int
    """Number of its sentence, from 1."""
    place: int
    """Index of the word in it, from 0."""
    words: tuple[str, ...]
    """The sentence."""

    @property
    def word(self) -> str:
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
    """For each query (a sentence and the index of a word in it), return the k words of `sentences`
    whose vectors are nearest by cosine, best first.

    `keep` selects the candidates; by default all words are. A query that occurs in the text is not
    its own neighbour.
    """
    if layers == "all":
        raise UsageError("neighbours need one vector per word", "use the layers top or mix")
    texts = [tuple(words) for words, _ in queries]
    asked: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    for query, (text, (_, place)) in enumerate(zip(texts, queries, strict=True)):
        asked.setdefault(text, []).append((query, place))
    vectors = layer_vectors(embedder, texts, layers=layers)
    rows = [v[place] for v, (_, place) in zip(vectors, queries, strict=True)]
    queries_QD = F.normalize(torch.stack(rows), dim=-1)
    best: list[list[Neighbour]] = [[] for _ in queries]
    least_Q1 = torch.full((len(queries), 1), -2.0)  # the k-th best cosine so far
    read, kept = tee(map(tuple, sentences))  # `kept` is behind by at most a window
    all_vectors = layer_vectors(embedder, read, layers=layers)
    for line, (words, vectors_TD) in enumerate(zip(kept, all_vectors, strict=True), start=1):
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


def _nothing(embedder: Embedder, layers: Layers) -> Tensor:
    """Return the vectors of an empty sentence."""
    shape = (embedder.num_layers,) if layers == "all" else ()
    return torch.zeros(*shape, 0, embedder.size)
