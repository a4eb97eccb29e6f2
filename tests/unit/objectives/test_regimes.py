"""Each training regime against a slow reference: one token at a time, with a tape, in float64."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from elman import testing
from elman.batches.batch import Batch
from elman.batches.conditional import conditional_batch
from elman.models.recurrent import RecurrentLM, RecurrentLMConfig
from elman.nn.state import State
from elman.objectives import regimes
from elman.objectives.judge import Judge
from elman.objectives.likelihood import likelihood
from elman.objectives.objective_config import RegimeConfig
from elman.objectives.outcome import Outcome
from elman.objectives.regimes import Regime, training_objective, truth_share
from elman.objectives.rewards import bleu, edits
from elman.objectives.rollout import continuations, mixed_inputs
from tiny_models import TINY

VOCAB = 4
END = 3


@pytest.fixture
def model() -> RecurrentLM:
    torch.manual_seed(3)
    config = RecurrentLMConfig(hidden_size=5, embedding_size=3, num_layers=1, tied=False)
    made = config.build(VOCAB).double()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return made


@pytest.fixture
def batch() -> Batch:
    tokens_BT = torch.randint(VOCAB, (3, 6), generator=torch.Generator().manual_seed(5))
    return Batch(tokens_BT[:, :-1], tokens_BT[:, 1:])


def objective(
    config: RegimeConfig,
    model: RecurrentLM,
    batch: Batch,
    state: State | None,
    *,
    progress: float = 0.0,
    end_id: int | None = None,
    judge: Judge | None = None,
) -> Outcome:
    if config.is_teacher_forcing:
        return likelihood(config, model, batch, state)
    judge = judge if config.regime == "professor_forcing" else None
    regime = Regime(config, model, end_id, judge)
    regime.begin_update(progress)
    return regime(batch, state)


def gradients(model: torch.nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in model.named_parameters()
    }


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert any(gradient.abs().max() > 1e-4 for gradient in theirs.values())
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, msg=name)


def stepwise_nats(model: RecurrentLM, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
    state = model.initial_state(len(inputs_BT))
    total = torch.zeros((), dtype=torch.float64)
    for t in range(inputs_BT.shape[1]):
        logprobs_BV, state = model.step(inputs_BT[:, t], state)
        total = total - logprobs_BV.gather(1, targets_BT[:, t : t + 1]).sum()
    return total


@pytest.mark.parametrize("truth", [0.0, 0.4, 1.0])
def test_reading_own_words_has_the_gradient_of_the_stepwise_computation(
    model: RecurrentLM, batch: Batch, truth: float
) -> None:
    config = RegimeConfig(regime="scheduled_sampling", curriculum="linear", least_truth=truth)
    torch.manual_seed(11)
    outcome = objective(config, model, batch, None, progress=1.0)
    ours = gradients(model, outcome.loss)

    torch.manual_seed(11)
    own_BT = torch.rand(batch.tokens_BT.shape) >= truth
    state = model.initial_state(3)
    token_B, total = batch.tokens_BT[:, 0], torch.zeros((), dtype=torch.float64)
    for t in range(5):
        logprobs_BV, state = model.step(token_B, state)
        total = total - logprobs_BV.gather(1, batch.targets_BT[:, t : t + 1]).sum()
        if t < 4:
            drawn_B = torch.multinomial(logprobs_BV.detach().float().exp(), 1)[:, 0]
            token_B = torch.where(own_BT[:, t + 1], drawn_B, batch.tokens_BT[:, t + 1])
    assert_same(ours, gradients(model, total / 15))
    assert float(outcome.nats) == pytest.approx(total.item())
    assert outcome.state is not None
    for ours_t, theirs_t in zip(
        outcome.state.flatten().values(), state.flatten().values(), strict=True
    ):
        torch.testing.assert_close(ours_t, theirs_t)


def test_free_running_reads_nothing_but_its_own_words(model: RecurrentLM) -> None:
    """A model that always says 2 reads 2 after the first token, whatever the truth is."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.head.softmax.bias[2] = 50.0
    tokens_BT = torch.tensor([[0, 1, 3, 1]])
    inputs_BT = mixed_inputs(model, tokens_BT, model.initial_state(1), 0.0)
    assert inputs_BT.tolist() == [[0, 2, 2, 2]]
    assert (
        mixed_inputs(model, tokens_BT, model.initial_state(1), 1.0).tolist() == tokens_BT.tolist()
    )
    assert truth_share(RegimeConfig(regime="free_running"), 0.1) == 0


def test_drawing_leaves_the_model_in_training(model: RecurrentLM, batch: Batch) -> None:
    model.train()
    mixed_inputs(model, batch.tokens_BT, model.initial_state(3), 0.0)
    assert model.training


@pytest.mark.parametrize("curriculum", ["linear", "exponential", "inverse_sigmoid"])
def test_curricula_fall_from_truth_to_own_words(curriculum: Any) -> None:
    config = RegimeConfig(regime="scheduled_sampling", curriculum=curriculum)
    shares = [truth_share(config, i / 20) for i in range(21)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.99
    assert shares[-1] < 0.01
    floor = RegimeConfig(regime="scheduled_sampling", curriculum=curriculum, least_truth=0.25)
    assert truth_share(floor, 1.0) == 0.25


def test_curricula_are_bengios() -> None:
    linear = RegimeConfig(regime="scheduled_sampling", curriculum="linear")
    assert truth_share(linear, 0.3) == pytest.approx(0.7)
    exponential = RegimeConfig(regime="scheduled_sampling", curriculum="exponential")
    # k^i: equal steps divide the share by equal factors
    a, b, c = (truth_share(exponential, p) for p in (0.2, 0.4, 0.6))
    assert b / a == pytest.approx(c / b)
    sigmoid = RegimeConfig(regime="scheduled_sampling", curriculum="inverse_sigmoid")
    # k / (k + exp(i / k)): the odds fall by equal factors
    odds = [s / (1 - s) for s in (truth_share(sigmoid, p) for p in (0.2, 0.4, 0.6))]
    assert odds[1] / odds[0] == pytest.approx(odds[2] / odds[1])


def test_continuations_end_with_the_end(model: RecurrentLM) -> None:
    torch.manual_seed(0)
    first_B = torch.zeros(50, dtype=torch.int64)
    said_BT, mask_BT = continuations(
        model, first_B, model.initial_state(50), 9, greedy=False, end_id=END
    )
    for row, mask in zip(said_BT.tolist(), mask_BT.tolist(), strict=True):
        length = row.index(END) + 1 if END in row else len(row)
        assert mask == [True] * length + [False] * (len(row) - length)
    greedy_BT, _ = continuations(
        model, first_B[:1], model.initial_state(1), 4, greedy=True, end_id=None
    )
    state, token_B, wanted = model.initial_state(1), first_B[:1], []
    for _ in range(4):
        logprobs_BV, state = model.step(token_B, state)
        token_B = logprobs_BV.argmax(dim=-1)
        wanted.append(int(token_B))
    assert greedy_BT.tolist() == [wanted]


def test_minimum_risk_is_the_expected_cost_over_candidates(
    model: RecurrentLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = Batch(torch.tensor([[0, 1, 2]]), torch.tensor([[1, 2, END]]))
    drawn_RT = torch.tensor([[1, 1, END], [1, 2, END], [2, END, 0], [1, 1, END]])
    mask_RT = torch.tensor([[True] * 3, [True] * 3, [True, True, False], [True] * 3])
    # the true one among them, and one twice
    monkeypatch.setattr(regimes, "continuations", lambda *_, **__: (drawn_RT, mask_RT))
    config = RegimeConfig(
        regime="minimum_risk",
        num_candidates=4,
        sharpness=0.6,
        likelihood_weight=0.25,
        reward="edits",
    )
    outcome = objective(config, model, batch, None, end_id=END)
    ours = gradients(model, outcome.loss)

    distinct = [([1, 2, END], 0.0), ([1, 1, END], 1 / 3), ([2, END], 1 / 3)]
    weights, costs = [], []
    for tokens, cost in distinct:
        inputs_BT = torch.tensor([[0, *tokens[:-1]]])
        logprob = -stepwise_nats(model, inputs_BT, torch.tensor([tokens]))
        weights.append((0.6 * logprob).exp())
        costs.append(cost)
    risk = sum(w * c for w, c in zip(weights, costs, strict=True)) / sum(weights)
    nats = stepwise_nats(model, batch.tokens_BT, batch.targets_BT)
    reference = 0.75 * risk + 0.25 * nats / 3
    assert outcome.loss.item() == pytest.approx(reference.item(), rel=1e-6)
    assert_same(ours, gradients(model, reference))
    assert outcome.nats.item() == pytest.approx(nats.item())


def test_candidates_are_drawn_from_their_own_sequences() -> None:
    """A translator's risk, each output scored by itself from a source without padding."""
    torch.manual_seed(0)
    model = testing.build(TINY["attention bilinear"]).double()
    source_BS = testing.some_tokens(3, 4, seed=3)
    mask_BS = torch.tensor([[True] * 4, [True] * 2 + [False] * 2, [True] * 3 + [False]])
    texts = [[4, 5, 6], [7], [8, 9]]
    batch = conditional_batch((source_BS, mask_BS), texts, boundary_id=2)
    config = RegimeConfig(
        regime="minimum_risk", num_candidates=3, sharpness=0.4, likelihood_weight=0.0
    )
    torch.manual_seed(5)
    outcome = training_objective(config, model, end_id=2)(batch, None)
    ours = gradients(model, outcome.loss)

    torch.manual_seed(5)
    state = model.condition(*batch.given)
    rows = [0, 0, 0, 1, 1, 1, 2, 2, 2]
    with torch.no_grad():
        drawn_RT, mask_RT = continuations(
            model, batch.tokens_BT[rows, 0], state.select(rows), 4, greedy=False, end_id=2
        )
    risk = torch.zeros((), dtype=torch.float64)
    for row, text in enumerate(texts):
        own = slice(3 * row, 3 * row + 3)
        drawn = zip(drawn_RT[own].tolist(), mask_RT[own].sum(dim=1).tolist(), strict=True)
        outputs = {(*text, 2)} | {tuple(y[:length]) for y, length in drawn}
        scores, costs = [], []
        for y in outputs:
            length = int(mask_BS[row].sum())
            after = model.condition(source_BS[row : row + 1, :length])
            logprob, token_B = torch.zeros((), dtype=torch.float64), torch.tensor([2])
            for said in y:
                logprobs_BV, after = model.step(token_B, after)
                logprob, token_B = logprob + logprobs_BV[0, said], torch.tensor([said])
            scores.append(0.4 * logprob)
            costs.append(1 - bleu(y, (*text, 2)))
        weights = torch.stack(scores).softmax(dim=0)
        risk = risk + (weights * torch.tensor(costs, dtype=torch.float64)).sum() / 3
    assert outcome.loss.item() == pytest.approx(risk.item(), rel=1e-6)
    assert_same(ours, gradients(model, risk))


def test_self_critical_training_climbs_the_expected_reward(
    model: RecurrentLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over all possible draws, its gradient is that of minus the expected reward."""
    batch = Batch(torch.tensor([[0, 1]]), torch.tensor([[1, 2]]))
    config = RegimeConfig(regime="self_critical", likelihood_weight=0.0, reward="edits")
    expected: dict[str, Tensor] = {}
    reference = torch.zeros((), dtype=torch.float64)
    mask_BT = torch.ones(1, 2, dtype=torch.bool)
    for y in itertools.product(range(VOCAB), repeat=2):
        said_BT = torch.tensor([y])
        logprob = -stepwise_nats(model, torch.tensor([[0, y[0]]]), said_BT)
        reference = reference - logprob.exp() * edits(y, [1, 2])

        def chosen(*_: Any, greedy: bool, said_BT: Tensor = said_BT, **__: Any) -> Any:
            return (torch.tensor([[1, 1]]) if greedy else said_BT), mask_BT

        monkeypatch.setattr(regimes, "continuations", chosen)
        loss = objective(config, model, batch, None).loss * 2  # it is a mean over two tokens
        for name, gradient in gradients(model, loss).items():
            weighted = logprob.exp().detach() * gradient
            expected[name] = expected.get(name, torch.zeros(())) + weighted
    assert_same(expected, gradients(model, reference))


def test_professor_forcing_trains_the_judge_and_fools_it(model: RecurrentLM, batch: Batch) -> None:
    torch.manual_seed(1)
    judge = Judge(5, 4).double()
    forced_BTH = torch.randn(6, 5, 5, dtype=torch.float64) + 1.0
    free_BTH = (torch.randn(6, 5, 5, dtype=torch.float64) - 1.0).requires_grad_()
    lengths_B = torch.tensor([5, 4, 3, 2, 1, 5])
    for _ in range(30):  # the judge comes to know the difference, well enough but not perfectly
        loss = judge.loss(forced_BTH, free_BTH, lengths_B, weight=0.0)
        with torch.no_grad():
            for name, gradient in gradients(judge, loss).items():
                judge.get_parameter(name).sub_(0.3 * gradient)
    forced_B, free_B = judge(forced_BTH, lengths_B), judge(free_BTH, lengths_B)
    accuracy = torch.cat([forced_B > 0, free_B <= 0]).double().mean()
    assert accuracy > 0.75
    free_BTH.grad = None
    ours = gradients(judge, judge.loss(forced_BTH, free_BTH, lengths_B, weight=2.0))
    seen = free_BTH.grad

    cross_entropy = F.binary_cross_entropy_with_logits
    judged = cross_entropy(judge(forced_BTH, lengths_B), torch.ones(6, dtype=torch.float64))
    judged = judged + cross_entropy(
        judge(free_BTH.detach(), lengths_B), torch.zeros(6, dtype=torch.float64)
    )
    if accuracy < 0.99:
        assert_same(ours, gradients(judge, judged))
    else:
        assert all(gradient.abs().max() == 0 for gradient in ours.values())
    fooled = cross_entropy(judge(free_BTH, lengths_B), torch.ones(6, dtype=torch.float64))
    (wanted,) = torch.autograd.grad(2 * fooled, free_BTH)
    assert seen is not None
    torch.testing.assert_close(seen, wanted)

    padded = free_BTH.detach().clone()
    padded[1, 4:] = 99.0
    torch.testing.assert_close(judge(padded, lengths_B), judge(free_BTH.detach(), lengths_B))


def test_professor_forcing_is_teacher_forcing_and_a_verdict(
    model: RecurrentLM, batch: Batch
) -> None:
    judge = Judge(5, 4).double()
    plain = objective(RegimeConfig(), model, batch, None)
    config = RegimeConfig(regime="professor_forcing")
    torch.manual_seed(2)
    outcome = objective(config, model, batch, None, judge=judge)
    torch.manual_seed(2)
    own_BT = mixed_inputs(model, batch.tokens_BT, model.initial_state(3), 0.0)
    forced, _ = model.hidden(batch.tokens_BT, model.initial_state(3))
    free, _ = model.hidden(own_BT, model.initial_state(3))
    verdict = judge.loss(forced.raw_BTH, free.raw_BTH, weight=1.0)
    assert outcome.loss.item() == pytest.approx((plain.loss + verdict).item())
    assert outcome.nats.item() == pytest.approx(plain.nats.item())


def test_professor_forcing_has_the_gradient_of_the_stepwise_computation(
    model: RecurrentLM, batch: Batch
) -> None:
    """Forced and free vectors gathered one token at a time, with a tape; the judge's as well."""
    torch.manual_seed(6)
    judge = Judge(5, 4).double()
    for parameter in judge.parameters():
        torch.nn.init.normal_(parameter)
    with torch.no_grad():  # a judge who is not always fooled: two of the three are known as forced
        seen_B = judge(model.hidden(batch.tokens_BT, model.initial_state(3))[0].raw_BTH)
        judge.classifier[2].bias -= seen_B.median() - 1e-3
    both = torch.nn.ModuleList([model, judge])
    config = RegimeConfig(regime="professor_forcing", judge_weight=0.7)
    verdicts = []
    for seed in range(20):
        torch.manual_seed(seed)
        outcome = objective(config, model, batch, None, judge=judge)
        ours = gradients(both, outcome.loss)

        torch.manual_seed(seed)
        torch.rand(batch.tokens_BT.shape)  # the coins, which all say: an own word
        forced, free = [], []
        state, own_state = model.initial_state(3), model.initial_state(3)
        total, own_B = torch.zeros((), dtype=torch.float64), batch.tokens_BT[:, 0]
        for t in range(5):
            hidden, _ = model.hidden(batch.tokens_BT[:, t : t + 1], state)
            forced.append(hidden.raw_BTH)
            logprobs_BV, state = model.step(batch.tokens_BT[:, t], state)
            total = total - logprobs_BV.gather(1, batch.targets_BT[:, t : t + 1]).sum()
            hidden, _ = model.hidden(own_B[:, None], own_state)
            free.append(hidden.raw_BTH)
            logprobs_BV, own_state = model.step(own_B, own_state)
            if t < 4:
                own_B = torch.multinomial(logprobs_BV.detach().float().exp(), 1)[:, 0]
        forced_BTH, free_BTH = torch.cat(forced, dim=1), torch.cat(free, dim=1)
        forced_B, free_B = judge(forced_BTH.detach()), judge(free_BTH.detach())
        right = ((forced_B > 0).sum() + (free_B <= 0).sum()).item() / 6
        verdicts.append(right)
        loss = total / 15
        if right < 0.99:
            loss = loss + F.softplus(-forced_B).mean() + F.softplus(free_B).mean()
        expected = gradients(both, loss)
        if right > 0.75:  # the model learns from the judge, who is a constant to it
            fooling = 0.7 * F.softplus(-judge(free_BTH)).mean()
            weights = dict(model.named_parameters())
            more = torch.autograd.grad(fooling, list(weights.values()), allow_unused=True)
            for name, gradient in zip(weights, more, strict=True):
                if gradient is not None:
                    expected[f"0.{name}"] += gradient
        assert_same(ours, expected)
    assert min(verdicts) <= 0.75 < max(verdicts), "both kinds of verdict have been tried"


def test_rewards_worked_by_hand() -> None:
    assert bleu([1, 2, 3, 4], [1, 2, 3, 4]) == 1
    assert bleu([5], [1, 2]) == 0
    assert bleu([], []) == edits([], []) == 1
    assert bleu([], [1]) == edits([1], []) == 0
    # 1-grams 2/3, 2-grams (1+1)/(2+1), 3-grams (0+1)/(1+1); as long as the other
    assert bleu([1, 2, 9], [1, 2, 3]) == pytest.approx((2 / 3 * 2 / 3 * 1 / 2) ** (1 / 3))
    # a part of the truth: 1-grams 2/2, 2-grams 2/2, 3-grams (0+1)/(0+1), times exp(1 - 3/2)
    assert bleu([1, 2], [1, 2, 3]) == pytest.approx(math.exp(-0.5))
    assert edits([1, 2, 3], [1, 3]) == pytest.approx(2 / 3)
    assert edits([1, 2], [2, 1]) == 0
    assert edits([1, 2, 3, 4], [1, 9, 3, 4]) == pytest.approx(3 / 4)


@pytest.mark.parametrize(
    "regime",
    ["scheduled_sampling", "free_running", "professor_forcing", "minimum_risk", "self_critical"],
)
def test_every_regime_respects_the_mask(model: RecurrentLM, regime: Any) -> None:
    """What stands behind a row's end changes nothing."""
    config = RegimeConfig(regime=regime)
    judge = Judge(5, 4).double()
    mask_BT = torch.tensor([[True] * 4, [True, True, False, False]])
    losses = []
    for filler in (0, 2):
        tokens_BT = torch.tensor([[0, 1, 2, 1], [0, 2, filler, filler]])
        targets_BT = torch.tensor([[1, 2, 1, END], [2, END, filler, filler]])
        batch = Batch(tokens_BT, targets_BT, mask_BT)
        torch.manual_seed(4)
        outcome = objective(config, model, batch, None, progress=0.0, end_id=END, judge=judge)
        losses.append((outcome.loss.item(), outcome.nats.item()))
    assert losses[0] == pytest.approx(losses[1])


def test_the_state_is_carried_on(model: RecurrentLM, batch: Batch) -> None:
    for regime in ("teacher_forcing", "professor_forcing", "minimum_risk", "self_critical"):
        outcome = objective(
            RegimeConfig(regime=regime), model, batch, None, judge=Judge(5, 4).double()
        )
        _, wanted = model.hidden(batch.tokens_BT, model.initial_state(3))
        assert isinstance(outcome.state, State)
        for ours, theirs in zip(
            outcome.state.flatten().values(), wanted.flatten().values(), strict=True
        ):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    "regime",
    ["scheduled_sampling", "free_running", "professor_forcing", "minimum_risk", "self_critical"],
)
def test_a_translator_learns_under_every_regime(regime: Any) -> None:
    """Texts that depend on something are scored from it, and no state is carried on."""
    torch.manual_seed(0)
    model = testing.build(TINY["input feeding"]).train()
    source_BS = testing.some_tokens(2, 4, seed=3)
    batch = conditional_batch(
        (source_BS, torch.ones_like(source_BS, dtype=torch.bool)), [[4, 5, 6], [7]], boundary_id=2
    )
    few = {"num_candidates": 2} if regime == "minimum_risk" else {}
    config = RegimeConfig(regime=regime, **few)
    outcome = training_objective(config, model, end_id=2)(batch, None)
    outcome.loss.backward()  # type: ignore[no-untyped-call]
    assert outcome.state is None
    assert outcome.num_targets == 6
    encoder = [p.grad for p in model.encoder.parameters()]
    assert all(gradient is not None and bool(gradient.isfinite().all()) for gradient in encoder)
    assert any(bool(gradient.abs().sum() > 0) for gradient in encoder if gradient is not None)


@pytest.mark.parametrize("regime", ["minimum_risk", "self_critical", "professor_forcing"])
def test_rows_of_padding_do_not_count(regime: str, model: RecurrentLM, batch: Batch) -> None:
    """Batches of lines have them when lines run out."""
    mask_BT = torch.ones_like(batch.targets_BT, dtype=torch.bool)
    whole = Batch(batch.tokens_BT, batch.targets_BT, mask_BT)
    more = torch.zeros_like(batch.tokens_BT[:1])
    tokens_BT, targets_BT = (
        torch.cat([each, more]) for each in (batch.tokens_BT, whole.targets_BT)
    )
    padded = Batch(tokens_BT, targets_BT, torch.cat([mask_BT, more.bool()]))
    weight = {} if regime == "professor_forcing" else {"likelihood_weight": 0.25}
    config = RegimeConfig(regime=regime, **weight)  # type: ignore[arg-type]
    judge = Judge(model.head.hidden_size, 4).double()
    losses = []
    for some in (whole, padded):
        torch.manual_seed(1)
        losses.append(objective(config, model, some, None, end_id=END, judge=judge).loss.item())
    if regime == "professor_forcing":  # its free-running inputs are drawn for all rows
        assert math.isfinite(losses[1])
    else:
        assert losses[1] == pytest.approx(losses[0])
