"""The conditional random field and plain enumeration of every row of labels."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
import torch
from torch import Tensor

from elman.tasks.tagging.crf import LinearChainCRF

NUM_LABELS = 3
LENGTHS = (4, 1, 3)


@pytest.fixture(params=["free", "constrained"])
def crf(request: pytest.FixtureRequest) -> LinearChainCRF:
    allowed = torch.ones(NUM_LABELS + 2, NUM_LABELS + 2, dtype=torch.bool)
    if request.param == "constrained":
        allowed[0, 1] = allowed[2, 2] = allowed[3, 1] = allowed[0, 4] = False
    crf = LinearChainCRF(NUM_LABELS, allowed=allowed)
    generator = torch.Generator().manual_seed(5)
    for parameter in crf.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    return crf


@pytest.fixture(name="emissions_BTN")
def _emissions() -> Tensor:
    return torch.randn(3, 4, NUM_LABELS, generator=torch.Generator().manual_seed(2))


@pytest.fixture(name="mask_BT")
def _mask() -> Tensor:
    return torch.arange(4) < torch.tensor(LENGTHS).unsqueeze(1)


def enumerate_rows(crf: LinearChainCRF, emissions_TN: Tensor) -> dict[tuple[int, ...], float]:
    """The score of every row of labels, summed term by term."""
    n, penalty = NUM_LABELS, crf.penalty
    scores = {}
    for row in product(range(n), repeat=len(emissions_TN)):
        score = crf.begin_N[row[0]] + penalty[n, row[0]] + crf.end_N[row[-1]]
        score = score + penalty[row[-1], n + 1]
        score = score + sum(emissions_TN[t, label] for t, label in enumerate(row))
        for a, b in pairwise(row):
            score = score + crf.transition_NN[a, b] + penalty[a, b]
        scores[row] = float(score)
    return scores


@torch.no_grad()
def test_everything_equals_enumeration(
    crf: LinearChainCRF, emissions_BTN: Tensor, mask_BT: Tensor
) -> None:
    log_z_B = crf.log_partition(emissions_BTN, mask_BT)
    marginals_BTN = crf.marginals(emissions_BTN, mask_BT)
    best_BT, best_scores_B = crf.viterbi(emissions_BTN, mask_BT)
    for sentence, length in enumerate(LENGTHS):
        scores = enumerate_rows(crf, emissions_BTN[sentence, :length])
        values = torch.tensor(list(scores.values()))
        log_z = torch.logsumexp(values, 0)
        torch.testing.assert_close(log_z_B[sentence], log_z)
        best = max(scores, key=scores.__getitem__)
        assert tuple(best_BT[sentence, :length].tolist()) == best
        assert float(best_scores_B[sentence]) == pytest.approx(scores[best], rel=1e-5)
        expected_TN = torch.zeros(length, NUM_LABELS)
        for row, score in scores.items():
            for time, label in enumerate(row):
                expected_TN[time, label] += float((torch.tensor(score) - log_z).exp())
        torch.testing.assert_close(marginals_BTN[sentence, :length], expected_TN)
        assert bool((marginals_BTN[sentence, length:] == 0).all())
        labels_BT = torch.full((3, 4), -1)
        labels_BT[sentence, :length] = torch.tensor(best)
        loss = crf.losses(emissions_BTN, labels_BT, mask_BT)[sentence]
        torch.testing.assert_close(loss, log_z - scores[best])


def test_the_gradient_of_the_partition_is_the_marginals(
    crf: LinearChainCRF, emissions_BTN: Tensor, mask_BT: Tensor
) -> None:
    emissions_BTN.requires_grad_()
    crf.log_partition(emissions_BTN, mask_BT).sum().backward()
    assert emissions_BTN.grad is not None
    with torch.no_grad():
        expected = crf.marginals(emissions_BTN, mask_BT)
    torch.testing.assert_close(emissions_BTN.grad, expected)


def test_padding_changes_nothing(crf: LinearChainCRF, emissions_BTN: Tensor) -> None:
    short_BT = torch.arange(4) < torch.tensor([2, 2, 2]).unsqueeze(1)
    changed_BTN = emissions_BTN.clone()
    changed_BTN[:, 2:] += 100.0
    first = crf.log_partition(emissions_BTN, short_BT)
    torch.testing.assert_close(crf.log_partition(changed_BTN, short_BT), first)
    whole = torch.ones(3, 2, dtype=torch.bool)
    torch.testing.assert_close(crf.log_partition(emissions_BTN[:, :2], whole), first)


def test_forbidden_rows_are_never_found(emissions_BTN: Tensor, mask_BT: Tensor) -> None:
    allowed = torch.ones(5, 5, dtype=torch.bool)
    allowed[0, 0] = allowed[1, 0] = False
    crf = LinearChainCRF(NUM_LABELS, allowed=allowed)
    emissions_BTN = emissions_BTN + torch.tensor([50.0, 0.0, 0.0])
    best_BT, _ = crf.viterbi(emissions_BTN, mask_BT)
    for row, length in zip(best_BT.tolist(), LENGTHS, strict=True):
        pairs = pairwise(row[:length])
        assert not any(pair in ((0, 0), (1, 0)) for pair in pairs)
