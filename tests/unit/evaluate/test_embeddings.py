from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch

from elman.base.errors import UsageError
from elman.evaluate.embeddings import (
    contextual_vectors,
    neighbours,
    sequence_vectors,
    word_vectors,
)
from elman.models.mixture import Mixture
from elman.models.recurrent import RecurrentLM

Build = Callable[[int], RecurrentLM]
SEQUENCES = [[1, 2, 3], [], [4, 4, 4, 4, 5, 1], [2]]


def stepwise(model: RecurrentLM, tokens: list[int]) -> torch.Tensor:
    state = model.initial_state(1)
    vectors = []
    for token in [0, *tokens]:
        with torch.no_grad():
            hidden, state = model.hidden(torch.tensor([[token]]), state)
        vectors.append(hidden.raw_BTH[0, 0])
    return torch.stack(vectors)


def test_word_vectors_are_the_input_layers(network: Build) -> None:
    model = network(6)
    vectors_VE = word_vectors(model)
    torch.testing.assert_close(vectors_VE, model.input(torch.arange(6)).detach())
    assert not vectors_VE.requires_grad


def test_neighbours_are_nearest_by_angle_and_not_by_length() -> None:
    vectors_VE = torch.tensor([[1.0, 0.0], [5.0, 0.5], [0.9, 0.9], [-1.0, 0.0], [0.0, 0.0]])
    found = neighbours(vectors_VE, 0, k=3)
    assert [token for token, _ in found] == [1, 2, 4]
    assert [cosine for _, cosine in found] == pytest.approx([0.99504, 0.70711, 0.0], abs=1e-4)
    assert [token for token, _ in neighbours(vectors_VE, 0, k=9, exclude=[1])] == [2, 4, 3]


@pytest.mark.parametrize("chunk_length", [2, 512])
def test_vectors_of_a_token_are_those_after_reading_up_to_it(
    network: Build, monkeypatch: pytest.MonkeyPatch, chunk_length: int
) -> None:
    monkeypatch.setattr("elman.evaluate.embeddings.CHUNK_LENGTH", chunk_length)
    model = network(6)
    contextual = list(contextual_vectors(model, SEQUENCES, boundary_id=0))
    whole = list(sequence_vectors(model, SEQUENCES, boundary_id=0))
    for tokens, vectors_TH, vector_H in zip(SEQUENCES, contextual, whole, strict=True):
        expected = stepwise(model, tokens)
        torch.testing.assert_close(vectors_TH, expected[1:], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(vector_H, expected[-1], atol=1e-5, rtol=1e-5)


def test_sequences_are_taken_as_they_are_needed(network: Build) -> None:
    def endless() -> Iterator[list[int]]:
        while True:
            yield [1, 2]

    first, second = islice(sequence_vectors(network(6), endless(), boundary_id=0), 2)
    torch.testing.assert_close(first, second)


def test_a_model_without_vectors_says_so(network: Build) -> None:
    mixture: Any = Mixture([network(6), network(6)], [0.5, 0.5])
    with pytest.raises(UsageError, match="word vectors"):
        word_vectors(mixture)
    with pytest.raises(UsageError, match="hidden vectors"):
        list(sequence_vectors(mixture, SEQUENCES, boundary_id=0))
