"""Probabilities of id sequences by the chain rule, many sequences at once.

    P(w_1..n) = product of P(w_i | w_1..i-1)
    log PP(w_1..n) = average surprisal = -1/n log P(w_1..n)

B batch, T time steps, N flattened tokens, V vocabulary, M members of a set of tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from elman.base.errors import ElmanError
from elman.batches.buckets import pad
from elman.decode.prefix import CHUNK_LENGTH, device_of, over_distributions
from elman.models.interface import LanguageModel, reading
from elman.nn.state import State

TOKENS_PER_BATCH = 4096
"""Tokens per pass, padding included; with more, half of a batch of short texts is padding."""


@dataclass(frozen=True)
class TokenScores:
    """Log probabilities of one sequence's tokens, each given all before it."""

    logprobs: list[float]
    """Log P of each token (natural)."""
    member_logprobs: list[float] | None = None
    """At each position, log P that the token is one of the given members."""
    undefined: list[bool] | None = None
    """At each position, whether the model's estimate is 0/0; None of a model that has none."""
    entropies: list[float] | None = None
    """At each position, the entropy of the prediction in nats."""
    best_logprobs: list[float] | None = None
    """At each position, log P of the most likely token."""


def score_tokens(
    model: LanguageModel,
    sequences: Sequence[Sequence[int] | np.ndarray],
    *,
    previous: int,
    state: State | None = None,
    members_V: Tensor | None = None,
    entropy: bool = False,
    best: bool = False,
) -> tuple[list[TokenScores], State]:
    """Score sequences in one padded batch, chunk by chunk along time.

    `previous` is read before each of them, from `state` (None: the initial one). The returned state
    has read all but the last token of each sequence; with a single sequence the next call continues
    from it with that token as `previous`. With `members_V` (True for the ids of a set) the
    probability of the set is computed at each position too, with `entropy` the entropy, and with
    `best` the highest log probability, all of which take full distributions.
    """
    lengths = [len(sequence) for sequence in sequences]
    tokens_BT, _ = pad([np.append(previous, sequence) for sequence in sequences], previous)
    parts: list[Tensor] = []
    more_parts: list[Sequence[Tensor]] = []
    functions: list[Callable[[Tensor], Tensor]] = []
    if members_V is not None:
        ids_M = members_V.nonzero()[:, 0]
        functions.append(lambda rows_NV: _set_logprobs(rows_NV, ids_M))
    if best:
        functions.append(lambda rows_NV: rows_NV.amax(dim=-1))
    if entropy:
        functions.append(_entropies)
    undefined_parts: list[Tensor] = []
    with reading(model):
        if state is None:
            state = model.initial_state(len(sequences))
        tokens_BT = tokens_BT.to(device_of(state))
        for start in range(0, tokens_BT.shape[1] - 1, CHUNK_LENGTH):
            end = min(start + CHUNK_LENGTH, tokens_BT.shape[1] - 1)
            inputs_BC, targets_BC = tokens_BT[:, start:end], tokens_BT[:, start + 1 : end + 1]
            undefined_BC = getattr(model, "undefined", _never)(inputs_BC, state)
            undefined_parts += [] if undefined_BC is None else [undefined_BC]
            if not functions:
                logprobs_BC, state = model.logprobs(inputs_BC, targets_BC, state)
            else:
                (logprobs_BC, *more), state = _with_distributions(
                    model, inputs_BC, targets_BC, state, functions
                )
                more_parts.append([part_BC.double().cpu() for part_BC in more])
            parts.append(logprobs_BC.double().cpu())
    undefined = torch.cat(undefined_parts, dim=1) if undefined_parts else None
    none_BT = torch.zeros(len(lengths), 0, dtype=torch.float64)
    logprobs_BT = torch.cat(parts, dim=1) if parts else none_BT
    check_number(float(logprobs_BT.sum()))
    more = [torch.cat(column, dim=1) for column in zip(*more_parts, strict=True)]
    more = more or [none_BT] * len(functions)
    members_BT = None if members_V is None else more[0]
    entropies_BT = more[-1] if entropy else None
    best_BT = more[0 if members_V is None else 1] if best else None
    return [
        TokenScores(
            logprobs_BT[row, :length].tolist(),
            None if members_BT is None else members_BT[row, :length].tolist(),
            None if undefined is None else undefined[row, :length].tolist(),
            None if entropies_BT is None else entropies_BT[row, :length].tolist(),
            None if best_BT is None else best_BT[row, :length].tolist(),
        )
        for row, length in enumerate(lengths)
    ], state


def _never(tokens_BT: Tensor, state: State) -> None:
    """Most models have an estimate after every context."""


def check_number(value: float) -> None:
    """Raise an error if what a model computed is not a number: its weights are too large."""
    if math.isnan(value):
        raise ElmanError(
            "the model gives probabilities that are not numbers: its weights are too large",
            "train it again at a lower learning rate",
        )


def exp(nats: float) -> float:
    """e to the power of `nats`; infinity instead of an overflow."""
    return math.exp(nats) if nats < 709.0 else math.inf


def _with_distributions(
    model: LanguageModel,
    tokens_BT: Tensor,
    targets_BT: Tensor,
    state: State,
    functions: Sequence[Callable[[Tensor], Tensor]],
) -> tuple[Sequence[Tensor], State]:
    """Compute log probabilities of the targets, and functions (N, V) -> (N,) of the distributions,
    in blocks."""

    def summarise(logprobs_NV: Tensor, targets_N: Tensor) -> tuple[Tensor, ...]:
        chosen_N = logprobs_NV.gather(1, targets_N[:, None])[:, 0]
        return chosen_N, *(function(logprobs_NV) for function in functions)

    return over_distributions(model, tokens_BT, targets_BT, state, summarise)


def _set_logprobs(logprobs_NV: Tensor, ids_M: Tensor) -> Tensor:
    return logprobs_NV.index_select(1, ids_M.to(logprobs_NV.device)).logsumexp(dim=-1)


def _entropies(logprobs_NV: Tensor) -> Tensor:
    # 0 log 0 is 0: a probability of zero has a log of -inf, and their product would be NaN.
    return -(logprobs_NV.exp() * logprobs_NV).nan_to_num(nan=0.0).sum(dim=-1)
