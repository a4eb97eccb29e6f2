"""Sampled output layers: their formulas, their proposal, and where their gradients tend."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from elman.nn.heads.sampled import LOSSES, Drawn, Sampled, SampledConfig

VOCAB_SIZE, HIDDEN_SIZE = 40, 6


def make(method: str, num_samples: int, **options: object) -> Sampled:
    torch.manual_seed(0)
    config = SampledConfig(method=method, num_samples=num_samples, **options)  # type: ignore[arg-type]
    counts_V = torch.arange(VOCAB_SIZE, 0, -1) * 5
    head = config.build(HIDDEN_SIZE, VOCAB_SIZE, counts_V=counts_V)
    torch.nn.init.normal_(head.softmax.weight)
    return head


def normalised(head: Sampled, hidden_1H: Tensor) -> Sampled:
    """The same layer with its bias shifted so that the scores of this vector sum to one."""
    with torch.no_grad():
        scores_1V = hidden_1H @ head.softmax.weight.T + head.softmax.bias
        head.softmax.bias -= torch.logsumexp(scores_1V, dim=1)
    return head


def gradient(head: Sampled, hidden_NH: Tensor, targets_N: Tensor, *, training: bool) -> Tensor:
    head.train(training)
    loss = head.losses(hidden_NH, targets_N).mean()
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(head.parameters()))])


@pytest.mark.parametrize(
    ("method", "num_samples", "tolerance"),
    [
        # the distinct draws become the whole vocabulary, and the loss the full softmax
        ("sampled_softmax", 100, 0.2),
        ("sampled_softmax", 2_000, 1e-4),
        ("nce", 1_000, 0.15),
        ("nce", 20_000, 0.04),
        # all but the target's own probability, about 1 / 40 here
        ("blackout", 1_000, 0.2),
        ("blackout", 20_000, 0.1),
    ],
)
def test_gradients_tend_to_those_of_the_full_softmax(
    method: str, num_samples: int, tolerance: float
) -> None:
    torch.manual_seed(1)
    hidden_1H = torch.randn(1, HIDDEN_SIZE)
    head = normalised(make(method, num_samples), hidden_1H)
    hidden_NH, targets_N = hidden_1H.expand(30, -1), torch.arange(30)
    full = gradient(head, hidden_NH, targets_N, training=False)
    repeats = [gradient(head, hidden_NH, targets_N, training=True) for _ in range(15)]
    expected = torch.stack(repeats).mean(0)
    assert float((expected - full).norm() / full.norm()) < tolerance


def test_few_samples_are_a_coarser_guess() -> None:
    """So the agreement above is not there from the start."""
    torch.manual_seed(1)
    hidden_1H = torch.randn(1, HIDDEN_SIZE)
    for method in LOSSES:
        head = normalised(make(method, 5), hidden_1H)
        given = hidden_1H.expand(30, -1), torch.arange(30)
        full, few = (gradient(head, *given, training=mode) for mode in (False, True))
        assert float((few - full).norm() / full.norm()) > 0.3


def test_losses_by_hand() -> None:
    """Scores 1 and (2, 3), chances 0.1 and (0.2, 0.5), five draws, of which the first word had
    two."""
    target, q = 1.0, 0.1
    noise, r, counts = [2.0, 3.0], [0.2, 0.5], [2, 3]

    def loss(method: str, hits: list[bool]) -> float:
        drawn = Drawn(
            torch.tensor([target]),
            torch.tensor([noise]),
            torch.tensor([q]),
            torch.tensor(r),
            torch.tensor(counts),
            torch.tensor([hits]),
            5,
        )
        return float(LOSSES[method](drawn))

    def among(chance: float) -> float:
        return 1 - (1 - chance) ** 5

    weights = [math.exp(score) / among(p) for score, p in zip(noise, r, strict=True)]
    own = math.exp(target) / among(q)
    expected = -math.log(own / (own + sum(weights)))
    assert loss("sampled_softmax", [False, False]) == pytest.approx(expected, rel=1e-5)
    expected = -math.log(own / (own + weights[1]))
    assert loss("sampled_softmax", [True, False]) == pytest.approx(expected, rel=1e-5)

    def is_data(score: float, chance: float) -> float:
        return math.exp(score) / (math.exp(score) + 5 * chance)

    expected = -math.log(is_data(target, q)) - sum(
        c * math.log(1 - is_data(score, p)) for score, p, c in zip(noise, r, counts, strict=True)
    )
    assert loss("nce", [False, False]) == pytest.approx(expected, rel=1e-5)
    assert loss("nce", [True, False]) == pytest.approx(expected, rel=1e-5)

    own, first, second = (
        math.exp(score) / p for score, p in zip([target, *noise], [q, *r], strict=True)
    )
    total = own + 2 * first + 3 * second
    expected = -(
        math.log(own / total) + 2 * math.log(1 - first / total) + 3 * math.log(1 - second / total)
    )
    assert loss("blackout", [False, False]) == pytest.approx(expected, rel=1e-5)
    total = own + 3 * second
    expected = -(math.log(own / total) + 3 * math.log(1 - second / total))
    assert loss("blackout", [True, False]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("power", [0.0, 0.75, 1.0])
def test_draws_follow_the_proposal(power: float) -> None:
    head = make("nce", 200_000, power=power)
    words_V = torch.arange(VOCAB_SIZE)
    weights_V = (torch.arange(VOCAB_SIZE, 0, -1) * 5.0 + 1) ** power
    torch.testing.assert_close(head.proposal(words_V).float(), weights_V / weights_V.sum())
    drawn_V = torch.bincount(head._draw(), minlength=VOCAB_SIZE) / 200_000
    assert float((drawn_V - head.proposal(words_V)).abs().max()) < 0.003


def test_proposal_survives_a_change_of_dtype_and_saving() -> None:
    head = make("nce", 10)
    exact = head.proposal(torch.arange(VOCAB_SIZE))
    assert torch.equal(head.half().proposal(torch.arange(VOCAB_SIZE)), exact)
    again = SampledConfig(method="nce").build(HIDDEN_SIZE, VOCAB_SIZE)
    again.load_state_dict(head.state_dict())
    assert torch.equal(again.proposal(torch.arange(VOCAB_SIZE)), exact)


def test_evaluation_is_exact_and_training_is_not() -> None:
    head = make("sampled_softmax", 10)
    hidden_NH, targets_N = torch.randn(7, HIDDEN_SIZE), torch.arange(7)
    exact = -head.logprobs(hidden_NH, targets_N)
    assert not torch.allclose(head.train().losses(hidden_NH, targets_N), exact)
    torch.testing.assert_close(head.eval().losses(hidden_NH, targets_N), exact)
    torch.testing.assert_close(
        head.logprobs_all(hidden_NH).gather(1, targets_N.unsqueeze(1)).squeeze(1), -exact
    )


def test_blackout_stays_finite_where_a_noise_word_is_certain() -> None:
    head = make("blackout", 50)
    with torch.no_grad():
        head.softmax.bias[0] = 1000.0
    losses_N = head.train().losses(torch.randn(4, HIDDEN_SIZE), torch.tensor([5, 6, 7, 8]))
    losses_N.sum().backward()
    assert losses_N.isfinite().all()
    assert head.softmax.weight.grad is not None
    assert head.softmax.weight.grad.isfinite().all()


def test_nce_starts_normalised_without_counts() -> None:
    head = SampledConfig(method="nce").build(HIDDEN_SIZE, VOCAB_SIZE)
    assert float(head.softmax.bias.detach().exp().sum()) == pytest.approx(1.0)
