"""The training regimes: what a decoder reads, and what it is judged by, while it learns.

Teacher forcing lets the model read the truth; at work it reads itself, and never learnt to go on
from its own mistakes (exposure bias). The other regimes each close that gap another way. All of
them are for anything with the interface of a neural language model, a translator's decoder with its
source in the state as well as a language model.

Regimes that add something to teacher forcing also report the likelihood under it, so that their
curves can be laid over its own; those that change what is read report what came of that.

B batch, T time steps, K candidates, R outputs of all sequences.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from elman.batches.conditional import ConditionalBatch
from elman.models.interface import ConditionalModel, NeuralLanguageModel
from elman.nn.state import State
from elman.objectives.judge import Judge
from elman.objectives.likelihood import Outcome, Texts, likelihood, scored
from elman.objectives.objective_config import ObjectiveConfig
from elman.objectives.rewards import REWARDS
from elman.objectives.rollout import continuations, mixed_inputs

STEEPNESS = 12.0
"""The inverse sigmoid falls from 0.998 to 0.002 in the course of training."""


def truth_share(config: ObjectiveConfig, progress: float) -> float:
    """The probability that a token read is the true one, at `progress` from 0 to 1.

    The three curricula of Bengio and others (2015), with time measured so that each begins at 1 and
    has come down when training ends: 1 - c i; k^i; and k / (k + exp(i / k)), which is a logistic
    curve.
    """
    least = config.least_truth
    if config.regime == "free_running":
        return 0.0
    if config.regime != "scheduled_sampling":
        return 1.0
    if config.curriculum == "linear":
        share = 1 - progress
    elif config.curriculum == "exponential":
        share = math.exp(-STEEPNESS / 2 * progress)
    else:
        share = 1 / (1 + math.exp(STEEPNESS * (progress - 0.5)))
    return max(least, share)


@dataclass
class Regime:
    """The objective of a decoder: a batch and a state become a loss, as `config` says.

    `progress`, how much of the training is done from 0 to 1, is told by whoever trains. An output
    ends with `end_id`, or where there is none at the length of the batch. `judge` is professor
    forcing's: it is trained with the model, and not kept.
    """

    config: ObjectiveConfig
    model: NeuralLanguageModel
    end_id: int | None = None
    judge: Judge | None = None
    progress: float = 0.0

    @classmethod
    def of(
        cls, config: ObjectiveConfig, model: NeuralLanguageModel, end_id: int | None = None
    ) -> Regime:
        """The regime for `model`, with a fresh judge on its device where it takes one."""
        regime = cls(config, model, end_id)
        if config.regime == "professor_forcing":
            device = next(model.head.parameters()).device
            regime.judge = Judge(model.head.hidden_size, config.judge_size).to(device)
        return regime

    @property
    def is_teacher_forcing(self) -> bool:
        """Whether the truth alone is read, with a loss to which the progress is nothing."""
        return self.config.regime == "teacher_forcing"

    @property
    def reads_the_truth(self) -> bool:
        """Whether what is reported is the likelihood of the text."""
        return self.config.regime not in ("scheduled_sampling", "free_running")

    def __call__(self, batch: Texts, state: State | None = None) -> Outcome:
        """What `batch` gives, from `state`, the initial one, or what its texts depend on."""
        if isinstance(batch, ConditionalBatch):
            assert isinstance(self.model, ConditionalModel)
            outcome = self._outcome(batch, self.model.condition(*batch.given))
            return replace(outcome, state=None)  # nothing is carried on: each text stands alone
        return self._outcome(batch, state)

    def _outcome(self, batch: Texts, state: State | None) -> Outcome:
        config, model = self.config, self.model
        if state is None:
            state = model.initial_state(batch.num_rows)
        if not self.reads_the_truth:
            return _own_words(config, model, batch, state, truth_share(config, self.progress))
        if self.judge is not None:
            return _professor_forcing(config, model, batch, state, self.judge)
        if config.regime in RISKS:
            return _decoding_based(config, model, batch, state, self.end_id)
        return likelihood(config, model, batch, state)


def _own_words(
    config: ObjectiveConfig, model: NeuralLanguageModel, batch: Texts, state: State, truth: float
) -> Outcome:
    """The likelihood of the true tokens after a mixture of true and own ones.

    The state that is carried on is the mixture's: the model must live with what it has said.
    """
    inputs_BT = mixed_inputs(model, batch.tokens_BT, state, truth)
    return likelihood(config, model, replace(batch, tokens_BT=inputs_BT), state)


def _professor_forcing(
    config: ObjectiveConfig, model: NeuralLanguageModel, batch: Texts, state: State, judge: Judge
) -> Outcome:
    """Teacher forcing, and a judge who must not see from the hidden vectors who was speaking."""
    forced, after = model.hidden(batch.tokens_BT, state)
    outcome = scored(config, model, batch, forced, after)
    own_BT = mixed_inputs(model, batch.tokens_BT, state, 0.0)
    free, _ = model.hidden(own_BT, state)
    lengths_B = None if batch.mask_BT is None else batch.mask_BT.sum(dim=1)
    verdict = judge.loss(forced.raw_BTH, free.raw_BTH, lengths_B, weight=config.judge_weight)
    return replace(outcome, loss=outcome.loss + verdict)


def _decoding_based(
    config: ObjectiveConfig,
    model: NeuralLanguageModel,
    batch: Texts,
    state: State,
    end_id: int | None,
) -> Outcome:
    """Expected cost of whole outputs, mixed with the likelihood of the true one."""
    weight = config.likelihood_weight
    with torch.set_grad_enabled(weight > 0 and torch.is_grad_enabled()):
        outcome = likelihood(config, model, batch, state)
    risk = RISKS[config.regime](config, model, batch, state, end_id)
    return replace(outcome, loss=weight * outcome.loss + (1 - weight) * risk)


def minimum_risk(
    config: ObjectiveConfig,
    model: NeuralLanguageModel,
    batch: Texts,
    state: State,
    end_id: int | None,
) -> Tensor:
    """The mean over sequences of sum_k Q(y_k) cost(y_k), Q(y) ~ P(y)^sharpness over candidates.

    Shen and others (2016). Candidates are draws from the model and the true output; one drawn twice
    counts once.
    """
    said_RT, mask_RT, rows_R = _candidates(config, model, batch, state, end_id)
    first_R1 = batch.tokens_BT[:, :1][rows_R]
    logprobs_R = sequence_logprobs(model, first_R1, said_RT, mask_RT, state.select(rows_R))
    reward, wanted = REWARDS[config.reward], _lists(batch.targets_BT, _mask(batch))
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
    scores_BK = (config.sharpness * logprobs_BK).masked_fill(~present_BK, -math.inf)
    return (scores_BK.softmax(dim=1) * costs_BK).sum(dim=1).mean()


def _candidates(
    config: ObjectiveConfig,
    model: NeuralLanguageModel,
    batch: Texts,
    state: State,
    end_id: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(R, T) for each sequence the true output and then the drawn ones, all drawn side by side;
    their mask; and (R,) which sequence each is of.
    """
    number, length = batch.targets_BT.shape
    sequences_B = torch.arange(number, device=batch.targets_BT.device)
    rows_BK = sequences_B[:, None].expand(-1, config.num_candidates)
    with torch.no_grad():
        rows_R = rows_BK.flatten()
        drawn_RT, mask_RT = continuations(
            model,
            batch.tokens_BT[rows_R, 0],
            state.select(rows_R),
            length,
            greedy=False,
            end_id=end_id,
        )
    short = (0, length - drawn_RT.shape[1])
    parts = [
        torch.cat([true_BT[:, None], F.pad(drawn, short).view(number, -1, length)], dim=1)
        for true_BT, drawn in ((batch.targets_BT, drawn_RT), (_mask(batch), mask_RT))
    ]
    rows_BK = sequences_B[:, None].expand(-1, config.num_candidates + 1)
    return parts[0].flatten(0, 1), parts[1].flatten(0, 1), rows_BK.flatten()


def self_critical(
    config: ObjectiveConfig,
    model: NeuralLanguageModel,
    batch: Texts,
    state: State,
    end_id: int | None,
) -> Tensor:
    """-(reward of a draw - reward of the greedy output) * log P(draw), a token's mean.

    REINFORCE with the model's own greedy decoding as its baseline (Rennie and others 2017): what
    beats it becomes likelier, what falls short less so.
    """
    reward, wanted = REWARDS[config.reward], _lists(batch.targets_BT, _mask(batch))
    drawn_BT, mask_BT = _continue(model, batch, state, greedy=False, end_id=end_id)
    greedy_BT, greedy_mask_BT = _continue(model, batch, state, greedy=True, end_id=end_id)
    logprobs_B = sequence_logprobs(model, batch.tokens_BT[:, :1], drawn_BT, mask_BT, state)
    advantages = [
        reward(drawn, true) - reward(greedy, true)
        for drawn, greedy, true in zip(
            _lists(drawn_BT, mask_BT), _lists(greedy_BT, greedy_mask_BT), wanted, strict=True
        )
    ]
    advantages_B = torch.tensor(advantages, device=logprobs_B.device)
    return -(advantages_B * logprobs_B).sum() / mask_BT.sum().clamp(min=1)


Risk = Callable[[ObjectiveConfig, NeuralLanguageModel, Texts, State, int | None], Tensor]
RISKS: dict[str, Risk] = {"minimum_risk": minimum_risk, "self_critical": self_critical}


def sequence_logprobs(
    model: NeuralLanguageModel, first_B1: Tensor, said_BT: Tensor, mask_BT: Tensor, state: State
) -> Tensor:
    """(B,) log probability of each output, read after the first token of its sequence."""
    inputs_BT = torch.cat([first_B1, said_BT[:, :-1]], dim=1)
    logprobs_BT, _ = model.logprobs(inputs_BT, said_BT, state)
    return (logprobs_BT * mask_BT).sum(dim=1)


def _continue(
    model: NeuralLanguageModel, batch: Texts, state: State, *, greedy: bool, end_id: int | None
) -> tuple[Tensor, Tensor]:
    length = batch.targets_BT.shape[1]
    return continuations(model, batch.tokens_BT[:, 0], state, length, greedy=greedy, end_id=end_id)


def _mask(batch: Texts) -> Tensor:
    if batch.mask_BT is not None:
        return batch.mask_BT
    return torch.ones_like(batch.targets_BT, dtype=torch.bool)


def _lists(tokens_BT: Tensor, mask_BT: Tensor) -> list[list[int]]:
    lengths = mask_BT.sum(dim=1).tolist()
    return [row[:length] for row, length in zip(tokens_BT.tolist(), lengths, strict=True)]
