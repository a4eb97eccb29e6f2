"""Teacher forcing against the same sums written out."""

from __future__ import annotations

import pytest
import torch

from elman import testing
from elman.batches.batch import Batch
from elman.batches.conditional import conditional_batch
from elman.models.interface import Hidden
from elman.models.recurrent import RecurrentLM, RecurrentLMConfig
from elman.objectives.likelihood import likelihood, penalties, scored
from elman.objectives.objective_config import LikelihoodConfig, RegimeConfig
from elman.objectives.regimes import training_objective
from tiny_models import TINY

V = 7


@pytest.fixture
def model() -> RecurrentLM:
    torch.manual_seed(0)
    return RecurrentLMConfig(hidden_size=5, embedding_size=4).build(V)


def batch(rows: int = 2, length: int = 6, mask: bool = False) -> Batch:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(V, (rows, length + 1), generator=generator)
    keep = torch.rand(rows, length, generator=generator) < 0.6 if mask else None
    return Batch(ids[:, :-1], ids[:, 1:], keep)


def test_the_loss_is_the_mean_surprisal_of_the_targets(model: RecurrentLM) -> None:
    given = batch()
    outcome = likelihood(LikelihoodConfig(), model, given, None)
    hidden, _ = model.hidden(given.tokens_BT, model.initial_state(2))
    logprobs_BTV = model.head.logprobs_all(hidden.dropped_BTH)
    picked_BT = logprobs_BTV.gather(2, given.targets_BT[:, :, None])[:, :, 0]
    torch.testing.assert_close(outcome.loss, -picked_BT.mean())
    torch.testing.assert_close(outcome.nats, -picked_BT.sum().detach())
    assert outcome.num_targets == 12
    assert not outcome.nats.requires_grad


def test_masked_targets_do_not_count(model: RecurrentLM) -> None:
    given = batch(mask=True)
    assert given.mask_BT is not None
    logprobs_BT, _ = model.logprobs(given.tokens_BT, given.targets_BT, model.initial_state(2))
    outcome = likelihood(LikelihoodConfig(), model, given, None)
    torch.testing.assert_close(outcome.loss, -logprobs_BT[given.mask_BT].mean())
    assert outcome.num_targets == int(given.mask_BT.sum())


def test_the_state_is_carried_from_chunk_to_chunk(model: RecurrentLM) -> None:
    whole = batch(length=6)
    outcome = likelihood(LikelihoodConfig(), model, whole, None)
    first = Batch(whole.tokens_BT[:, :4], whole.targets_BT[:, :4])
    second = Batch(whole.tokens_BT[:, 4:], whole.targets_BT[:, 4:])
    one = likelihood(LikelihoodConfig(), model, first, None)
    two = likelihood(LikelihoodConfig(), model, second, one.state)
    torch.testing.assert_close(one.nats + two.nats, outcome.nats)


def test_penalties_are_those_of_awd_lstm() -> None:
    generator = torch.Generator().manual_seed(2)
    dropped, raw = (torch.randn(2, 5, 3, generator=generator) for _ in range(2))
    config = LikelihoodConfig(activation_penalty=2.0, change_penalty=0.5)
    # As their authors wrote them.
    expected = 2.0 * dropped.pow(2).mean() + 0.5 * (raw[:, 1:] - raw[:, :-1]).pow(2).mean()
    torch.testing.assert_close(penalties(config, Hidden(dropped, raw), None), expected)


def test_penalties_leave_out_what_is_masked() -> None:
    generator = torch.Generator().manual_seed(3)
    dropped, raw = (torch.randn(1, 5, 3, generator=generator) for _ in range(2))
    mask_BT = torch.tensor([[True, True, True, False, False]])
    config = LikelihoodConfig(activation_penalty=2.0, change_penalty=0.5)
    torch.testing.assert_close(
        penalties(config, Hidden(dropped, raw), mask_BT),
        penalties(config, Hidden(dropped[:, :3], raw[:, :3]), None),
    )


def test_penalties_enter_the_loss_but_not_the_nats(model: RecurrentLM) -> None:
    plain = likelihood(LikelihoodConfig(), model, batch(), None)
    penalised = likelihood(LikelihoodConfig(activation_penalty=1.0), model, batch(), None)
    assert penalised.loss > plain.loss
    torch.testing.assert_close(penalised.nats, plain.nats)


@pytest.mark.parametrize("masked", [False, True])
def test_label_smoothing_is_torchs(masked: bool) -> None:
    model = testing.build(TINY["lstm"])
    tokens_BT = testing.some_tokens(3, 7)
    mask_BT = testing.some_tokens(3, 6, seed=2) > 5 if masked else None
    some = Batch(tokens_BT[:, :-1], tokens_BT[:, 1:], mask_BT)
    outcome = likelihood(LikelihoodConfig(label_smoothing=0.2), model, some, None)
    hidden, _ = model.hidden(some.tokens_BT, model.initial_state(3))
    logprobs_BTV = model.head.logprobs_all(hidden.dropped_BTH)
    counted = slice(None) if mask_BT is None else mask_BT
    logprobs_NV = logprobs_BTV[counted].flatten(0, -2)
    targets_N = some.targets_BT[counted].flatten()
    expected = torch.nn.functional.cross_entropy(logprobs_NV, targets_N, label_smoothing=0.2)
    torch.testing.assert_close(outcome.loss, expected)
    plain = likelihood(LikelihoodConfig(), model, some, None)
    torch.testing.assert_close(outcome.nats, plain.nats)


def test_smoothed_losses_over_all_positions_are_those_that_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = testing.build(TINY["lstm reference"]).double()
    tokens_BT = testing.some_tokens(3, 7)
    mask_BT = testing.some_tokens(3, 6, seed=2) > 5
    some = Batch(tokens_BT[:, :-1], tokens_BT[:, 1:], mask_BT)
    hidden, state = model.hidden(some.tokens_BT, model.initial_state(3))
    config = LikelihoodConfig(label_smoothing=0.2)
    expected = scored(config, model, some, hidden, state)
    # As on a GPU, where selecting positions would mean waiting for it.
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    found = scored(config, model, some, hidden, state)
    torch.testing.assert_close((found.loss, found.nats), (expected.loss, expected.nats))


def test_given_what_texts_depend_on() -> None:
    """The loss is that of the texts after the condition, and nothing is carried on."""
    model = testing.build(TINY["attention additive"])
    source_BS = testing.some_tokens(2, 4, seed=3)
    mask_BS = torch.tensor([[True] * 4, [True, True, False, False]])
    some = conditional_batch((source_BS, mask_BS), [[4, 5, 6], [7]], boundary_id=2)
    outcome = training_objective(RegimeConfig(), model)(some, None)
    state = model.condition(source_BS, mask_BS)
    logprobs_BT, _ = model.logprobs(some.tokens_BT, some.targets_BT, state)
    torch.testing.assert_close(outcome.nats, -logprobs_BT[some.mask_BT].sum())
    torch.testing.assert_close(outcome.loss, outcome.nats / 6)
    assert outcome.num_targets == 6
    assert outcome.state is None
