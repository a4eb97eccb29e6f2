"""Training regimes other than teacher forcing: what a decoder reads, and what it learns from.

With teacher forcing a model reads the true tokens in training and its own when it generates, so it
never learns to continue after its own mistakes (exposure bias). Each regime here closes that gap in
another way. They work with any neural language model, including a decoder with its
source in its state.

Regimes that add a term to teacher forcing report the likelihood under teacher forcing, so that
their curves can be compared; regimes that change the input report the loss under that input.

B batch, T time steps, K candidates, R outputs of all sequences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elman.batches.batch import Batch
from elman.models.interface import NeuralLanguageModel
from elman.nn.state import State
from elman.objectives.judge import Judge
from elman.objectives.likelihood import Texts, first_state, likelihood, scored
from elman.objectives.objective_config import RegimeConfig
from elman.objectives.outcome import Outcome
from elman.objectives.rewards import REWARDS
from elman.objectives.rollout import continuations, mixed_inputs

STEEPNESS = 12.0
"""The inverse sigmoid falls from 0.998 to 0.002 during training."""


def training_objective(
    config: RegimeConfig, model: NeuralLanguageModel, end_id: int | None = None
) -> Callable[[Texts, State | None], Outcome]:
    """Return the objective that `config` describes; teacher forcing is `likelihood` itself.

    Outputs end with `end_id`; without one, at the length of the batch. The judge of professor
    forcing is created on the model's device.
    """
    if config.is_teacher_forcing:
        return partial(likelihood, config, model)
    judge = None
    if config.regime == "professor_forcing":
        device = next(model.head.parameters()).device
        judge = Judge(model.head.hidden_size, config.judge_size).to(device)
    return Regime(config, model, end_id, judge)


def truth_share(config: RegimeConfig, progress: float) -> float:
    """Return the probability of reading the true token, at `progress` from 0 to 1.

    The three curricula of Bengio and others (2015), scaled so that each starts at 1 and has fallen
    when training ends: 1 - c i; k^i; and k / (k + exp(i / k)), a logistic curve.
    """
    if config.regime == "free_running":
        return 0.0
    if config.curriculum == "linear":
        share = 1 - progress
    elif config.curriculum == "exponential":
        share = math.exp(-STEEPNESS / 2 * progress)
    else:
        share = 1 / (1 + math.exp(STEEPNESS * (progress - 0.5)))
    return max(config.least_truth, share)


@dataclass
class Regime:
    """An objective under any regime except teacher forcing.

    The training loop calls `begin_update` and trains the `modules` beside the model.
    """

    config: RegimeConfig
    model: NeuralLanguageModel
    end_id: int | None = None
    judge: Judge | None = None
    progress: float = 0.0
    """The finished part of the training, from 0 to 1."""

    def begin_update(self, progress: float) -> None:
        self.progress = progress

    def modules(self) -> Mapping[str, nn.Module]:
        return {} if self.judge is None else {"judge": self.judge}

    def __call__(self, batch: Texts, state: State | None = None) -> Outcome:
        if state is None:
            state = first_state(self.model, batch)
        if not self.config.reads_truth:
            return self._mixed(batch, state)
        if self.judge is not None:
            return self._judged(batch, state, self.judge)
        return self._rewarded(batch, state)

    def _mixed(self, batch: Texts, state: State) -> Outcome:
        """Score the true tokens after a mixture of true and sampled ones.

        The state that is carried on is the mixture's, too.
        """
        truth = truth_share(self.config, self.progress)
        inputs_BT = mixed_inputs(self.model, batch.tokens_BT, state, truth)
        return likelihood(self.config, self.model, replace(batch, tokens_BT=inputs_BT), state)

    def _judged(self, batch: Texts, state: State, judge: Judge) -> Outcome:
        """Add the judge's loss to teacher forcing."""
        forced, after = self.model.hidden(batch.tokens_BT, state)
        outcome = scored(self.config, self.model, batch, forced, after)
        own_BT = mixed_inputs(self.model, batch.tokens_BT, state, 0.0)
        free, _ = self.model.hidden(own_BT, state)
        forced_BTH, free_BTH, lengths_B = forced.raw_BTH, free.raw_BTH, None
        if batch.mask_BT is not None:
            lengths_B = batch.mask_BT.sum(dim=1)
            rows_B = lengths_B > 0
            forced_BTH, free_BTH, lengths_B = (
                forced_BTH[rows_B],
                free_BTH[rows_B],
                lengths_B[rows_B],
            )
        verdict = judge.loss(forced_BTH, free_BTH, lengths_B, weight=self.config.judge_weight)
        return replace(outcome, loss=outcome.loss + verdict)

    def _rewarded(self, batch: Texts, state: State) -> Outcome:
        """Mix the expected cost of whole outputs with the likelihood of the true one."""
        weight = self.config.likelihood_weight
        with torch.set_grad_enabled(weight > 0 and torch.is_grad_enabled()):
            outcome = likelihood(self.config, self.model, batch, state)
        by_candidates = self.config.regime == "minimum_risk"
        risk = (self._minimum_risk if by_candidates else self._self_critical)(
            *_with_targets(batch, state)
        )
        return replace(outcome, loss=weight * outcome.loss + (1 - weight) * risk)

    def _minimum_risk(self, batch: Texts, state: State) -> Tensor:
        """Return the mean of sum_k Q(y_k) cost(y_k), with Q(y) ~ P(y)^sharpness over candidates.

        Shen and others (2016). Candidates are samples and the true output, without duplicates.
        """
        said_RT, mask_RT, rows_R = self._candidates(batch, state)
        first_R1 = batch.tokens_BT[:, :1][rows_R]
        logprobs_R = self._logprobs(first_R1, said_RT, mask_RT, state.select(rows_R))
        reward, wanted = REWARDS[self.config.reward], _lists(batch.targets_BT, _mask(batch))
        costs: list[float] = []
        present: list[bool] = []
        seen: list[set[tuple[int, ...]]] = [set() for _ in wanted]
        for row, said in zip(rows_R.tolist(), _lists(said_RT, mask_RT), strict=True):
            costs.append(1 - reward(said, wanted[row]))
            present.append(tuple(said) not in seen[row])
            seen[row].add(tuple(said))
        device = logprobs_R.device
        logprobs_BK = logprobs_R.view(len(wanted), -1)
        costs_BK = torch.tensor(costs, device=device).view_as(logprobs_BK)
        present_BK = torch.tensor(present, device=device).view_as(logprobs_BK)
        scores_BK = (self.config.sharpness * logprobs_BK).masked_fill(~present_BK, -math.inf)
        return (scores_BK.softmax(dim=1) * costs_BK).sum(dim=1).mean()

    def _candidates(self, batch: Texts, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """Return (R, T) the true output and the samples of each sequence, their (R, T) mask, and
        (R,) the row that each belongs to.
        """
        number, length = batch.targets_BT.shape
        sequences_B = torch.arange(number, device=batch.targets_BT.device)
        rows_R = sequences_B.repeat_interleave(self.config.num_candidates)
        first_R = batch.tokens_BT[rows_R, 0]
        drawn_RT, mask_RT = self._continue(first_R, state.select(rows_R), length, greedy=False)
        short = (0, length - drawn_RT.shape[1])
        parts = [
            torch.cat([true_BT[:, None], F.pad(drawn, short).view(number, -1, length)], dim=1)
            for true_BT, drawn in ((batch.targets_BT, drawn_RT), (_mask(batch), mask_RT))
        ]
        rows_R = sequences_B.repeat_interleave(self.config.num_candidates + 1)
        return parts[0].flatten(0, 1), parts[1].flatten(0, 1), rows_R

    def _self_critical(self, batch: Texts, state: State) -> Tensor:
        """Return -(reward of a sample - reward of the greedy output) * log P(sample), per token.

        REINFORCE with the model's own greedy output as the baseline (Rennie and others 2017).
        """
        reward, wanted = REWARDS[self.config.reward], _lists(batch.targets_BT, _mask(batch))
        first_B, length = batch.tokens_BT[:, 0], batch.targets_BT.shape[1]
        drawn_BT, mask_BT = self._continue(first_B, state, length, greedy=False)
        greedy_BT, greedy_mask_BT = self._continue(first_B, state, length, greedy=True)
        logprobs_B = self._logprobs(first_B[:, None], drawn_BT, mask_BT, state)
        advantages = [
            reward(drawn, true) - reward(greedy, true)
            for drawn, greedy, true in zip(
                _lists(drawn_BT, mask_BT), _lists(greedy_BT, greedy_mask_BT), wanted, strict=True
            )
        ]
        advantages_B = torch.tensor(advantages, device=logprobs_B.device)
        return -(advantages_B * logprobs_B).sum() / mask_BT.sum().clamp(min=1)

    def _continue(
        self, first_B: Tensor, state: State, length: int, *, greedy: bool
    ) -> tuple[Tensor, Tensor]:
        return continuations(self.model, first_B, state, length, greedy=greedy, end_id=self.end_id)

    def _logprobs(self, first_B1: Tensor, said_BT: Tensor, mask_BT: Tensor, state: State) -> Tensor:
        """Return the (B,) log probabilities of outputs that follow the tokens `first_B1`."""
        inputs_BT = torch.cat([first_B1, said_BT[:, :-1]], dim=1)
        logprobs_BT, _ = self.model.logprobs(inputs_BT, said_BT, state)
        return (logprobs_BT * mask_BT).sum(dim=1)


def _with_targets(batch: Texts, state: State) -> tuple[Texts, State]:
    """Leave out the rows that are padding alone: a batch of lines may have fewer than its size."""
    if batch.mask_BT is None or bool((rows_B := batch.mask_BT.any(dim=1)).all()):
        return batch, state
    assert isinstance(batch, Batch)  # texts that are conditioned have at least their end
    rows = rows_B.nonzero().flatten()
    kept = replace(
        batch,
        tokens_BT=batch.tokens_BT[rows],
        targets_BT=batch.targets_BT[rows],
        mask_BT=batch.mask_BT[rows],
    )
    return kept, state.select(rows)


def _mask(batch: Texts) -> Tensor:
    if batch.mask_BT is not None:
        return batch.mask_BT
    return torch.ones_like(batch.targets_BT, dtype=torch.bool)


def _lists(tokens_BT: Tensor, mask_BT: Tensor) -> list[list[int]]:
    lengths = mask_BT.sum(dim=1).tolist()
    return [row[:length] for row, length in zip(tokens_BT.tolist(), lengths, strict=True)]
