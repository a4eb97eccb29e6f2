"""Beam search: the most probable continuation as a whole, rather than token by token.

The K best unfinished hypotheses advance together, one batch row each; picking survivors is
`state[rows]`. A finished hypothesis leaves the beam and waits among the results, so it does not
crowd out the others.

Hypotheses of different lengths are compared by log P / ((5 + length) / 6) ^ length_penalty (Wu and
others, 2016), where the length counts generated tokens, the end token included. The search ends
when no unfinished hypothesis can still overtake: log P only falls, and the divisor is largest at
`max_tokens`.

K beam, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from elman.base.errors import ElmanError
from elman.decode.config import DecodeConfig
from elman.decode.prefix import prefill, reading
from elman.decode.processors import bias
from elman.models.interface import LanguageModel


@dataclass(frozen=True)
class Hypothesis:
    """One continuation, and how good it is."""

    tokens: tuple[int, ...]
    """The generated ids, with the end token where there is one."""
    logprob: float
    """The log probability (natural) of all of them together."""
    score: float
    """The same after length normalisation: what the search maximises."""
    finish_reason: str
    """`stop` after an end token, `length` at `max_tokens`."""


def beam_search(
    model: LanguageModel,
    prompt: Sequence[int],
    config: DecodeConfig,
    *,
    boundary_id: int,
    end_ids: Collection[int] = frozenset(),
) -> list[Hypothesis]:
    """The `config.num_samples` best continuations of `prompt` that the beam finds."""
    logprobs_KV, state = prefill(model, [prompt], boundary_id=boundary_id)
    device = logprobs_KV.device
    ends = torch.tensor(sorted(end_ids), dtype=torch.long, device=device)
    total_K = torch.zeros(1, dtype=torch.float64, device=device)
    alive: list[tuple[int, ...]] = [()]
    results: list[Hypothesis] = []

    for length in range(1, config.max_tokens + 1):
        with reading(model):
            if config.logit_bias:
                logprobs_KV = bias(logprobs_KV.float(), config.logit_bias).log_softmax(dim=-1)
            total_KV = total_K[:, None] + logprobs_KV.double()
            total_KV[total_KV.isnan()] = -torch.inf
            for tokens, ended in zip(alive, total_KV[:, ends].tolist(), strict=True):
                for token, logprob in zip(ends.tolist(), ended, strict=True):
                    if logprob > -torch.inf:
                        score = normalise(logprob, length, config.length_penalty)
                        results.append(Hypothesis((*tokens, token), logprob, score, "stop"))
            total_KV[:, ends] = -torch.inf
            flat_N = total_KV.flatten()
            total_K, chosen_K = flat_N.topk(min(config.beam_size, len(flat_N)))
            possible = int((total_K > -torch.inf).sum())
            total_K, chosen_K = total_K[:possible], chosen_K[:possible]
            parents_K, tokens_K = chosen_K // model.vocab_size, chosen_K % model.vocab_size
            alive = [
                (*alive[parent], token)
                for parent, token in zip(parents_K.tolist(), tokens_K.tolist(), strict=True)
            ]
            results = _best(results, config.beam_size)
            if not alive:
                break
            if length == config.max_tokens:
                results += [
                    Hypothesis(
                        tokens, total, normalise(total, length, config.length_penalty), "length"
                    )
                    for tokens, total in zip(alive, total_K.tolist(), strict=True)
                ]
                break
            bound = normalise(float(total_K[0]), config.max_tokens, config.length_penalty)
            if len(results) == config.beam_size and results[-1].score >= bound:
                break
            logprobs_KV, state = model.step(tokens_K, state.select(parents_K))
    if not results:
        raise ElmanError(
            "no token can follow: every continuation has probability 0",
            "check logit_bias, and the model with `elman evaluate`",
        )
    return _best(results, config.num_samples)


def normalise(logprob: float, length: int, length_penalty: float) -> float:
    """Log probability divided by ((5 + length) / 6) ^ length_penalty."""
    return float(logprob / ((5 + length) / 6) ** length_penalty)


def _best(hypotheses: list[Hypothesis], number: int) -> list[Hypothesis]:
    return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)[:number]
