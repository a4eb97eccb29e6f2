"""The sparse non-negative matrix language model (Shazeer, Pelemans and Chelba, 2015).

    P(w | history) = sum over f of M(f, w)  /  sum over f and v of M(f, v)

f runs over the seen contexts, with and without gaps, at the end of the history (`skipgrams`); M is
the matrix of their adjusted relative frequencies (`adjustment`). A uniform distribution with its
own weight is always added, so every word has a probability. There is no back-off: all contexts are
combined, each weighted by the sum of its row.

Logarithms are natural. B batch, T tokens, C tokens of context, V vocabulary, F rows, E entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.base.errors import ElmanError
from elman.base.threads import in_threads
from elman.ngrams.mapped import ArrayFile, Floats, damaged, write_arrays
from elman.ngrams.model import check_ids
from elman.tasks.snm import sparse_loops as loops
from elman.tasks.snm.adjustment import adjusted, fit_adjustment
from elman.tasks.snm.settings import SNMConfig
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
FORMAT = 1
_ARRAYS = {"keys": "U64", "first": "I64", "words": "I32", "weights": "F32", "sums": "F32"}
_HEADER = (
    "templates", "row_starts", "uniform", "vocab_size", "boundary_id", "across_lines", "about"
)  # fmt: skip
_FLOATS = {"weights": Floats(positive=True), "sums": Floats(positive=True)}
_STRETCH = 1 << 16
_LONGEST = 1000
"""Limit of each number of a template."""


@dataclass
class SparseMatrixModel:
    """The matrix of weights; `templates` to `words` are as in `skipgrams.Counts`."""

    templates: list[Template]
    row_starts: list[int]
    keys: Keys
    first: Ids
    words: NDArray[np.int32]
    weights: Weights
    """(E,) M(f, w)."""
    sums: Weights
    """(F,) the sum of each row."""
    uniform: float
    """Weight of the uniform distribution."""
    vocab_size: int
    boundary_id: int
    across_lines: bool
    """Whether contexts reach past the beginning of the line."""
    about: dict[str, Any] = field(default_factory=dict)
    """How the model was made."""
    file: ArrayFile | None = field(default=None, repr=False, compare=False)
    """The file that has the arrays; the methods verify what they read of it."""

    @property
    def order(self) -> int:
        """Number of tokens that a prediction depends on, itself included."""
        return reach(self.templates) + 1

    def score_rows(self, tokens_BT: Ids, targets_BT: Ids, contexts_BC: Ids) -> Weights:
        """(B, T) log P(target | the row's context and tokens up to the same position).

        C is at least `order` - 2.
        """
        check_ids(tokens_BT, self.vocab_size)
        check_ids(targets_BT, self.vocab_size)
        texts_BX = np.concatenate([contexts_BC, tokens_BT], axis=1, dtype=np.int64)
        logprobs_BT = np.empty(targets_BT.shape, np.float32)
        self._score(texts_BX, contexts_BC.shape[1] + 1, targets_BT.astype(np.int64), logprobs_BT)
        return logprobs_BT

    def score(self, ids_T: NDArray[Any], num_threads: int | None = None) -> Weights:
        """(T,) the log probability of each token of a text that begins after a boundary."""
        check_ids(ids_T, self.vocab_size)
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
        """(B, V) log P(token | context) of every token; contexts are padded with -1."""
        check_ids(contexts_BC, self.vocab_size, least=NOTHING)
        logprobs_BV = np.empty((len(contexts_BC), self.vocab_size), np.float32)
        texts_BC = np.ascontiguousarray(contexts_BC, np.int64)
        self._run(loops.distributions, (texts_BC,), self.uniform, logprobs_BV)
        return logprobs_BV

    def by_template(self) -> list[dict[str, Any]]:
        """Return each template's number of rows and entries, and its mean row sum (`weight`)."""
        if self.file is not None:
            self.file.verify("first")
            self.file.verify("sums")
        return [
            {
                "remote": remote,
                "skip": skip,
                "adjacent": adjacent,
                "contexts": end - start,
                "entries": int(self.first[end] - self.first[start]),
                "weight": float(self.sums[start:end].mean()) if end > start else 0.0,
            }
            for (remote, skip, adjacent), (start, end) in zip(
                self.templates, pairwise(self.row_starts), strict=True
            )
        ]

    def check_unchanged(self) -> None:
        """Raise an error if the model's file was written to since it was opened."""
        if self.file is not None:
            self.file.check_unchanged()

    def _score(self, texts_BX: Ids, num_before: int, targets_BT: Ids, logprobs_BT: Any) -> None:
        before = texts_BX, num_before, targets_BT
        self._run(loops.score, before, self.uniform, self.vocab_size, logprobs_BT)

    def _run(self, loop: Callable[..., None], before: tuple[Any, ...], *after: Any) -> None:
        """Call a loop on the model's arrays, with arguments before and after them."""
        wall = NOTHING if self.across_lines else self.boundary_id
        shape = np.array(self.templates, np.int64), np.array(self.row_starts, np.int64)
        arrays = self.keys, self.first, self.words, self.weights, self.sums
        before = (*before, wall, *shape, *arrays)
        self.check_unchanged()
        try:
            if self.file is None:
                loop(*before, None, *after)
            else:
                self.file.run(loop, before, after)
        except IndexError as error:
            raise ElmanError(
                "the sparse matrix model is damaged: its arrays do not belong together",
                "restore its file from a copy, or train the model again",
            ) from error


def estimate_matrix(
    ids_T: NDArray[Any],
    config: SNMConfig,
    *,
    vocab_size: int,
    boundary_id: int,
    num_threads: int | None = None,
) -> SparseMatrixModel:
    """Count a text that begins after a boundary, and fit the adjustment of the counts."""
    wanted = templates(config.order, config.num_remote, config.max_skip, config.num_adjacent)
    across = config.across_lines
    matrix = count_skipgrams(
        ids_T, wanted, boundary_id=boundary_id, across_lines=across, num_threads=num_threads
    )
    adjustment, perplexities = fit_adjustment(
        matrix, with_context(ids_T, reach(wanted), boundary_id),
        wall=NOTHING if across else boundary_id, vocab_size=vocab_size,
        num_events=config.num_events, num_epochs=config.num_epochs,
        learning_rate=config.learning_rate, seed=config.seed,
    )  # fmt: skip
    weights, sums = adjusted(matrix, adjustment)
    return SparseMatrixModel(
        wanted, matrix.row_starts, matrix.keys, matrix.first, matrix.words, weights, sums,
        uniform=math.exp(adjustment.log_uniform), vocab_size=vocab_size, boundary_id=boundary_id,
        across_lines=across, about={"leave_one_out_perplexity": perplexities},
    )  # fmt: skip


def save_matrix(path: Path, model: SparseMatrixModel, extra: dict[str, Any] | None = None) -> None:
    """Write a model; `extra` goes into its header."""
    header = {name: getattr(model, name) for name in _HEADER}
    write_arrays(
        path,
        {"format": FORMAT, **header, **(extra or {})},
        {
            name: (kind, getattr(model, name).shape, [getattr(model, name)])
            for name, kind in _ARRAYS.items()
        },
    )


def load_matrix(path: Path) -> tuple[SparseMatrixModel, dict[str, Any]]:
    """Open a model; also return its whole header."""
    file = ArrayFile(path, _ARRAYS, FORMAT, _FLOATS)
    try:
        values: dict[str, Any] = file.arrays | {name: file.header[name] for name in _HEADER}
        values["templates"] = [(r, s, a) for r, s, a in values["templates"]]
        values["uniform"] = float(values["uniform"])
        model = SparseMatrixModel(**values, file=file)
        consistent = _consistent(model)
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(path, "its header lacks a part of the model") from error
    if not consistent:
        raise damaged(path, "its arrays do not belong together")
    return model, file.header


def _consistent(model: SparseMatrixModel) -> bool:
    """Check shapes and ends only; loops check the entries that they visit."""
    num_rows, num_entries = len(model.keys), len(model.words)
    starts, sizes = model.row_starts, (model.boundary_id, model.vocab_size)
    if model.file is not None:
        model.file.verify("first", slice(0, 1))
        model.file.verify("first", slice(-1, None))
    return (
        all(array.ndim == 1 for array in (model.keys, model.first, model.words))
        and all(type(n) is int for n in (*starts, *chain(*model.templates), *sizes))
        and all(0 <= n <= _LONGEST for n in chain(*model.templates))
        and len(model.templates) > 0
        and len(starts) == len(model.templates) + 1
        and [starts[0], starts[-1]] == [0, num_rows]
        and starts == sorted(starts)
        and model.first.shape == (num_rows + 1,)
        and model.sums.shape == (num_rows,)
        and model.weights.shape == (num_entries,)
        and (int(model.first[0]), int(model.first[-1])) == (0, num_entries)
        and 0 <= model.boundary_id < model.vocab_size < 1 << 31
        and 0 < model.uniform < math.inf
        and isinstance(model.across_lines, bool)
        and isinstance(model.about, dict)
    )
