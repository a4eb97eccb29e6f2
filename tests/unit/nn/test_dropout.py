"""Dropouts: what they drop, what they keep in expectation, when they rest."""

from __future__ import annotations

import pytest
import torch

from elman.nn.dropout import Dropout, drop_rows, drop_weights, locked_dropout
from elman.nn.inputs import Lookup


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_locked_dropout_drops_the_same_units_at_every_step() -> None:
    dropped = locked_dropout(torch.ones(8, 20, 50), 0.4)
    assert torch.equal(dropped, dropped[:, :1].expand_as(dropped))
    assert not torch.equal(dropped[0], dropped[1])  # rows have masks of their own
    assert dropped.unique().tolist() == pytest.approx([0.0, 1 / 0.6])


def test_plain_dropout_drops_each_number_on_its_own() -> None:
    dropped = Dropout(0.4, locked=False)(torch.ones(8, 20, 50))
    assert not torch.equal(dropped[:, 0], dropped[:, 1])


@pytest.mark.parametrize("locked", [True, False])
def test_expectation_is_kept(locked: bool) -> None:
    dropout = Dropout(0.3, locked=locked)
    mean = torch.stack([dropout(torch.ones(4, 3, 100)).mean() for _ in range(50)]).mean()
    assert float(mean) == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("locked", [True, False])
def test_rests_in_evaluation_and_at_zero(locked: bool) -> None:
    inputs = torch.randn(2, 3, 4)
    assert Dropout(0.5, locked=locked).eval()(inputs) is inputs
    assert Dropout(0.0, locked=locked)(inputs) is inputs


def test_locked_dropout_keeps_the_layout() -> None:
    inputs = torch.randn(3, 2, 4).transpose(0, 1)
    assert locked_dropout(inputs, 0.5).stride() == inputs.stride()


def test_embedding_dropout_takes_whole_words() -> None:
    """A dropped word is gone wherever it occurs in the batch; the others are scaled."""
    lookup = Lookup(40, 6, dropout=0.5)
    tokens_BT = torch.arange(40).repeat(3, 2)
    ratios = (lookup(tokens_BT) / lookup.embedding.weight[tokens_BT]).detach()
    assert ratios.amin(-1).allclose(ratios.amax(-1))
    per_word = ratios[..., 0]
    assert torch.equal(per_word, per_word[:1].expand_as(per_word))
    assert torch.equal(per_word[:, :40], per_word[:, 40:])
    assert set(per_word.round(decimals=4).unique().tolist()) == {0.0, 2.0}
    lookup.eval()
    assert torch.equal(lookup(tokens_BT), lookup.embedding.weight[tokens_BT])


def test_masks_have_the_right_size_and_scale() -> None:
    mask_V1 = drop_rows(torch.zeros(20_000, 3), 0.2)
    assert mask_V1.shape == (20_000, 1)
    assert float(mask_V1.mean()) == pytest.approx(1.0, abs=0.02)
    weight = torch.ones(200, 200)
    thinned = drop_weights(weight, 0.25)
    assert float((thinned == 0).float().mean()) == pytest.approx(0.25, abs=0.01)
    assert float(thinned.max()) == pytest.approx(1 / 0.75)
