"""Linear interpolation of language models."""

from __future__ import annotations

import math

import pytest
import torch

from elman import testing
from elman.base.errors import UsageError
from elman.models.interface import LanguageModel
from elman.models.mixture import Mixture
from tiny_models import TINY


@pytest.fixture
def models() -> list[LanguageModel]:
    return [testing.build(TINY[name]) for name in ("lstm", "window")]


def test_probabilities_are_interpolated(models: list[LanguageModel]) -> None:
    """3 to 1, given in any scale."""
    mixture = Mixture(models, [6.0, 2.0])
    tokens_BT = testing.some_tokens(2, 6)
    first, second = (testing.whole(model, tokens_BT).exp() for model in models)
    mixed = testing.whole(mixture, tokens_BT)
    torch.testing.assert_close(mixed.exp(), 0.75 * first + 0.25 * second)
    assert isinstance(mixture, LanguageModel)
    assert mixture.vocab_size == testing.VOCAB_SIZE


def test_a_mixture_of_one_is_that_one(models: list[LanguageModel]) -> None:
    tokens_BT = testing.some_tokens(2, 6)
    torch.testing.assert_close(
        testing.whole(Mixture(models[:1], [0.4]), tokens_BT), testing.whole(models[0], tokens_BT)
    )


def test_mixtures_mix(models: list[LanguageModel]) -> None:
    tokens_BT = testing.some_tokens(2, 6)
    inner = Mixture(models, [0.5, 0.5])
    torch.testing.assert_close(
        testing.whole(Mixture([inner, models[0]], [0.5, 0.5]), tokens_BT),
        testing.whole(Mixture(models, [0.75, 0.25]), tokens_BT),
    )


@pytest.mark.parametrize(
    "weights", [[], [1.0], [0.5, 0.0], [0.5, -0.5], [0.5, math.nan], [1.0, math.inf]]
)
def test_weights_must_fit(models: list[LanguageModel], weights: list[float]) -> None:
    with pytest.raises(UsageError, match="positive, finite weight"):
        Mixture(models, weights)


def test_vocabularies_must_agree(models: list[LanguageModel]) -> None:
    other = TINY["window"].build(testing.VOCAB_SIZE + 1)
    with pytest.raises(UsageError, match=r"vocabulary size: \[23, 24\]"):
        Mixture([*models, other], [1.0, 1.0, 1.0])
