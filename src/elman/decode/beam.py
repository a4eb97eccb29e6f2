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

N prompts, K best of a row, W rows per prompt (1, then the beam), E end tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from elman.base.errors import ElmanError, UsageError
from elman.decode.options import DecodeOptions
from elman.decode.prefix import prefill
from elman.decode.processors import bias
from elman.models.decoding import for_decoding
from elman.models.interface import LanguageModel, reading
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


Watch: TypeAlias = Callable[[Sequence[tuple[tuple[int, ...], float]], Sequence[Hypothesis]], None]
"""Called after a step with the unfinished hypotheses and their log P, and the best results."""


@dataclass
class _Search:
    """One prompt's search: its unfinished hypotheses, one per row, and the finished ones."""

    limit: int
    options: DecodeOptions
    alive: list[tuple[int, ...]] = field(default_factory=lambda: [()])
    results: list[Hypothesis] = field(default_factory=list)

    def add(self, tokens: tuple[int, ...], logprob: float, covered: float, reason: str) -> None:
        """Add a result; `covered` is what coverage adds to its score."""
        score = normalise(logprob, len(tokens), self.options.length_penalty) + covered
        self.results.append(Hypothesis(tokens, logprob, score, reason))

    def best(self, number: int) -> list[Hypothesis]:
        return sorted(self.results, key=lambda hypothesis: -hypothesis.score)[:number]

    def is_decided(self, best_total: float) -> bool:
        """Whether no unfinished hypothesis can still enter the results that will be returned."""
        if best_total == -torch.inf:
            return True
        bound = normalise(best_total, self.limit, self.options.length_penalty)
        number = self.options.num_samples
        return len(self.results) >= number and self.results[number - 1].score >= bound


def beam_search(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    options: DecodeOptions,
    *,
    boundary_id: int,
    end_ids: Collection[int] = frozenset(),
    state: State | None = None,
    limits: Sequence[int] | None = None,
    watch: Watch | None = None,
) -> list[list[Hypothesis]]:
    """For each prompt, the `options.num_samples` best continuations that the beam finds.

    `state`, one row per prompt, is what a conditional model was given. `limits` are the maximum
    lengths by prompt; by default `max_tokens`. `watch` sees every step of the first prompt.
    """
    if not prompts:
        return []
    model = for_decoding(model)
    logprobs, state = prefill(model, prompts, boundary_id=boundary_id, state=state)
    limits = limits or [options.max_tokens] * len(prompts)
    searches = [_Search(limit, options) for limit in limits]
    active = searches
    # Log probabilities remain the model's own if tokens are only ruled out.
    ruled_out = {token: value for token, value in options.logit_bias.items() if value == -torch.inf}
    biases = {t: value for t, value in options.logit_bias.items() if t not in ruled_out}
    end_tokens = sorted(end_ids)
    ends = torch.tensor(end_tokens, dtype=torch.long, device=logprobs.device)
    total_NW = logprobs.new_zeros(len(prompts), 1, dtype=torch.float64)

    for length in range(1, max(limits) + 1):
        with reading(model):
            if biases:
                logprobs = bias(logprobs.float(), biases).log_softmax(dim=-1)
            if ruled_out:
                logprobs = bias(logprobs.float(), ruled_out)
            num_rows = total_NW.shape[1]
            logprobs_NWV = logprobs.masked_fill(logprobs.isnan(), -torch.inf).view(
                -1, num_rows, model.vocab_size
            )
            coverage = _coverage(state, options.coverage_penalty, num_rows)
            width = min(options.beam_size, logprobs_NWV[0].numel())
            # The best of all rows are among the best of each, ends included.
            several = min(width + len(end_tokens), model.vocab_size)
            best_NWK, words_NWK = logprobs_NWV.topk(several)
            total_NWK = total_NW[:, :, None] + best_NWK.double()
            worst_N1 = total_NWK.flatten(1).topk(width).values[:, -1:]
            ended_NWE = total_NW[:, :, None] + logprobs_NWV[:, :, ends].double()
            ended = ended_NWE.masked_fill(ended_NWE < worst_N1[:, :, None], -torch.inf).tolist()
            is_end_NWK = torch.isin(words_NWK, ends)
            total_NW, chosen_NW = (
                total_NWK.masked_fill(is_end_NWK, -torch.inf).flatten(1).topk(width)
            )
            parents_NW = chosen_NW // several
            tokens_NW = words_NWK.flatten(1).gather(1, chosen_NW)
            totals, parents = total_NW.tolist(), parents_NW.tolist()
            tokens = tokens_NW.tolist()
            going = []
            for n, search in enumerate(active):
                for row, added, logprobs_E in zip(search.alive, coverage[n], ended[n], strict=True):
                    for token, logprob in zip(end_tokens, logprobs_E, strict=True):
                        if logprob > -torch.inf:
                            search.add((*row, token), logprob, added, "stop")
                search.results = search.best(options.beam_size)
                # Rows without a possible token stay, at -inf, until the search ends.
                search.alive = [
                    (*search.alive[parent], token)
                    for parent, token in zip(parents[n], tokens[n], strict=True)
                ]
                if watch is not None and search is searches[0]:
                    watch(list(zip(search.alive, totals[n], strict=True)), search.results)
                if length == search.limit:
                    for row, total, parent in zip(search.alive, totals[n], parents[n], strict=True):
                        if total > -torch.inf:
                            search.add(row, total, coverage[n][parent], "length")
                elif not search.is_decided(totals[n][0]):
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
    return [search.best(options.num_samples) for search in searches]


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
