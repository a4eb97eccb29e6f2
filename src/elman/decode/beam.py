"""Beam search: look for the most probable continuation as a whole.

The K best unfinished hypotheses of each prompt advance together, one batch row each; `state[rows]`
picks the survivors. A hypothesis ends if its end token is among the K best continuations of all; it
then joins the results, and the beam goes on with K others. (If every end were a result, decoders
would stop after a word or two: short texts are likely.) Prompts are searched side by side; one
whose search has ended leaves the batch.

Hypotheses of different lengths are compared by

    log P / ((5 + length) / 6) ^ length_penalty
        + coverage_penalty * sum over j of log min(1, a_j)            (Wu and others, 2016)

where the length counts generated tokens, the end token included, and a_j is the total attention to
source position j, so that a translation that leaves words out scores less. The search ends when no
unfinished hypothesis can still overtake: log P only falls, the divisor is largest at the longest
length, and the coverage is at most 0.

N prompts, K beam, W rows per prompt (1, then K), E end tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from elman.base.errors import ElmanError, UsageError
from elman.decode.options import DecodeOptions
from elman.decode.prefix import prefill, reading
from elman.decode.processors import bias
from elman.models.decoding import for_decoding
from elman.models.interface import LanguageModel
from elman.nn.state import State

LEAST_COVERAGE = 1e-9
"""Least attention counted for a position: its logarithm must be finite."""


@dataclass(frozen=True)
class Hypothesis:
    tokens: tuple[int, ...]
    """The generated ids, including the end token, if any."""
    logprob: float
    """The log probability (natural) of all tokens together."""
    score: float
    """`logprob` with length and coverage penalties: what the search maximises."""
    finish_reason: str
    """`stop` after an end token, `length` at `max_tokens`."""


@dataclass
class _Search:
    """One prompt's search: its unfinished hypotheses, one per row, and the finished ones."""

    limit: int
    alive: list[tuple[int, ...]] = field(default_factory=lambda: [()])
    results: list[Hypothesis] = field(default_factory=list)


def beam_search(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    options: DecodeOptions,
    *,
    boundary_id: int,
    end_ids: Collection[int] = frozenset(),
    state: State | None = None,
    limits: Sequence[int] | None = None,
) -> list[list[Hypothesis]]:
    """For each prompt, the `options.num_samples` best continuations that the beam finds.

    `state`, one row per prompt, is what a conditional model was given. `limits` are the maximum
    lengths by prompt; by default `max_tokens`.
    """
    if not prompts:
        return []
    model = for_decoding(model)
    logprobs, state = prefill(model, prompts, boundary_id=boundary_id, state=state)
    searches = [_Search(limit) for limit in limits or [options.max_tokens] * len(prompts)]
    active = searches
    ends = torch.tensor(sorted(end_ids), dtype=torch.long, device=logprobs.device)
    total_NW = logprobs.new_zeros(len(prompts), 1, dtype=torch.float64)

    for length in range(1, max(search.limit for search in searches) + 1):
        with reading(model):
            if options.logit_bias:
                logprobs = bias(logprobs.float(), options.logit_bias).log_softmax(dim=-1)
            num_rows = total_NW.shape[1]
            total_NWV = total_NW[:, :, None] + logprobs.double().view(
                -1, num_rows, model.vocab_size
            )
            total_NWV[total_NWV.isnan()] = -torch.inf
            coverage = _coverage(state, options.coverage_penalty, num_rows)
            width = min(options.beam_size, total_NWV[0].numel())
            worst_N1 = total_NWV.flatten(1).topk(width).values[:, -1:]
            ended_NWE = total_NWV[:, :, ends]
            ended = ended_NWE.masked_fill(ended_NWE < worst_N1[:, :, None], -torch.inf).tolist()
            total_NWV[:, :, ends] = -torch.inf
            total_NW, chosen_NW = total_NWV.flatten(1).topk(width)
            parents_NW, tokens_NW = chosen_NW // model.vocab_size, chosen_NW % model.vocab_size
            totals, parents = total_NW.tolist(), parents_NW.tolist()
            tokens = tokens_NW.tolist()
            going = []
            for n, search in enumerate(active):
                _finish(search, ends.tolist(), ended[n], length, options, coverage[n])
                # Rows without a possible token stay, at -inf, until the search ends.
                search.alive = [
                    (*search.alive[parent], token)
                    for parent, token in zip(parents[n], tokens[n], strict=True)
                ]
                if length == search.limit:
                    covered = [coverage[n][parent] for parent in parents[n]]
                    _cut_off(search, totals[n], length, options, covered)
                elif not _is_decided(search, totals[n][0], options):
                    going.append(n)
            if not going:
                break
            rows = (torch.tensor(going, device=ends.device)[:, None] * num_rows) + parents_NW[going]
            active, total_NW = [active[n] for n in going], total_NW[going]
            logprobs, state = model.step(tokens_NW[going].flatten(), state.select(rows.flatten()))
    if not all(search.results for search in searches):
        raise ElmanError(
            "no token can follow: every continuation has probability 0",
            "check logit_bias, and the model with `elman evaluate`",
        )
    return [_best(search.results, options.num_samples) for search in searches]


def normalise(logprob: float, length: int, length_penalty: float) -> float:
    """Log probability divided by ((5 + length) / 6) ^ length_penalty."""
    return float(logprob / ((5 + length) / 6) ** length_penalty)


def coverage(attended_BS: Tensor, mask_BS: Tensor) -> Tensor:
    """(B,) the sum over real positions of log min(1, attention so far)."""
    logs_BS = attended_BS.double().clamp(LEAST_COVERAGE, 1.0).log()
    return logs_BS.where(mask_BS, 0.0).sum(dim=1)


def _coverage(state: State, penalty: float, num_rows: int) -> list[list[float]]:
    """What coverage adds to the score of each row, by prompt."""
    if not penalty:
        return [[0.0] * num_rows] * (state.batch_size // num_rows)
    if "attended" not in state:
        raise UsageError(
            "a coverage penalty needs a model with attention", "set coverage_penalty to 0"
        )
    added_B = penalty * coverage(state.tensor("attended"), state.tensor("mask"))
    by_prompt: list[list[float]] = added_B.view(-1, num_rows).tolist()
    return by_prompt


def _finish(
    search: _Search,
    ends: list[int],
    ended: list[list[float]],
    length: int,
    options: DecodeOptions,
    covered: list[float],
) -> None:
    """Move rows that end here to the results, and keep the best of those."""
    for tokens, logprobs, added in zip(search.alive, ended, covered, strict=True):
        for token, logprob in zip(ends, logprobs, strict=True):
            if logprob > -torch.inf:
                score = normalise(logprob, length, options.length_penalty) + added
                search.results.append(Hypothesis((*tokens, token), logprob, score, "stop"))
    search.results = _best(search.results, options.beam_size)


def _cut_off(
    search: _Search, totals: list[float], length: int, options: DecodeOptions, covered: list[float]
) -> None:
    """Add unfinished hypotheses to the results at the maximum length."""
    search.results += [
        Hypothesis(
            tokens, total, normalise(total, length, options.length_penalty) + added, "length"
        )
        for tokens, total, added in zip(search.alive, totals, covered, strict=True)
        if total > -torch.inf
    ]


def _is_decided(search: _Search, best_total: float, options: DecodeOptions) -> bool:
    """Whether no unfinished hypothesis can still enter the results that will be returned."""
    if best_total == -torch.inf:
        return True
    bound = normalise(best_total, search.limit, options.length_penalty)
    results = search.results
    return len(results) >= options.num_samples and results[options.num_samples - 1].score >= bound


def _best(hypotheses: list[Hypothesis], number: int) -> list[Hypothesis]:
    return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)[:number]
