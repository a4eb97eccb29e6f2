"""The n-gram model (`elman.ngrams.backoff`) as a `LanguageModel`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from elman.models.last_tokens import LastTokensLM
from elman.ngrams.arpa_files import open_arpa
from elman.ngrams.backoff import BackoffModel
from elman.ngrams.storage import MODEL_FILE, load
from elman.runs.run_folder import check_vocabulary
from elman.tasks.counted import open_tokenizer
from elman.tasks.ngram.settings import NgramRun
from elman.tokens.tokenizer import Tokenizer


class NgramLM(LastTokensLM):
    """A back-off model of n-grams."""

    def __init__(self, ngrams: BackoffModel) -> None:
        self.ngrams = ngrams
        self.vocab_size, self.order = ngrams.vocab_size, ngrams.order

    def distributions(self, contexts_BC: NDArray[Any]) -> NDArray[Any]:
        return self.ngrams.distributions(self.ngrams.after(contexts_BC))

    def score_rows(
        self, tokens_BT: NDArray[Any], targets_BT: NDArray[Any], contexts_BC: NDArray[Any]
    ) -> NDArray[Any]:
        return self.ngrams.score_rows(tokens_BT, targets_BT, self.ngrams.after(contexts_BC))


def open_fitted(path: Path, config: NgramRun) -> tuple[NgramLM, Tokenizer, dict[str, Any]]:
    """Open the model in a run folder, with its tokenizer and the header of its file."""
    tokenizer = open_tokenizer(path, MODEL_FILE)
    ngrams, header = load(path / MODEL_FILE)
    check_vocabulary(path, tokenizer, header)
    return NgramLM(ngrams), tokenizer, header


def load_arpa(path: Path, *, keep: bool = True) -> tuple[NgramLM, Tokenizer, list[str]]:
    """Open an ARPA file: the model, its tokenizer, and notes for the user; see `open_arpa`."""
    ngrams, tokenizer = open_arpa(path, keep=keep)
    return NgramLM(ngrams), tokenizer, ngrams.about["notes"]
