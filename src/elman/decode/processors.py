"""What each decoding scheme does to a next-token distribution, as pure functions.

Each takes log probabilities (or logits: a constant added to a row changes nothing) and returns log
probabilities up to a constant, with -inf where a token is ruled out. `process` applies those that
the config asks for, in this order:

    logit bias, frequency and presence penalties     change what the model says
    temperature                                      sharpens or flattens it
    top-k, top-p, min-p                              rule tokens out, each of what the last one left

which is Hugging Face's order, and the choices are the same as theirs (`tests/parity`). The
penalties are OpenAI's. Whatever the settings, at least the most likely token of a row stays
possible.

B batch, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elman.base.errors import UsageError
from elman.decode.config import DecodeConfig
from elman.nn.shapes import Float


def process(
    logprobs_BV: Float[Tensor, "B V"],
    config: DecodeConfig,
    counts_BV: Float[Tensor, "B V"] | None = None,
) -> Float[Tensor, "B V"]:
    """Everything that `config` asks for, in the order above; `counts_BV` says how often each was
    generated.

    Greedy choice leaves temperature and the truncations out: none of them changes which token is
    the most likely.
    """
    scores_BV = logprobs_BV.float()
    if config.logit_bias:
        scores_BV = bias(scores_BV, config.logit_bias)
    if counts_BV is not None and config.has_penalties:
        scores_BV = penalties(
            scores_BV,
            counts_BV,
            frequency=config.frequency_penalty,
            presence=config.presence_penalty,
        )
    if config.is_greedy:
        return scores_BV
    if config.temperature != 1.0:
        scores_BV = temperature(scores_BV, config.temperature)
    if config.top_k > 0:
        scores_BV = top_k(scores_BV, config.top_k)
    if config.top_p < 1.0:
        scores_BV = top_p(scores_BV, config.top_p)
    if config.min_p > 0.0:
        scores_BV = min_p(scores_BV, config.min_p)
    return scores_BV


def bias(logprobs_BV: Float[Tensor, "B V"], logit_bias: dict[int, float]) -> Float[Tensor, "B V"]:
    """Add a number to the log probabilities of single tokens."""
    vocab_size = logprobs_BV.shape[-1]
    for token in logit_bias:
        if not 0 <= token < vocab_size:
            raise UsageError(
                f"logit_bias names token {token}, which is not in the vocabulary",
                f"ids go from 0 to {vocab_size - 1}",
            )
    tokens = torch.tensor(list(logit_bias), device=logprobs_BV.device)
    values = torch.tensor(
        list(logit_bias.values()), device=logprobs_BV.device, dtype=logprobs_BV.dtype
    )
    return logprobs_BV.index_add(1, tokens, values.expand(len(logprobs_BV), -1))


def penalties(
    logprobs_BV: Float[Tensor, "B V"],
    counts_BV: Float[Tensor, "B V"],
    *,
    frequency: float,
    presence: float,
) -> Float[Tensor, "B V"]:
    """OpenAI's definition: mu - count * frequency - (count > 0) * presence."""
    return logprobs_BV - counts_BV * frequency - (counts_BV > 0).to(logprobs_BV.dtype) * presence


def temperature(logprobs_BV: Float[Tensor, "B V"], temperature: float) -> Float[Tensor, "B V"]:
    """P(w) to the power 1 / temperature, renormalised: softmax with alpha = 1 / temperature."""
    # The largest is moved to 0 first: divided by a tiny temperature, a whole row would become -inf.
    # One too tiny for float32 would be 0, and 0 / 0 is not a number.
    largest_B1 = logprobs_BV.amax(dim=-1, keepdim=True).nan_to_num(neginf=0.0)
    return (logprobs_BV - largest_B1) / max(temperature, torch.finfo(logprobs_BV.dtype).tiny)


def top_k(logprobs_BV: Float[Tensor, "B V"], k: int) -> Float[Tensor, "B V"]:
    """The k most likely tokens; those as likely as the k-th stay too."""
    kth_B1 = logprobs_BV.topk(min(k, logprobs_BV.shape[-1]), dim=-1).values[:, -1:]
    return logprobs_BV.masked_fill(logprobs_BV < kth_B1, -torch.inf)


def top_p(logprobs_BV: Float[Tensor, "B V"], p: float) -> Float[Tensor, "B V"]:
    """The smallest set of most likely tokens that together have probability p or more (nucleus
    sampling).

    Counted from the unlikely end, as Hugging Face does: a token goes if it and all that are less
    likely have at most 1 - p together. Small probabilities added first also lose less to rounding.
    """
    # Which of equally likely tokens at the border stay is the sort's choice. A stable sort would
    # choose by id, and differ from Hugging Face, whose sort is not stable.
    ascending_BV, order_BV = logprobs_BV.sort(dim=-1)
    removed_BV = ascending_BV.softmax(dim=-1).cumsum(dim=-1) <= 1 - p
    removed_BV[:, -1] = False
    return logprobs_BV.masked_fill(removed_BV.scatter(1, order_BV, removed_BV), -torch.inf)


def min_p(logprobs_BV: Float[Tensor, "B V"], p: float) -> Float[Tensor, "B V"]:
    """The tokens at least p times as likely as the most likely one (Nguyen and others, 2024)."""
    probabilities_BV = logprobs_BV.softmax(dim=-1)
    threshold_B1 = p * probabilities_BV.amax(dim=-1, keepdim=True)
    return logprobs_BV.masked_fill(probabilities_BV < threshold_B1, -torch.inf)
