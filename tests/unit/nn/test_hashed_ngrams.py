"""Hashed n-grams: their blocks, what shares a block, and the two ways of looking words up."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from elman.base.errors import UsageError
from elman.nn import hashed_ngrams
from elman.nn.hashed_ngrams import START_BITS, Contexts, Found, HashedNgrams, scale, unpack
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
    contexts_BTO, _ = contexts.read(pairs[:, 1:], pairs[:, :1])
    starts, tags = (part[:, 1] for part in unpack(contexts_BTO[:, 0]))
    assert int(starts.min()) >= 0
    assert int(starts.max()) + V <= 1000
    # 3,600 throws into 994 places: about exp(-3.6) of them stay empty.
    assert len(starts.unique()) == pytest.approx(994 * (1 - 0.027), rel=0.02)
    assert set(tags.tolist()) == set(range(1, 256))
    # The tag says something that the start does not.
    both = torch.corrcoef(torch.stack([starts.float(), tags.float()]))[0, 1]
    assert abs(float(both)) < 0.1


def test_a_table_smaller_than_the_vocabulary_is_refused() -> None:
    with pytest.raises(UsageError, match="too small for 7 words"):
        Contexts(3, V - 1, V)
    assert Contexts(3, V, V).num_starts == 1


def test_an_order_without_bounds_is_refused() -> None:
    with pytest.raises(UsageError, match="n-grams of length 1,000,000 are too long"):
        Contexts(1_000_000, V, V)


def packed(starts: list[list[int]], tags: list[list[int]]) -> torch.Tensor:
    return torch.tensor(starts) | (torch.tensor(tags) << START_BITS)


def table(num_slots: int = 50) -> HashedNgrams:
    made = HashedNgrams(num_slots)
    with torch.no_grad():
        made.weight.copy_(torch.arange(float(num_slots)))
    return made


def test_scores_are_sums_over_orders_of_slots_that_are_owned() -> None:
    ngrams = table()
    contexts_NO = packed([[0, 10], [3, 4]], [[7, 9], [5, 5]])
    ngrams.claim(contexts_NO, torch.tensor([2, 1]))  # slots 2 and 12 for row 0, 4 and 5 for row 1
    assert {i: int(tag) for i, tag in enumerate(ngrams.owners) if tag} == {2: 7, 12: 9, 4: 5, 5: 5}
    all_NV = ngrams.scores_of_all(contexts_NO, V)
    # Row 0 sees slot 4 in its first block, but it is not its own; row 1 sees 4 and 5 in both. Pairs
    # of words are scaled by 4, triples by 2.
    expected = [[0, 0, 4 * 2 + 2 * 12, 0, 0, 0, 0], [2 * 4, 4 * 4 + 2 * 5, 4 * 5, 0, 0, 0, 0]]
    assert all_NV.tolist() == expected
    words_NS = torch.tensor([[6, 2, 2], [1, 0, 2]])
    torch.testing.assert_close(ngrams.scores(contexts_NO, words_NS), all_NV.gather(1, words_NS))
    begun = torch.ones(2, V)
    Found(ngrams.owners, contexts_NO, V).add_scores(begun, ngrams.weight)
    torch.testing.assert_close(begun, all_NV + 1)


def test_a_slot_stays_with_its_first_owner() -> None:
    ngrams = table()
    first, second = packed([[3]], [[8]]), packed([[2]], [[200]])
    ngrams.claim(first, torch.tensor([1]))
    ngrams.claim(second, torch.tensor([2]))  # the same slot, 4
    assert ngrams.scores_of_all(first, V)[0, 1] == 4 * 4
    assert ngrams.scores_of_all(second, V)[0, 2] == 0
    both = torch.cat([packed([[20]], [[8]]), packed([[20]], [[200]])])
    ngrams.claim(both, torch.tensor([0, 0]))  # at once: the higher tag
    assert int(ngrams.owners[20]) == 200


def test_gradients_are_the_tables() -> None:
    """Words that meet in a slot add up there, across rows, orders and repeated words."""
    torch.manual_seed(0)
    ngrams = table(30).double()
    contexts_NO = packed(torch.randint(30 - V + 1, (5, 3)).tolist(), [[3] * 3] * 5)
    ngrams.claim(contexts_NO, torch.randint(V, (5,)))
    words_NS = torch.randint(V, (5, 4))

    def with_weight(function: str, given: object) -> Callable[[torch.Tensor], torch.Tensor]:
        def run(weight: torch.Tensor) -> torch.Tensor:
            del ngrams.weight
            ngrams.weight = weight  # type: ignore[assignment]
            result: torch.Tensor = getattr(ngrams, function)(contexts_NO, given)
            return result

        return run

    weight = ngrams.weight.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(with_weight("scores", words_NS), weight)
    assert torch.autograd.gradcheck(with_weight("scores_of_all", V), weight)
    with_weight("scores_of_all", V)(weight).sum().backward()  # type: ignore[no-untyped-call]
    assert bool(((weight.grad != 0) <= (ngrams.owners != 0)).all())  # type: ignore[operator]


def test_the_ways_of_a_cpu_and_of_a_gpu_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    ngrams = table(60)
    contexts_NO = packed(
        torch.randint(60 - V + 1, (9, 2)).tolist(), torch.randint(1, 4, (9, 2)).tolist()
    )
    for target in range(V):
        ngrams.claim(contexts_NO, torch.full((9,), target))
    found = Found(ngrams.owners, contexts_NO, V)
    expected = ngrams.scores_of_all(contexts_NO, V)
    monkeypatch.setattr(hashed_ngrams, "INDICES", 4 * V)  # several groups of rows
    scores_NV = torch.zeros(9, V)
    for rows, order, slots_nV, owned_nV in found._blocks():
        scores_NV[rows] += scale(order) * ngrams.weight[slots_nV].where(owned_nV, 0)
    torch.testing.assert_close(scores_NV, expected)


@pytest.mark.parametrize("config", [AdaptiveConfig(cutoffs=(3,)), MixtureConfig()])
def test_output_layers_without_direct_connections_say_so(config: object) -> None:
    head: Head = config.build(4, V)  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="no direct connections") as caught:
        head.connect_ngrams(100)
    assert "full or sampled" in caught.value.hint
