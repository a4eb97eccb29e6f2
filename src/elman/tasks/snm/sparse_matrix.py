"""The sparse non-negative matrix language model (Shazeer, Pelemans and Chelba, 2015).

    P(w | history) = sum over f of M(f, w)  /  sum over f and v of M(f, v)

f runs over the contexts that the history ends in, with and without gaps (`skipgrams`), as far as
they were seen; M is the matrix of their adjusted relative frequencies (`adjustment`). A uniform
distribution with a weight of its own is always among them, so every word has a probability. There
is no back-off: all contexts speak at once, and the sums of their rows are how loudly.

Logarithms are natural. B batch, T tokens, C tokens of context, V vocabulary, F rows, E entries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.base.errors import UsageError
from elman.tasks.snm.adjustment import adjusted, fit_adjustment
from elman.ngrams.compiled import in_threads
from elman.ngrams.mapped import damaged, map_arrays, write_arrays
from elman.tasks.snm.settings import SNMConfig
from elman.tasks.snm import sparse_loops as loops
from elman.tasks.snm.skipgrams import (
    NOTHING,
    Template,
    count_skipgrams,
    reach,
    templates,
    with_context,
)
from elman.tasks.snm.sparse_loops import Ids, Keys, Weights

MODEL_FILE = "snm.safetensors"
"""Where a run folder has the model."""
FORMAT = 1
_ARRAYS = {"keys": "U64", "first": "I64", "words": "I32", "weights": "F32", "sums": "F32"}
_STRETCH = 1 << 16


@dataclass
class SparseMatrixModel:
    """The matrix, row by row."""

    templates: list[Template]
    """(remote, skipped, adjacent) words of each kind of context."""
    row_starts: list[int]
    """Where the rows of each template begin, and at the end their number."""
    keys: Keys
    """(F,) the hash of each row's context, sorted within its template."""
    first: Ids
    """(F + 1,) where the entries of each row begin."""
    words: NDArray[np.int32]
    """(E,) the word of each entry, sorted within its row."""
    weights: Weights
    """(E,) M(f, w)."""
    sums: Weights
    """(F,) the sum of each row."""
    uniform: float
    """The weight of the uniform distribution."""
    vocab_size: int
    boundary_id: int
    across_lines: bool
    """Whether contexts go beyond the beginning of a line."""
    about: dict[str, Any] = field(default_factory=dict)
    """How the model was made."""

    @property
    def order(self) -> int:
        """On how many tokens a prediction depends, itself included."""
        return reach(self.templates) + 1

    def score_rows(self, tokens_BT: Ids, targets_BT: Ids, contexts_BC: Ids) -> Weights:
        """(B, T) the log probability of each target after its row's context and tokens up to
        there; C is at least `order` - 2.
        """
        self._check(tokens_BT)
        self._check(targets_BT)
        texts_BX = np.concatenate([contexts_BC, tokens_BT], axis=1, dtype=np.int64)
        logprobs_BT = np.empty(targets_BT.shape, np.float32)
        self._score(texts_BX, contexts_BC.shape[1] + 1, targets_BT.astype(np.int64), logprobs_BT)
        return logprobs_BT

    def score(self, ids_T: NDArray[Any], num_threads: int | None = None) -> Weights:
        """(T,) the log probability of each token of a text that follows a boundary."""
        self._check(ids_T)
        num_before = self.order - 1
        text = with_context(ids_T, num_before, self.boundary_id)
        logprobs_T = np.empty(len(ids_T), np.float32)

        def score(span: tuple[int, int]) -> None:
            start, end = span
            piece, targets = text[None, start : end + num_before], text[None, num_before:]
            self._score(piece, num_before, targets[:, start:end], logprobs_T[None, start:end])

        in_threads(score, pairwise([*range(0, len(ids_T), _STRETCH), len(ids_T)]), num_threads)
        return logprobs_T

    def distributions(self, contexts_BC: Ids) -> Weights:
        """(B, V) the log probability of every token after each context, nothing being -1."""
        self._check(contexts_BC, least=NOTHING)
        logprobs_BV = np.empty((len(contexts_BC), self.vocab_size), np.float32)
        texts_BC = np.ascontiguousarray(contexts_BC, np.int64)
        loops.distributions(texts_BC, *self._arrays(), self.uniform, logprobs_BV)
        return logprobs_BV

    def by_template(self) -> list[dict[str, Any]]:
        """For each template, its rows and entries, and what a row of it weighs on average."""
        rows = []
        for (remote, skip, adjacent), (start, end) in zip(
            self.templates, pairwise(self.row_starts), strict=True
        ):
            rows.append(
                {
                    "remote": remote,
                    "skip": skip,
                    "adjacent": adjacent,
                    "contexts": end - start,
                    "entries": int(self.first[end] - self.first[start]),
                    "weight": float(self.sums[start:end].mean()) if end > start else 0.0,
                }
            )
        return rows

    def _score(self, texts_BX: Ids, num_before: int, targets_BT: Ids, logprobs_BT: Any) -> None:
        loops.score(
            texts_BX, num_before, targets_BT, *self._arrays(),
            self.uniform, self.vocab_size, logprobs_BT,
        )  # fmt: skip

    def _arrays(self) -> tuple[Any, ...]:
        wall = NOTHING if self.across_lines else self.boundary_id
        shape = np.array(self.templates, np.int64), np.array(self.row_starts, np.int64)
        return wall, *shape, self.keys, self.first, self.words, self.weights, self.sums

    def _check(self, ids: NDArray[Any], least: int = 0) -> None:
        """Compiled loops trust their input, so it must not lie outside the vocabulary."""
        if ids.size and not least <= int(ids.min()) <= int(ids.max()) < self.vocab_size:
            wrong = int(ids.min()) if int(ids.min()) < least else int(ids.max())
            raise UsageError(
                f"token {wrong} is not in the model's vocabulary of {self.vocab_size}",
                "encode the text with the model's own tokenizer",
            )


def estimate_matrix(
    ids_T: NDArray[Any],
    config: SNMConfig,
    *,
    vocab_size: int,
    boundary_id: int,
    num_threads: int | None = None,
) -> SparseMatrixModel:
    """Count a text that follows a boundary, and learn how much the counts are worth."""
    wanted = templates(config.order, config.num_remote, config.max_skip, config.num_adjacent)
    matrix = count_skipgrams(
        ids_T,
        wanted,
        boundary_id=boundary_id,
        across_lines=config.across_lines,
        num_threads=num_threads,
    )
    adjustment, perplexities = fit_adjustment(
        matrix,
        with_context(ids_T, reach(wanted), boundary_id),
        wall=NOTHING if config.across_lines else boundary_id,
        vocab_size=vocab_size,
        num_events=config.num_events,
        num_epochs=config.num_epochs,
        learning_rate=config.learning_rate,
        seed=config.seed,
    )
    weights, sums = adjusted(matrix, adjustment)
    return SparseMatrixModel(
        templates=wanted,
        row_starts=matrix.row_starts,
        keys=matrix.keys,
        first=matrix.first,
        words=matrix.words,
        weights=weights,
        sums=sums,
        uniform=math.exp(adjustment.log_uniform),
        vocab_size=vocab_size,
        boundary_id=boundary_id,
        across_lines=config.across_lines,
        about={"leave_one_out_perplexity": perplexities},
    )


def save_matrix(path: Path, model: SparseMatrixModel, extra: dict[str, Any] | None = None) -> None:
    """Write a model; `extra` goes into its header."""
    names = ("templates", "row_starts", "uniform", "vocab_size", "boundary_id", "across_lines")
    header = {name: getattr(model, name) for name in (*names, "about")}
    write_arrays(
        path,
        {"format": FORMAT, **header, **(extra or {})},
        {
            name: (kind, getattr(model, name).shape, [getattr(model, name)])
            for name, kind in _ARRAYS.items()
        },
    )


def load_matrix(path: Path) -> tuple[SparseMatrixModel, dict[str, Any]]:
    """Open a model, and the whole of its header; the arrays stay on disk until they are read."""
    arrays, header = map_arrays(path, _ARRAYS, FORMAT)
    model = SparseMatrixModel(
        **arrays,
        templates=[tuple(template) for template in header["templates"]],
        row_starts=header["row_starts"],
        uniform=header["uniform"],
        vocab_size=header["vocab_size"],
        boundary_id=header["boundary_id"],
        across_lines=header["across_lines"],
        about=header["about"],
    )
    if not _consistent(model):
        raise damaged(path, "its arrays do not belong together")
    return model, header


def _consistent(model: SparseMatrixModel) -> bool:
    """What can be seen at a glance; all else would have to be read."""
    num_rows, num_entries = len(model.keys), len(model.words)
    starts = model.row_starts
    return (
        len(starts) == len(model.templates) + 1
        and [starts[0], starts[-1]] == [0, num_rows]
        and starts == sorted(starts)
        and len(model.first) == num_rows + 1
        and len(model.sums) == num_rows
        and len(model.weights) == num_entries
        and (int(model.first[0]), int(model.first[-1])) == (0, num_entries)
        and 0 <= model.boundary_id < model.vocab_size
        and model.uniform > 0
    )
