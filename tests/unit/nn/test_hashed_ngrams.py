"""Hashed n-grams: their blocks, what shares a block, and the two ways of looking words up."""

from __future__ import annotations

import pytest
import torch

from elman.base.errors import UsageError
from elman.nn.hashed_ngrams import Contexts, add_blocks, scores, scores_of_all
from elman.nn.heads import Head
from elman.nn.heads.adaptive import AdaptiveConfig
from elman.nn.heads.mixture import MixtureConfig

V = 7


def test_a_context_is_its_last_words_and_no_more() -> None:
    """Order n sees n - 1 words: rows that share them share its block, and only those."""
    contexts = Contexts(4, 1 << 20, V)
    tokens_BT = torch.tensor([[1, 2, 3], [4, 2, 3], [1, 5, 3]])
    starts_BTO, last_BC = contexts.read(tokens_BT, contexts.initial(3, torch.device("cpu")))
    assert starts_BTO.shape == (3, 3, 3)
    bigram, trigram, fourgram = starts_BTO[:, 2].unbind(1)
    assert len(set(bigram.tolist())) == 1
    assert trigram[0] == trigram[1] != trigram[2]
    assert len(set(fourgram.tolist())) == 3
    assert last_BC.tolist() == [[2, 3], [2, 3], [5, 3]]


def test_the_order_of_words_matters_and_so_does_the_beginning() -> None:
    contexts = Contexts(3, 1 << 20, V)
    nothing = contexts.initial(1, torch.device("cpu"))
    assert nothing.tolist() == [[-1]]
    first, _ = contexts.read(torch.tensor([[1, 2]]), nothing)
    other, _ = contexts.read(torch.tensor([[2, 1]]), nothing)
    begun, _ = contexts.read(torch.tensor([[1]]), torch.tensor([[0]]))
    assert first[0, 1, 1] != other[0, 1, 1]
    assert first[0, 0, 0] == begun[0, 0, 0]
    assert first[0, 0, 1] != begun[0, 0, 1]


def test_blocks_lie_within_the_table_and_spread_over_it() -> None:
    contexts = Contexts(3, 1000, V)
    pairs = torch.cartesian_prod(torch.arange(60), torch.arange(60))
    starts_BTO, _ = contexts.read(pairs[:, 1:], pairs[:, :1])
    starts = starts_BTO[:, 0, 1]
    assert int(starts.min()) >= 0
    assert int(starts.max()) + V <= 1000
    # 3,600 throws into 994 places: about exp(-3.6) of them stay empty.
    assert len(starts.unique()) == pytest.approx(994 * (1 - 0.027), rel=0.02)


def test_a_table_smaller_than_the_vocabulary_is_refused() -> None:
    with pytest.raises(UsageError, match="no room for 7 words"):
        Contexts(3, V - 1, V)
    assert Contexts(3, V, V).num_starts == 1


def test_scores_are_sums_over_orders() -> None:
    table_X = torch.arange(50.0)
    contexts_NO = torch.tensor([[0, 10], [3, 3]])
    all_NV = scores_of_all(table_X, contexts_NO, V)
    assert all_NV[0].tolist() == [10 + 2 * w for w in range(V)]
    assert all_NV[1].tolist() == [6 + 2 * w for w in range(V)]
    words_NS = torch.tensor([[6, 0, 6], [1, 1, 2]])
    torch.testing.assert_close(scores(table_X, contexts_NO, words_NS), all_NV.gather(1, words_NS))
    begun = torch.ones(2, V)
    add_blocks(begun, table_X, contexts_NO)
    torch.testing.assert_close(begun, all_NV + 1)


def test_gradients_are_the_tables() -> None:
    """Words that meet in a slot add up there, across rows, orders and repeated words."""
    torch.manual_seed(0)
    table_X = torch.randn(30, dtype=torch.double, requires_grad=True)
    contexts_NO = torch.randint(30 - V + 1, (5, 3))
    words_NS = torch.randint(V, (5, 4))
    assert torch.autograd.gradcheck(lambda t: scores(t, contexts_NO, words_NS), table_X)
    assert torch.autograd.gradcheck(lambda t: scores_of_all(t, contexts_NO, V), table_X)


@pytest.mark.parametrize("config", [AdaptiveConfig(cutoffs=(3,)), MixtureConfig()])
def test_output_layers_without_direct_connections_say_so(config: object) -> None:
    head: Head = config.build(4, V)  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="no direct connections") as caught:
        head.connect_ngrams(100)
    assert "full or sampled" in caught.value.hint
