from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elman.base.errors import UsageError
from elman.nn import attention
from elman.nn.attention import Attention

KINDS = ("dot", "bilinear", "additive")


@given(st.sampled_from(KINDS), st.integers(0, 100), st.lists(st.integers(0, 5), min_size=1))
@settings(max_examples=30)
def test_weights_sum_to_one_and_ignore_padding(kind: str, seed: int, lengths: list[int]) -> None:
    torch.manual_seed(seed)
    layer = Attention(kind, 4, 4, 3)  # type: ignore[arg-type]
    queries_BTH = torch.randn(len(lengths), 2, 4)
    memory_BSM = torch.randn(len(lengths), 5, 4) * 30  # sure of itself
    mask_BS = torch.arange(5) < torch.tensor(lengths)[:, None]
    contexts_BTM, weights_BTS = layer(queries_BTH, layer.keys(memory_BSM), memory_BSM, mask_BS)
    some = (torch.tensor(lengths) > 0).float()
    torch.testing.assert_close(weights_BTS.sum(dim=2), some[:, None].expand(-1, 2))
    assert bool((weights_BTS.transpose(1, 2)[~mask_BS] == 0).all())
    changed_BSM = memory_BSM.masked_fill(~mask_BS[:, :, None], 99.0)
    again_BTM, _ = layer(queries_BTH, layer.keys(changed_BSM), changed_BSM, mask_BS)
    torch.testing.assert_close(again_BTM, contexts_BTM)


def test_a_picture_is_a_memory_laid_out_in_a_row() -> None:
    """A map (B, C, height, width) flattened to positions: where the query's vector is, it looks."""
    layer = Attention("dot", 3, 3)
    map_BCHW = torch.zeros(1, 3, 2, 4)
    map_BCHW[0, :, 1, 2] = torch.tensor([20.0, 0.0, 0.0])
    memory_BSM = map_BCHW.flatten(2).transpose(1, 2)
    mask_BS = torch.ones(1, 8, dtype=torch.bool)
    _, weights_BTS = layer(torch.tensor([[[1.0, 0, 0]]]), memory_BSM, memory_BSM, mask_BS)
    assert weights_BTS.view(2, 4)[1, 2] > 0.99


def test_additive_scores_in_parts_are_those_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Attention("additive", 4, 6, 5)
    queries_BTH, memory_BSM = torch.randn(2, 7, 4), torch.randn(2, 3, 6)
    expected = layer.scores(queries_BTH, layer.keys(memory_BSM))
    monkeypatch.setattr(attention, "MOST_SUMS", 60)  # two queries at a time
    torch.testing.assert_close(layer.scores(queries_BTH, layer.keys(memory_BSM)), expected)


def test_the_dot_product_needs_equal_widths() -> None:
    with pytest.raises(UsageError, match="not 4 and 6"):
        Attention("dot", 4, 6)
