"""The adjustment function that weights the entries of the sparse matrix, and how it is fitted.

The matrix of Shazeer, Pelemans and Chelba (2015) is

    M(f, w) = c(f, w) / c(f) * exp A(f, w)

for a context f and a word w that followed it. The adjustment A depends on the template k of the
context and on the bins of the two counts: A = a(k) + b(k, bin of c(f)) + d(k, bin of c(f), bin of
c(f, w)). Its parameters maximise the leave-one-out log probability of the training text: each event
is predicted from the counts without it. So the weight of entries seen once is learnt from entries
seen twice, with one occurrence removed.

Entries of equal bins have equal adjustment, so a sum over all words after a context is a sum over
bins: `Masses` has the counts of each row by bin. The cost of an event is then a few numbers per
template, independent of the vocabulary.

N events, K templates, F rows, I bins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elman.tasks.snm import sparse_loops as loops
from elman.tasks.snm.skipgrams import Counts, reach
from elman.tasks.snm.sparse_loops import NUM_BINS, Floats, Ids

NUM_BATCHES = 64
"""Updates per epoch, whatever the number of events."""
LEAST = 1e-8
"""Initial squared gradient of Adagrad, to avoid a division by zero."""


@dataclass
class Masses:
    """The counts of each row, summed by bin."""

    first: NDArray[np.int64]
    """(F + 1,) index of each row's first sum."""
    bins: NDArray[np.uint8]
    sums: NDArray[np.int32]


@dataclass
class Adjustment:
    """The parameters of the adjustment function, and the weight of the uniform distribution."""

    log_K: Floats
    log_KI: Floats
    log_KII: Floats
    log_uniform: float = 0.0
    """Log weight of the uniform distribution, which is always included."""

    @classmethod
    def neutral(cls, num_templates: int) -> Adjustment:
        shape = (num_templates, NUM_BINS, NUM_BINS)
        return cls(np.zeros(shape[0]), np.zeros(shape[:2]), np.zeros(shape))

    @property
    def table(self) -> Floats:
        """(K, I, I) A by template, bin of c(f) and bin of c(f, w)."""
        return self.log_K[:, None, None] + self.log_KI[:, :, None] + self.log_KII


@dataclass
class Events:
    """Text positions, each with its contexts as rows of the matrix."""

    rows_NK: NDArray[np.int32]
    """The row of each template's context; -1 if it has none."""
    counts_NK: NDArray[np.int32]
    """c(f, w) of the word at that position, this occurrence included."""


def fit_adjustment(
    matrix: Counts,
    text: Ids,
    *,
    wall: int,
    vocab_size: int,
    num_events: int,
    num_epochs: int,
    learning_rate: float,
    seed: int,
) -> tuple[Adjustment, list[float]]:
    """Fit A by stochastic gradient ascent (Adagrad) on events of the counted text.

    `text` is the result of `with_context`. Also return the leave-one-out perplexity of each epoch.
    """
    adjustment = Adjustment.neutral(len(matrix.templates))
    random = np.random.default_rng(seed)
    num_before = reach(matrix.templates)
    places = np.arange(num_before, len(text))
    if len(places) > num_events:
        places = np.sort(random.choice(places, num_events, replace=False))
    events = find_events(matrix, text, places, wall)
    masses = masses_of(matrix)
    parameters = [adjustment.log_K, adjustment.log_KI, adjustment.log_KII]
    squares = [np.full_like(p, LEAST) for p in parameters]
    uniform_squares = LEAST
    perplexities = []
    for _ in range(num_epochs if len(places) else 0):
        order = random.permutation(len(places))
        total = 0.0
        for batch in np.array_split(order, min(NUM_BATCHES, len(order))):
            logprob, gradient_KII, to_uniform = gradient(
                matrix, masses, events, batch, adjustment, vocab_size
            )
            total += logprob
            by_bin_KI = gradient_KII.sum(2)
            sums = [by_bin_KI.sum(1), by_bin_KI, gradient_KII]
            for parameter, square, slope in zip(parameters, squares, sums, strict=True):
                slope = slope / len(batch)
                square += slope**2
                parameter += learning_rate * slope / np.sqrt(square)
            to_uniform /= len(batch)
            uniform_squares += to_uniform**2
            adjustment.log_uniform += learning_rate * to_uniform / math.sqrt(uniform_squares)
        perplexities.append(math.exp(-total / len(order)))
    return adjustment, perplexities


def gradient(
    matrix: Counts,
    masses: Masses,
    events: Events,
    batch: Ids,
    adjustment: Adjustment,
    vocab_size: int,
) -> tuple[float, Floats, float]:
    """Return the leave-one-out log probability of a batch of events, its gradient with respect to
    the (K, I, I) table of A, and that with respect to the log uniform weight.
    """
    gradient_KII = np.zeros((len(matrix.templates), NUM_BINS, NUM_BINS))
    logprob, to_uniform = loops.leave_one_out(
        events.rows_NK, events.counts_NK, batch, matrix.totals,
        masses.first, masses.bins, masses.sums,
        np.exp(adjustment.table), math.exp(adjustment.log_uniform), vocab_size, gradient_KII,
    )  # fmt: skip
    return logprob, gradient_KII, to_uniform


def find_events(matrix: Counts, text: Ids, places: Ids, wall: int) -> Events:
    """Look up the contexts of the tokens at some positions of the counted text."""
    shape = (len(places), len(matrix.templates))
    events = Events(np.full(shape, -1, np.int32), np.zeros(shape, np.int32))
    loops.find(
        text, places, wall, np.array(matrix.templates), np.array(matrix.row_starts),
        matrix.keys, matrix.first, matrix.words, matrix.counts, events.rows_NK, events.counts_NK,
    )  # fmt: skip
    return events


def masses_of(matrix: Counts) -> Masses:
    first = np.zeros(len(matrix.totals) + 1, np.int64)
    no_bins, no_sums = np.empty(0, np.uint8), np.empty(0, np.int32)
    loops.sum_bins(matrix.first, matrix.counts, first, no_bins, no_sums, False)
    first = np.cumsum(first)
    masses = Masses(first, np.empty(first[-1], np.uint8), np.empty(first[-1], np.int32))
    loops.sum_bins(matrix.first, matrix.counts, first, masses.bins, masses.sums, True)
    return masses


def adjusted(
    matrix: Counts, adjustment: Adjustment
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the entries M(f, w), (E,), and the sums of the rows, (F,)."""
    weights = np.empty(len(matrix.counts), np.float32)
    sums = np.empty(len(matrix.totals), np.float32)
    loops.adjust(
        np.array(matrix.row_starts), matrix.first, matrix.counts, matrix.totals,
        np.exp(adjustment.table), weights, sums,
    )  # fmt: skip
    return weights, sums
