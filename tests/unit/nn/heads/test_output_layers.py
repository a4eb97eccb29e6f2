"""Full, adaptive and mixed softmaxes: sums, ranks, ties, starts, shapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from elman.base.errors import UsageError
from elman.base.tables import look_up
from elman.nn.heads import HEADS, Head
from elman.nn.heads.adaptive import Adaptive, AdaptiveConfig
from elman.nn.heads.full import FullConfig
from elman.nn.heads.mixture import MixtureConfig
from elman.nn.heads.sampled import SampledConfig

V, H = 30, 8
COUNTS_V = torch.randperm(V, generator=torch.Generator().manual_seed(0)) * 10

CASES: dict[str, Any] = {
    "full": FullConfig(),
    "adaptive": AdaptiveConfig(),
    "adaptive cut": AdaptiveConfig(cutoffs=(4, 9, 20), shrink=2.0),
    "mixture": MixtureConfig(num_components=4),
    **{kind: look_up(HEADS, kind, "head")() for kind in HEADS if kind == "sampled"},
}


def build(config: Any, *, tied: bool = False) -> tuple[Head, nn.Embedding]:
    torch.manual_seed(0)
    embedding = nn.Embedding(V, H)
    head = config.build(H, V, tied_to=embedding if tied else None, counts_V=COUNTS_V)
    for parameter in head.parameters():
        nn.init.normal_(parameter)
    return head, embedding


def test_every_kind_of_the_table_is_here() -> None:
    assert {config.kind for config in CASES.values()} == set(HEADS)


@pytest.mark.parametrize("tied", [False, True], ids=["own", "tied"])
@pytest.mark.parametrize("name", CASES)
def test_probabilities_sum_to_one_and_agree(name: str, tied: bool) -> None:
    head, _ = build(CASES[name], tied=tied)
    hidden_NH = torch.randn(5, H)
    logprobs_NV = head.logprobs_all(hidden_NH)
    torch.testing.assert_close(logprobs_NV.exp().sum(1), torch.ones(5))
    for word in range(V):
        torch.testing.assert_close(
            head.logprobs(hidden_NH, torch.full((5,), word)), logprobs_NV[:, word]
        )


@pytest.mark.parametrize("name", CASES)
def test_any_leading_axes_in_any_layout(name: str) -> None:
    head, _ = build(CASES[name])
    head.eval()
    hidden_TBH = torch.randn(4, 3, H)
    targets_TB = torch.randint(V, (4, 3))
    expected = head.logprobs(hidden_TBH.flatten(0, 1), targets_TB.flatten()).view(4, 3)
    torch.testing.assert_close(head.logprobs(hidden_TBH, targets_TB), expected)
    swapped = head.logprobs(hidden_TBH.transpose(0, 1), targets_TB.t())
    torch.testing.assert_close(swapped, expected.t())
    torch.testing.assert_close(head.losses(hidden_TBH.transpose(0, 1), targets_TB.t()), -swapped)
    assert head.logprobs_all(hidden_TBH.transpose(0, 1)).shape == (3, 4, V)


@pytest.mark.parametrize("name", CASES)
def test_a_tied_matrix_is_the_embedding(name: str) -> None:
    """It is saved once, follows the embedding, and sends its gradient there."""
    head, embedding = build(CASES[name], tied=True)
    assert not any(parameter is embedding.weight for parameter in head.parameters())
    assert not any(tensor.shape == (V, H) for tensor in head.state_dict().values())
    hidden_NH, targets_N = torch.randn(5, H), torch.arange(5)
    before = head.logprobs(hidden_NH, targets_N)
    before.sum().backward()
    assert embedding.weight.grad is not None
    assert embedding.weight.grad.abs().sum(1).ne(0).sum() >= 5
    with torch.no_grad():
        embedding.weight.mul_(2)
    assert not torch.allclose(head.logprobs(hidden_NH, targets_N), before)


def start(config: Any) -> torch.Tensor:
    """The probabilities that a fresh layer gives when it knows nothing of the context."""
    torch.manual_seed(0)
    head = config.build(H, V, counts_V=COUNTS_V)
    for parameter in head.parameters():
        if parameter.dim() > 1:
            nn.init.zeros_(parameter)
    return head.logprobs_all(torch.zeros(1, H))[0].exp().detach()  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", CASES)
def test_starts_at_the_words_frequencies(name: str) -> None:
    expected = (COUNTS_V + 1) / (COUNTS_V + 1).sum()
    torch.testing.assert_close(start(CASES[name]), expected)


def test_can_start_flat() -> None:
    torch.testing.assert_close(start(FullConfig(unigram_bias=False)), torch.full((V,), 1 / V))


def test_adaptive_short_list_has_the_frequent_words() -> None:
    head = AdaptiveConfig(cutoffs=(4, 9)).build(H, V, counts_V=COUNTS_V)
    assert isinstance(head, Adaptive)
    most = set(COUNTS_V.argsort(descending=True)[:4].tolist())
    assert set(head.words_V[:4].tolist()) == most
    assert torch.equal(head.words_V[head.ranks_V], torch.arange(V))


def test_adaptive_ranks_are_saved() -> None:
    head, _ = build(AdaptiveConfig())
    again = AdaptiveConfig().build(H, V)
    again.load_state_dict(head.state_dict())
    hidden_NH = torch.randn(3, H)
    torch.testing.assert_close(again.logprobs_all(hidden_NH), head.logprobs_all(hidden_NH))


def test_adaptive_computes_no_cluster_that_no_target_is_in() -> None:
    head, _ = build(AdaptiveConfig(cutoffs=(4, 9)))
    assert isinstance(head, Adaptive)
    head.logprobs(torch.randn(4, H), head.words_V[:4]).sum().backward()
    assert head.weights[1].grad is None
    assert head.weights[2].grad is None
    assert head.weights[0].grad is not None


@pytest.mark.parametrize("cutoffs", [(0,), (5, 5), (9, 4), (30,), (40,)])
def test_adaptive_cutoffs_must_rise_within_the_vocabulary(cutoffs: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="do not rise"):
        AdaptiveConfig(cutoffs=cutoffs).build(H, V)


def test_adaptive_serves_tiny_vocabularies() -> None:
    for vocab_size in (1, 2, 5, 11):
        head = AdaptiveConfig().build(H, vocab_size)
        total = head.logprobs_all(torch.randn(2, H)).exp().sum(1)
        torch.testing.assert_close(total, torch.ones(2))


def test_mixture_has_a_higher_rank_than_a_softmax() -> None:
    """The bottleneck that it was made for: log probabilities of rank beyond H."""

    def rank(head: Head) -> int:
        logprobs_NV = head.double().logprobs_all(torch.randn(40, 3, dtype=torch.double) * 3)
        return int(torch.linalg.matrix_rank(logprobs_NV, rtol=1e-6))

    torch.manual_seed(0)
    full, mixed = (config.build(3, V) for config in (FullConfig(), MixtureConfig()))
    nn.init.normal_(full.softmax.weight)
    nn.init.normal_(mixed.softmax.weight)
    assert rank(full) <= 3 + 2
    assert rank(mixed) > 3 + 2


def test_mixture_drops_only_while_training() -> None:
    head = MixtureConfig(dropout=0.5).build(H, V)
    hidden_NH, targets_N = torch.randn(4, H), torch.arange(4)
    assert not torch.equal(head.logprobs(hidden_NH, targets_N), head.logprobs(hidden_NH, targets_N))
    head.eval()
    assert torch.equal(head.logprobs(hidden_NH, targets_N), head.logprobs(hidden_NH, targets_N))


@pytest.mark.parametrize(
    ("config", "name", "value"),
    [
        (SampledConfig, "num_samples", 0),
        (SampledConfig, "power", -1.0),
        (MixtureConfig, "num_components", 0),
        (MixtureConfig, "dropout", 1.0),
        (AdaptiveConfig, "shrink", 0.0),
    ],
)
def test_values_out_of_range_are_refused(config: Any, name: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"model.head.{name} cannot be"):
        config(**{name: value})
