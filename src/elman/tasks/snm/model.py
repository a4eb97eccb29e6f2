"""The sparse non-negative matrix model (`sparse_matrix`) as a `LanguageModel`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from elman.models.last_tokens import LastTokensLM
from elman.runs.run_folder import check_vocabulary
from elman.tasks.counted import open_tokenizer
from elman.tasks.snm.settings import SNMRun
from elman.tasks.snm.sparse_matrix import MODEL_FILE, SparseMatrixModel, load_matrix
from elman.tokens.tokenizer import Tokenizer


class SNMLM(LastTokensLM):
    """A sparse non-negative matrix of n-grams and skip-grams."""

    def __init__(self, matrix: SparseMatrixModel) -> None:
        self.matrix = matrix
        self.vocab_size, self.order = matrix.vocab_size, matrix.order

    def distributions(self, contexts_BC: NDArray[Any]) -> NDArray[Any]:
        return self.matrix.distributions(contexts_BC)

    def score_rows(
        self, tokens_BT: NDArray[Any], targets_BT: NDArray[Any], contexts_BC: NDArray[Any]
    ) -> NDArray[Any]:
        return self.matrix.score_rows(tokens_BT, targets_BT, contexts_BC)


def open_fitted(path: Path, config: SNMRun) -> tuple[SNMLM, Tokenizer, dict[str, Any]]:
    """Open the model in a run folder, with its tokenizer and the header of its file."""
    tokenizer = open_tokenizer(path, MODEL_FILE)
    matrix, header = load_matrix(path / MODEL_FILE)
    check_vocabulary(path, tokenizer, header)
    return SNMLM(matrix), tokenizer, header
