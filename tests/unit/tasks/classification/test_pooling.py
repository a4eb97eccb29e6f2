"""Ways of summing up a sentence."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from elman.nn.stack import Stack, StackConfig
from elman.tasks.classification.pooling import AttentionPool, Pool, Pooling

LENGTHS = torch.tensor([4, 1, 3])


def vectors() -> tuple[Tensor, Tensor]:
    hidden_BTH = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(1))
    return hidden_BTH, torch.arange(4) < LENGTHS.unsqueeze(1)


def test_mean_and_max_are_over_real_steps() -> None:
    hidden_BTH, mask_BT = vectors()
    pooled = Pool(["mean", "max"], 6, bidirectional=False)(hidden_BTH, mask_BT)
    for row, length in enumerate(LENGTHS.tolist()):
        real_TH = hidden_BTH[row, :length]
        torch.testing.assert_close(pooled[row, :6], real_TH.mean(0))
        torch.testing.assert_close(pooled[row, 6:], real_TH.amax(0))


@pytest.mark.parametrize("bidirectional", [False, True])
def test_last_is_the_state_at_the_end(bidirectional: bool) -> None:
    stack = Stack(StackConfig(hidden_size=3), 6, bidirectional=bidirectional)
    hidden_BTH, mask_BT = vectors()
    outputs_BTP, state = stack(hidden_BTH, None, LENGTHS)
    pool = Pool(["last"], outputs_BTP.shape[2], bidirectional=bidirectional)
    level = state.part("0")
    expected = (
        torch.cat([level.part(d).tensor("h") for d in ("forward", "backward")], dim=1)
        if bidirectional
        else level.tensor("h")
    )
    torch.testing.assert_close(pool(outputs_BTP, mask_BT), expected)


def test_attention_weights_sum_to_one_and_ignore_padding() -> None:
    hidden_BTH, mask_BT = vectors()
    pool = AttentionPool(6)
    pooled, weights_BT = pool(hidden_BTH, mask_BT)
    torch.testing.assert_close(weights_BT.sum(1), torch.ones(3))
    assert bool((weights_BT[~mask_BT] == 0).all())
    torch.testing.assert_close(pooled[1], hidden_BTH[1, 0])
    changed = torch.where(mask_BT.unsqueeze(2), hidden_BTH, 9.0)
    torch.testing.assert_close(pool(changed, mask_BT)[0], pooled)


@pytest.mark.parametrize("way", ["last", "mean", "max", "attention"])
def test_padding_changes_nothing(way: Pooling) -> None:
    hidden_BTH, mask_BT = vectors()
    pool = Pool([way], 6, bidirectional=True)
    together = pool(hidden_BTH, mask_BT)
    for row, length in enumerate(LENGTHS.tolist()):
        alone = pool(hidden_BTH[row : row + 1, :length], mask_BT[row : row + 1, :length])
        torch.testing.assert_close(alone[0], together[row])
