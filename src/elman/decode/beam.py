"""Beam search: look for the most probable continuation as a whole.

The K best unfinished hypotheses of each prompt advance together, one batch row each; `state[rows]`
picks the survivors. A hypothesis ends if its end token is among the K best continuations of all; it
then joins the results, and the beam goes on with K others. (If every end were a result, decoders
would stop after a word or two: short texts are likely.) Prompts are searched side by side; one
whose search has ended leaves the batch. On the host, a step takes a few operations on arrays and
one copy from the device: with many prompts, a loop over hypotheses would take most of the time. On
a GPU even that is too much waiting: `beam_on_device.py`.

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
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elman.base.errors import ElmanError
from elman.decode.beam_on_device import Ended, graphs_of, search
from elman.decode.beam_step import Rules, divisor, normalise
from elman.decode.options import DecodeOptions
from elman.decode.prefix import prefill
from elman.models.decoding import for_decoding
from elman.models.interface import LanguageModel, reading
from elman.nn.state import State


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


class _History:
    """The tokens of the unfinished hypotheses of all prompts, step by step."""

    def __init__(self, num_prompts: int) -> None:
        self._num_prompts = num_prompts
        self._steps: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []

    def add(
        self, prompts: NDArray[np.int64], tokens: NDArray[np.int64], parents: NDArray[np.int64]
    ) -> None:
        """Add a step: the token of each row of `prompts`, and the row that it continues."""
        step = np.zeros((2, self._num_prompts, tokens.shape[1]), np.int64)
        step[0, prompts], step[1, prompts] = tokens, parents
        self._steps.append((step[0], step[1]))

    def tokens(self, prompt: int, length: int, row: int) -> tuple[int, ...]:
        """The first `length` tokens of a hypothesis, which is in this row after them."""
        found = []
        for tokens, parents in reversed(self._steps[:length]):
            found.append(int(tokens[prompt, row]))
            row = int(parents[prompt, row])
        return tuple(reversed(found))


@dataclass(frozen=True)
class _Result:
    """A finished hypothesis, which is in a row after `length` tokens, without its end."""

    score: float
    logprob: float
    length: int
    row: int
    end: int | None = None


class _Results:
    """The finished hypotheses of all prompts."""

    def __init__(self, limits: Sequence[int], options: DecodeOptions, history: _History) -> None:
        self.options, self.history = options, history
        self.found: list[list[_Result]] = [[] for _ in limits]
        self.least_N = np.full(len(limits), -np.inf)
        """The score that a hypothesis must exceed to be returned."""
        self.largest_N = np.array([divisor(limit, options.length_penalty) for limit in limits])
        """Log P of a hypothesis divided by this is the best score that it can still have."""

    def add(
        self, prompt: int, logprob: float, covered: float, length: int, row: int, end: int | None
    ) -> None:
        """Add a result; `covered` is what coverage adds to its score."""
        size = length + (end is not None)
        score = normalise(logprob, size, self.options.length_penalty) + covered
        self.found[prompt].append(_Result(score, logprob, length, row, end))

    def take(self, end_tokens: Sequence[int]) -> Ended:
        """What takes the results of a prompt from the search on a device."""

        def take(prompt: int, found: NDArray[np.float64]) -> None:
            for score, logprob, length, row, end in found.tolist():
                if score > -np.inf:
                    token = end_tokens[int(end)] if end >= 0 else None
                    self.found[prompt].append(_Result(score, logprob, int(length), int(row), token))

        return take

    def keep_best(self, prompt: int) -> None:
        """Drop results that cannot be returned."""
        kept = sorted(self.found[prompt], key=lambda result: -result.score)
        self.found[prompt] = kept[: self.options.beam_size]
        if len(kept) >= self.options.num_samples:
            self.least_N[prompt] = kept[self.options.num_samples - 1].score

    def best(self, prompt: int, number: int) -> list[Hypothesis]:
        found = sorted(self.found[prompt], key=lambda result: -result.score)[:number]
        return [
            Hypothesis(
                self.history.tokens(prompt, one.length, one.row)
                + (() if one.end is None else (one.end,)),
                one.logprob,
                one.score,
                "length" if one.end is None else "stop",
            )
            for one in found
        ]

    def are_decided(
        self, prompts: NDArray[np.int64], best: NDArray[np.float64]
    ) -> NDArray[np.bool_]:
        """Whether no unfinished hypothesis can still enter the results that will be returned;
        `best` are their largest log P."""
        bounds = best / self.largest_N[prompts]
        decided: NDArray[np.bool_] = (best == -np.inf) | (self.least_N[prompts] >= bounds)
        return decided


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
    limits = [options.max_tokens] * len(prompts) if limits is None else list(limits)
    history = _History(len(prompts))
    results = _Results(limits, options, history)
    rules = Rules(options, end_ids, model.vocab_size, logprobs.device)
    if watch is None and _is_far(logprobs.device):
        graphs = graphs_of(model, logprobs.device)
        found = results.take(rules.end_tokens)
        with reading(model):
            search(model, model.step, logprobs, state, rules, limits, history.add, found, graphs)
    else:
        _search(model, logprobs, state, rules, limits, results, watch)
    if not all(results.found):
        raise ElmanError(
            "no token can follow: every continuation has probability 0",
            "check logit_bias, and the model with `elman evaluate`",
        )
    return [results.best(prompt, options.num_samples) for prompt in range(len(prompts))]


def _is_far(device: torch.device) -> bool:
    """Whether the host should not wait for every step."""
    return device.type == "cuda"


def _search(
    model: LanguageModel,
    logprobs: Tensor,
    state: State,
    rules: Rules,
    limits: Sequence[int],
    results: _Results,
    watch: Watch | None,
) -> None:
    """Look at the results of every step on the host."""
    options, history, end_tokens = rules.options, results.history, rules.end_tokens
    limits_N, active = np.array(limits), np.arange(len(limits))
    total_NW = logprobs.new_zeros(len(limits), 1, dtype=torch.float64)
    for length in range(1, max(limits) + 1):
        with reading(model):
            num_rows = total_NW.shape[1]
            coverage_NW = rules.covered(state, num_rows)
            best = rules.extend(logprobs, total_NW)
            totals, parents, tokens, ended, covered = _on_host(
                *(best.total_NW, best.parents_NW, best.tokens_NW),
                *(best.ended_NWE.flatten(1), coverage_NW),
            )
            for n, place in np.argwhere(ended > -np.inf).tolist():
                row, which = divmod(place, len(end_tokens))
                results.add(
                    *(int(active[n]), float(ended[n, place]), float(covered[n, row])),
                    *(length - 1, row, end_tokens[which]),
                )
            for prompt in active[(ended > -np.inf).any(axis=1)].tolist():
                results.keep_best(prompt)
            # Rows without a possible token stay, at -inf, until the search ends.
            history.add(active, tokens.astype(np.int64), parents.astype(np.int64))
            if watch is not None and active[0] == 0:
                width = totals.shape[1]
                alive = [history.tokens(0, length, row) for row in range(width)]
                shown = list(zip(alive, totals[0].tolist(), strict=True))
                watch(shown, results.best(0, options.beam_size))
            is_last = limits_N[active] == length
            for n, row in np.argwhere(is_last[:, None] & (totals > -np.inf)).tolist():
                added = float(covered[n, int(parents[n, row])])
                results.add(int(active[n]), float(totals[n, row]), added, length, row, None)
            going = ~is_last & ~results.are_decided(active, totals[:, 0])
            if not going.any():
                return
            rows_N1 = torch.arange(len(active), device=total_NW.device)[:, None] * num_rows
            rows_NW, tokens_NW, total_NW = rows_N1 + best.parents_NW, best.tokens_NW, best.total_NW
            if not going.all():
                left_N = torch.from_numpy(np.flatnonzero(going)).to(total_NW.device)
                rows_NW, tokens_NW, total_NW = rows_NW[left_N], tokens_NW[left_N], total_NW[left_N]
                active = active[going]
            logprobs, state = model.step(tokens_NW.flatten(), state.select(rows_NW.flatten()))


def _on_host(*tensors: Tensor) -> list[NDArray[np.float64]]:
    """Tensors (N, ...) as arrays, copied at once: each copy waits for the device."""
    joined = torch.cat([tensor.double() for tensor in tensors], dim=1).cpu().numpy()
    ends = np.cumsum([tensor.shape[1] for tensor in tensors])
    return np.split(joined, ends[:-1], axis=1)
