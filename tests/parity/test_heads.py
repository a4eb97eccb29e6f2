"""Output layers against torch's own softmax, cross-entropy and adaptive softmax."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elman.nn.heads import cross_entropy
from elman.nn.heads.adaptive import AdaptiveConfig
from elman.nn.heads.cross_entropy import smoothed_logprobs, target_logprobs
from elman.nn.heads.full import FullConfig
from elman.nn.heads.mixture import MixtureConfig
from elman.nn.kernels import blocks, mkl, softmax


@pytest.fixture(params=[1 << 23, 40, 1], ids=["one chunk", "chunks", "row by row"])
def _chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cross_entropy.CHUNK_ELEMENTS, "cpu", request.param)
    monkeypatch.setattr(cross_entropy, "CHUNK_ROWS", 1)


def problem(
    vocab_size: int, hidden_size: int, dtype: torch.dtype = torch.double
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(2)
    hidden_NH = (torch.randn(11, hidden_size, dtype=dtype) * 3).requires_grad_()
    weight_VH = torch.randn(vocab_size, hidden_size, dtype=dtype, requires_grad=True)
    bias_V = torch.randn(vocab_size, dtype=dtype, requires_grad=True)
    return hidden_NH, weight_VH, bias_V, torch.randint(vocab_size, (11,))


WEIGHTS = {
    "mean": lambda losses: losses.mean(),
    "sum": lambda losses: losses.sum(),
    "masked": lambda losses: losses[::2].mean(),
    "weighted": lambda losses: (losses * torch.arange(len(losses))).sum(),
}


@pytest.mark.usefixtures("_chunks")
@pytest.mark.parametrize("equal_weights", [True, False])
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(("vocab_size", "hidden_size"), [(13, 5), (4, 6)], ids=["wide", "narrow"])
def test_cross_entropy(
    vocab_size: int, hidden_size: int, weights: str, equal_weights: bool
) -> None:
    hidden_NH, weight_VH, bias_V, targets_N = problem(vocab_size, hidden_size)
    given = [hidden_NH, weight_VH, bias_V]
    ours = target_logprobs(*given, targets_N, equal_weights=equal_weights)
    theirs = -F.cross_entropy(F.linear(*given), targets_N, reduction="none")
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(
        torch.autograd.grad(WEIGHTS[weights](ours), given),
        torch.autograd.grad(WEIGHTS[weights](theirs), given),
    )


@pytest.mark.usefixtures("_chunks")
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("dtype", [torch.double, torch.float32])
def test_label_smoothing(weights: str, dtype: torch.dtype) -> None:
    hidden_NH, weight_VH, bias_V, targets_N = problem(13, 5, dtype)
    given = [hidden_NH, weight_VH, bias_V]
    ours, plain = smoothed_logprobs(*given, targets_N, 0.1)
    logits_NV = F.linear(*given)
    theirs = -F.cross_entropy(logits_NV, targets_N, reduction="none", label_smoothing=0.1)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(plain, -F.cross_entropy(logits_NV, targets_N, reduction="none"))
    torch.testing.assert_close(
        torch.autograd.grad(WEIGHTS[weights](ours), given),
        torch.autograd.grad(WEIGHTS[weights](theirs), given),
    )


@pytest.mark.usefixtures("_chunks")
@pytest.mark.parametrize("weights", WEIGHTS)
def test_label_smoothing_of_products_in_bfloat16(weights: str) -> None:
    hidden_NH, weight_VH, bias_V, targets_N = problem(61, 16, torch.float32)
    given = [hidden_NH, weight_VH, bias_V]
    with torch.autocast("cpu", torch.bfloat16):
        ours, _ = smoothed_logprobs(*given, targets_N, 0.1)
    logits_NV = F.linear(*given)
    theirs = -F.cross_entropy(logits_NV, targets_N, reduction="none", label_smoothing=0.1)
    assert (ours - theirs).norm() < 0.01 * theirs.norm()
    found = torch.autograd.grad(WEIGHTS[weights](ours), given)
    expected = torch.autograd.grad(WEIGHTS[weights](theirs), given)
    for gradient, exact in zip(found, expected, strict=True):
        assert (gradient - exact).norm() < 0.04 * exact.norm()


def test_gradients_of_hidden_vectors_in_bfloat16_are_not_rounded_twice() -> None:
    """-1 / 11, the weight of a row in a mean, is no bfloat16 number."""
    hidden_NH, weight_VH, bias_V, targets_N = problem(61, 16, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        ours = target_logprobs(hidden_NH.bfloat16(), weight_VH, bias_V, targets_N)
    (found_V,) = torch.autograd.grad(-ours.mean(), bias_V)
    logits_NV = F.linear(hidden_NH.bfloat16(), weight_VH.bfloat16()).float() + bias_V
    (expected_V,) = torch.autograd.grad(F.cross_entropy(logits_NV, targets_N), bias_V)
    torch.testing.assert_close(found_V, expected_V, rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("_chunks")
@pytest.mark.parametrize("weights", WEIGHTS)
def test_cross_entropy_of_products_in_bfloat16(weights: str) -> None:
    """As under autocast on a CPU: logits and slopes in bfloat16, sums and results in float32."""
    hidden_NH, weight_VH, bias_V, targets_N = problem(61, 16, torch.float32)
    given = [hidden_NH, weight_VH, bias_V]
    with torch.autocast("cpu", torch.bfloat16):
        ours = target_logprobs(*given, targets_N)
    theirs = -F.cross_entropy(F.linear(*given), targets_N, reduction="none")
    assert ours.dtype == torch.float32
    assert (ours - theirs).norm() < 0.01 * theirs.norm()
    found = torch.autograd.grad(WEIGHTS[weights](ours), given)
    expected = torch.autograd.grad(WEIGHTS[weights](theirs), given)
    for gradient, exact in zip(found, expected, strict=True):
        assert gradient.dtype == torch.float32
        assert (gradient - exact).norm() < 0.04 * exact.norm()


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("size", [(1, 1, 2), (5, 7, 9), (300, 33, 1500), (129, 64, 65)], ids=str)
def test_scores_without_gradients(size: tuple[int, int, int], has_bias: bool, half: bool) -> None:
    """One panel and several, odd widths, more rows than are multiplied at once."""
    if problem := blocks.problem() if half else mkl.onednn_problem():
        pytest.skip(problem)
    torch.manual_seed(0)
    num_rows, width, vocab_size = size
    hidden_NH, weight_VH = torch.randn(num_rows, width), torch.randn(vocab_size, width)
    bias_V = 30 * torch.randn(vocab_size) if has_bias else None
    targets_N = torch.randint(vocab_size, (num_rows,))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=half):
        found_N = softmax.scores(hidden_NH, weight_VH, bias_V, targets_N)
    logits_NV = hidden_NH.double() @ weight_VH.double().t()
    logits_NV = logits_NV if bias_V is None else logits_NV + bias_V
    exact_N = logits_NV.log_softmax(1).gather(1, targets_N[:, None])[:, 0]
    assert found_N.dtype == torch.float32
    distance = float((found_N - exact_N).norm() / logits_NV.norm(dim=1).norm())
    assert distance < (0.01 if half else 1e-6)
    for outside in (-1, vocab_size):
        with pytest.raises(IndexError):
            softmax.scores(hidden_NH[:1], weight_VH, bias_V, torch.tensor([outside]))


@pytest.mark.parametrize("half", [False, True])
def test_scores_where_a_whole_panel_is_impossible(half: bool) -> None:
    if problem := blocks.problem() if half else mkl.onednn_problem():
        pytest.skip(problem)
    torch.manual_seed(0)
    hidden_NH, weight_VH = torch.randn(9, 64), torch.randn(2000, 64)
    bias_V = torch.zeros(2000).index_fill(0, torch.arange(1900), -torch.inf)
    targets_N = torch.randint(1900, 2000, (9,))
    targets_N[0] = 5
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=half):
        found_N = softmax.scores(hidden_NH, weight_VH, bias_V, targets_N)
    exact_N = (hidden_NH @ weight_VH.t() + bias_V).log_softmax(1).gather(1, targets_N[:, None])
    torch.testing.assert_close(found_N, exact_N[:, 0], rtol=0, atol=0.1 if half else 1e-4)


def test_short_texts_and_large_matrices_are_scored_without_packing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if problem := mkl.onednn_problem():
        pytest.skip(problem)
    monkeypatch.setattr(softmax, "fastest", lambda *sizes: "oneDNN")
    hidden_NH, weight_VH = torch.randn(64, 16), torch.randn(500, 16)
    assert softmax.serves_scores(hidden_NH, weight_VH)
    assert not softmax.serves_scores(hidden_NH[:63], weight_VH)
    large_VH = torch.zeros(1, 1).expand(1 << 23, hidden_NH.shape[1])
    assert not softmax.serves_scores(hidden_NH, large_VH)


def test_targets_outside_the_vocabulary_are_refused_in_bfloat16() -> None:
    hidden_NH, weight_VH, bias_V, targets_N = problem(61, 16, torch.float32)
    targets_N[3] = 61
    with torch.autocast("cpu", torch.bfloat16), pytest.raises((IndexError, RuntimeError)):
        target_logprobs(hidden_NH, weight_VH, bias_V, targets_N)


def test_cross_entropy_where_logits_are_extreme() -> None:
    """The highest logit is taken off first: nothing overflows, and certainty has no gradient."""
    hidden_NH = torch.tensor([[200.0], [-200.0]], requires_grad=True)
    weight_VH = torch.tensor([[1.0], [-1.0], [0.5]])
    logprobs_N = target_logprobs(hidden_NH, weight_VH, None, torch.tensor([0, 0]))
    torch.testing.assert_close(logprobs_N, torch.tensor([0.0, -400.0]))
    (gradient,) = torch.autograd.grad(logprobs_N.sum(), hidden_NH)
    torch.testing.assert_close(gradient, torch.tensor([[0.0], [2.0]]))


def test_gradients_only_where_wanted() -> None:
    hidden_NH, weight_VH, bias_V, targets_N = problem(7, 5)
    logprobs_N = target_logprobs(hidden_NH.detach(), weight_VH, bias_V.detach(), targets_N)
    logprobs_N.sum().backward()
    assert hidden_NH.grad is None
    assert bias_V.grad is None
    assert weight_VH.grad is not None
    with torch.no_grad():
        assert not target_logprobs(hidden_NH, weight_VH, bias_V, targets_N).requires_grad


def test_backward_twice_through_one_forward() -> None:
    """The gradients prepared in the forward pass serve once; a second pass computes them anew."""
    hidden_NH, weight_VH, bias_V, targets_N = problem(7, 5)
    loss = target_logprobs(hidden_NH, weight_VH, bias_V, targets_N).mean()
    first = torch.autograd.grad(loss, weight_VH, retain_graph=True)
    second = torch.autograd.grad(loss, weight_VH)
    torch.testing.assert_close(first, second)


def test_no_rows() -> None:
    _, weight_VH, bias_V, _ = problem(7, 5)
    hidden_NH = torch.zeros(0, 5, dtype=torch.double, requires_grad=True)
    logprobs_N = target_logprobs(hidden_NH, weight_VH, bias_V, torch.zeros(0, dtype=torch.long))
    assert logprobs_N.shape == (0,)
    logprobs_N.sum().backward()


def test_adaptive_softmax() -> None:
    """With its words in order of frequency, torch's adaptive softmax and ours are one."""
    torch.manual_seed(4)
    theirs = nn.AdaptiveLogSoftmaxWithLoss(16, 30, cutoffs=[6, 14], div_value=2.0, head_bias=True)
    ours = AdaptiveConfig(cutoffs=(6, 14), shrink=2.0).build(16, 30)
    with torch.no_grad():
        ours.weights[0].copy_(theirs.head.weight[:6])
        ours.cluster_weight.copy_(theirs.head.weight[6:])
        ours.biases[0].copy_(theirs.head.bias)
        for i, tail in enumerate(theirs.tail):
            ours.projections[i].copy_(tail[0].weight)
            ours.weights[i + 1].copy_(tail[1].weight)
    hidden_NH, targets_N = torch.randn(40, 16), torch.randint(30, (40,))
    torch.testing.assert_close(ours.logprobs_all(hidden_NH), theirs.log_prob(hidden_NH))
    our_logprobs, their_logprobs = (
        ours.logprobs(hidden_NH, targets_N),
        theirs(hidden_NH, targets_N).output,
    )
    torch.testing.assert_close(our_logprobs, their_logprobs)
    our_logprobs.mean().backward()
    their_logprobs.mean().backward()
    torch.testing.assert_close(ours.cluster_weight.grad, theirs.head.weight.grad[6:])
    torch.testing.assert_close(ours.weights[0].grad, theirs.head.weight.grad[:6])
    for i, tail in enumerate(theirs.tail):
        torch.testing.assert_close(ours.projections[i].grad, tail[0].weight.grad)
        torch.testing.assert_close(ours.weights[i + 1].grad, tail[1].weight.grad)


def test_mixture_of_softmaxes_by_its_formula() -> None:
    """Gradients too: chunked target log probabilities against the mixture written out."""
    torch.manual_seed(6)
    head = MixtureConfig(num_components=3).build(5, 9).double()
    hidden_NH = torch.randn(7, 5, dtype=torch.double, requires_grad=True)
    targets_N = torch.randint(9, (7,))
    priors_NK = torch.softmax(head.prior(hidden_NH), dim=1)
    contexts_NKE = torch.tanh(head.latent(hidden_NH)).view(7, 3, 5)
    each_NKV = torch.softmax(F.linear(contexts_NKE, head.softmax.weight, head.softmax.bias), dim=-1)
    expected_NV = torch.einsum("nk,nkv->nv", priors_NK, each_NKV).log()
    torch.testing.assert_close(head.logprobs_all(hidden_NH), expected_NV)
    ours = head.logprobs(hidden_NH, targets_N)
    theirs = expected_NV.gather(1, targets_N.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(ours, theirs)
    sources = [hidden_NH, *head.parameters()]
    torch.testing.assert_close(
        torch.autograd.grad(ours.mean(), sources), torch.autograd.grad(theirs.mean(), sources)
    )


@pytest.mark.parametrize("num_components", [0, 3], ids=["full", "mixture"])
def test_adversarial_softmax_by_its_formula(num_components: int) -> None:
    """Each target's vector moved by epsilon |w| against the hidden one, softmax by softmax."""
    torch.manual_seed(3)
    if num_components:
        head: Any = MixtureConfig(num_components=num_components, adversarial=0.3).build(5, 9)
    else:
        head = FullConfig(adversarial=0.3).build(5, 9)
    head = head.double()
    hidden_NH = torch.randn(7, 5, dtype=torch.double, requires_grad=True)
    targets_N = torch.randint(9, (7,))
    weight_VE, bias_V = head.softmax.weight, head.softmax.bias

    def probability(vector_E: Tensor, target: int) -> Tensor:
        w_E, unit_E = weight_VE[target], vector_E / vector_E.norm()
        moved = 0.3 * w_E.norm() * unit_E if w_E @ vector_E > 0 else torch.zeros(5).double()
        logits_V = weight_VE @ vector_E + bias_V
        logits_V = logits_V - F.one_hot(torch.tensor(target), 9) * (moved.detach() @ vector_E)
        return torch.softmax(logits_V, dim=0)[target]

    expected = []
    for hidden_H, target in zip(hidden_NH, targets_N.tolist(), strict=True):
        vectors, priors = [hidden_H], torch.ones(1).double()
        if num_components:
            vectors = list(torch.tanh(head.latent(hidden_H)).view(num_components, 5))
            priors = torch.softmax(head.prior(hidden_H), dim=0)
        parts = [p * probability(v, target) for p, v in zip(priors, vectors, strict=True)]
        expected.append(-sum(parts, torch.zeros(()).double()).log())
    ours, theirs = head.losses(hidden_NH, targets_N), torch.stack(expected)
    torch.testing.assert_close(ours, theirs)
    sources = [hidden_NH, *head.parameters()]
    torch.testing.assert_close(
        torch.autograd.grad(ours.mean(), sources), torch.autograd.grad(theirs.mean(), sources)
    )
    assert not head.exact
    exact = MixtureConfig(num_components=3) if num_components else FullConfig()
    assert exact.build(5, 9).exact


def test_locked_dropout_of_a_mixture_is_the_same_at_every_step() -> None:
    torch.manual_seed(1)
    head: Any = MixtureConfig(num_components=3, dropout=0.5, locked=True).build(5, 9)
    same_BTH = torch.randn(2, 1, 5).expand(2, 6, 5)
    losses_BT = head.losses(same_BTH, torch.full((2, 6), 4))
    torch.testing.assert_close(losses_BT, losses_BT[:, :1].expand(2, 6))
    assert not torch.equal(losses_BT, head.losses(same_BTH, torch.full((2, 6), 4)))


@torch.no_grad()
def test_never_more_logits_than_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eleven rows in chunks of three: the largest piece of memory asked for is three rows wide."""
    monkeypatch.setitem(cross_entropy.CHUNK_ELEMENTS, "cpu", 3 * 13)
    monkeypatch.setattr(cross_entropy, "CHUNK_ROWS", 1)
    hidden_NH, weight_VH, bias_V, _ = problem(13, 5)
    shapes = [
        tuple(logits.shape) for _, logits in cross_entropy._logits(hidden_NH, weight_VH, bias_V)
    ]
    assert shapes == [(3, 13), (3, 13), (3, 13), (2, 13)]
