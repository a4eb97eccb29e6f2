"""The sparse matrix model keeps the contract of every language model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from elman import testing
from elman.models.interface import LanguageModel
from elman.models.mixture import Mixture
from elman.tasks.counted_model import CountedLM
from elman.tasks.snm.settings import SNMConfig
from elman.tasks.snm.sparse_matrix import (
    MODEL_FILE,
    SparseMatrixModel,
    estimate_matrix,
    load_matrix,
    save_matrix,
)
from tiny_models import TINY

V = testing.VOCAB_SIZE
SNMLM = CountedLM[SparseMatrixModel]

CASES = {
    "n-grams": SNMConfig(order=3, max_skip=0),
    "skip-grams": SNMConfig(order=4, num_epochs=1),
    "across lines": SNMConfig(order=2, max_skip=2, num_adjacent=0, across_lines=True, num_epochs=1),
}


def snm(config: SNMConfig) -> SNMLM:
    rng = np.random.default_rng(0)
    ids = np.minimum(rng.zipf(1.2, 2_000) - 1, V - 1)
    return SNMLM(estimate_matrix(ids, config, vocab_size=V, boundary_id=2, num_threads=1))


@pytest.fixture(params=CASES)
def model(request: pytest.FixtureRequest) -> SNMLM:
    return snm(CASES[request.param])


def test_the_contract_of_every_language_model(model: SNMLM) -> None:
    assert isinstance(model, LanguageModel)
    for check in testing.CONTRACT:
        check(model)


def test_words_alone_have_no_context() -> None:
    model = snm(SNMConfig(order=1, max_skip=0))
    state = model.initial_state(2)
    assert state.tensor("context").shape == (2, 0)
    first, _ = model.step(torch.tensor([3, 4]), state)
    torch.testing.assert_close(first[0], first[1])


def test_mixes_with_a_network() -> None:
    mixture = Mixture([testing.build(TINY["lstm"]), snm(CASES["skip-grams"])], [0.6, 0.4])
    testing.check_shapes(mixture)
    testing.check_stepwise_equals_whole(mixture)


def test_opens_from_its_file(tmp_path: Path) -> None:
    model = snm(CASES["skip-grams"])
    save_matrix(tmp_path / MODEL_FILE, model.counts, {"tokenizer": "abc"})
    matrix, header = load_matrix(tmp_path / MODEL_FILE)
    opened = SNMLM(matrix)
    assert header["tokenizer"] == "abc"
    tokens_BT = testing.some_tokens(2, 9)
    torch.testing.assert_close(
        testing.whole(opened, tokens_BT), testing.whole(model, tokens_BT), rtol=0, atol=0
    )
