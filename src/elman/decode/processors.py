"""What each decoding scheme does to a next-token distribution: pure functions.

Each takes log probabilities or logits and returns log probabilities up to a constant per row, with
-inf for tokens that are ruled out. An option is a number, or a column with one number per row.
`process` applies those that the rows use, in Hugging Face's order and with the same choices
(`tests/parity`):

    logit bias, frequency and presence penalties (as OpenAI defines them)
    temperature
    top-k, top-p, min-p: each truncates what the one before left

The most likely token of a row always stays possible.

B batch, V vocabulary, K most likely tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from elman.base.errors import UsageError
from elman.decode.rows import RowSettings
from elman.nn.shapes import Float

NUCLEUS_SIZE = 256
"""Top-p looks at this many of the most likely tokens first; few distributions need more."""


def process(
    logprobs_BV: Float[Tensor, "B V"],
    settings: RowSettings,
    counts_BV: Float[Tensor, "B V"] | None = None,
) -> Float[Tensor, "B V"]:
    """Apply the options of the rows, in the order above. `counts_BV`: how often each token was
    generated."""
    scores_BV = logprobs_BV.float()
    if settings.bias is not None:
        rows, tokens, values = settings.bias
        _check_bias(tokens, scores_BV.shape[-1])
        if settings.only_rules_out:
            scores_BV = scores_BV.index_fill(1, tokens, -torch.inf)
        elif len(settings.greedy_B) == 1:  # it applies to all rows
            added_V = scores_BV.new_zeros(scores_BV.shape[-1]).index_add(0, tokens, values)
            scores_BV = scores_BV + added_V
        else:
            scores_BV = scores_BV.index_put((rows, tokens), values, accumulate=True)
    columns = settings.columns
    if counts_BV is not None and settings.has_penalties:
        frequency = columns.get("frequency_penalty", 0.0)
        presence = columns.get("presence_penalty", 0.0)
        scores_BV = penalties(scores_BV, counts_BV, frequency=frequency, presence=presence)
    for name, scheme in SCHEMES.items():
        if name in columns:
            most = {"most": settings.most_k} if name == "top_k" else {}
            scores_BV = scheme(scores_BV, columns[name], **most)
    return scores_BV


def bias_tensors(
    logit_bias: Mapping[int, float], vocab_size: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Tokens and the numbers to add, for `bias`; raise UsageError for tokens that there are not."""
    tokens = torch.tensor(list(logit_bias))
    _check_bias(tokens, vocab_size)
    return tokens.to(device), torch.tensor(list(logit_bias.values()), device=device)


def bias(logprobs_BV: Float[Tensor, "B V"], tokens: Tensor, values: Tensor) -> Float[Tensor, "B V"]:
    """Add a number to the log probabilities of single tokens, in every row."""
    values = values.to(logprobs_BV.dtype).expand(len(logprobs_BV), -1)
    return logprobs_BV.index_add(1, tokens, values)


def penalties(
    logprobs_BV: Float[Tensor, "B V"],
    counts_BV: Float[Tensor, "B V"],
    *,
    frequency: float | Tensor,
    presence: float | Tensor,
) -> Float[Tensor, "B V"]:
    """OpenAI's definition: mu - count * frequency - (count > 0) * presence."""
    seen_BV = (counts_BV > 0).to(logprobs_BV.dtype)
    taken_BV = counts_BV * _like(frequency, logprobs_BV) + seen_BV * _like(presence, logprobs_BV)
    return logprobs_BV - taken_BV


def temperature(
    logprobs_BV: Float[Tensor, "B V"], temperature: float | Tensor
) -> Float[Tensor, "B V"]:
    """P(w) to the power 1 / temperature, renormalised: softmax with alpha = 1 / temperature."""
    # Move the largest to 0 first: divided by a tiny temperature, a whole row would become -inf.
    # A temperature too small for float32 would be 0, and 0 / 0 is NaN.
    largest_B1 = logprobs_BV.amax(dim=-1, keepdim=True).nan_to_num(neginf=0.0)
    divisor_B1 = _like(temperature, logprobs_BV).clamp(min=torch.finfo(logprobs_BV.dtype).tiny)
    return torch.where(divisor_B1 == 1.0, logprobs_BV, (logprobs_BV - largest_B1) / divisor_B1)


def top_k(
    logprobs_BV: Float[Tensor, "B V"], k: int | Tensor, *, most: int = 0
) -> Float[Tensor, "B V"]:
    """Keep the k most likely tokens (0: all) and those as likely as the k-th.

    `most` is at least every k; without it, the largest is read from a column.
    """
    k_B1 = torch.as_tensor(k, device=logprobs_BV.device).reshape(-1, 1)
    most = min(most or max(1, int(k_B1.max())), logprobs_BV.shape[-1])
    k_B1 = k_B1.clamp(max=most).expand(len(logprobs_BV), 1)
    values_BK = logprobs_BV.topk(most, dim=-1).values
    kth_B1 = values_BK.gather(1, (k_B1 - 1).clamp(min=0))
    return logprobs_BV.masked_fill((logprobs_BV < kth_B1) & (k_B1 > 0), -torch.inf)


def top_p(logprobs_BV: Float[Tensor, "B V"], p: float | Tensor) -> Float[Tensor, "B V"]:
    """Keep the fewest most likely tokens that together have probability p (nucleus sampling).

    Counts from the unlikely end, as Hugging Face does: a token goes if it and all less likely ones
    have at most 1 - p together, which also loses less to rounding. In a large vocabulary the sort
    is most of a step's work, so only rows whose nucleus exceeds `NUCLEUS_SIZE` are sorted; but all
    rows on a GPU, for which the host would have to wait to know which.
    """
    p_B1 = torch.as_tensor(p, dtype=torch.float64, device=logprobs_BV.device).reshape(-1, 1)
    p_B1 = p_B1.expand(len(logprobs_BV), 1)
    if logprobs_BV.shape[-1] < 8 * NUCLEUS_SIZE or logprobs_BV.device.type != "cpu":
        return _top_p_by_sorting(logprobs_BV, p_B1)
    total_B1 = logprobs_BV.logsumexp(dim=-1, keepdim=True)
    values_BK, tokens_BK = logprobs_BV.topk(NUCLEUS_SIZE, dim=-1)
    probabilities_BK = (values_BK - total_B1).double().exp()
    before_BK = probabilities_BK.cumsum(dim=-1) - probabilities_BK
    kept_BK = before_BK < p_B1
    kept_BK[:, 0] = True
    kept_BV = torch.full_like(logprobs_BV, -torch.inf).scatter(
        1, tokens_BK, values_BK.masked_fill(~kept_BK, -torch.inf)
    )
    more_B = kept_BK[:, -1]
    if bool(more_B.any()):
        kept_BV[more_B] = _top_p_by_sorting(logprobs_BV[more_B], p_B1[more_B])
    return kept_BV


def _top_p_by_sorting(logprobs_BV: Tensor, p_B1: Tensor) -> Tensor:
    # The sort decides which of equally likely tokens at the border stay. A stable sort would
    # differ from Hugging Face's, which is not stable.
    ascending_BV, order_BV = logprobs_BV.sort(dim=-1)
    allowed_B1 = torch.where(p_B1 < 1.0, 1 - p_B1, -1.0).to(logprobs_BV.dtype)
    removed_BV = ascending_BV.softmax(dim=-1).cumsum(dim=-1) <= allowed_B1
    removed_BV[:, -1] = False
    return logprobs_BV.masked_fill(removed_BV.scatter(1, order_BV, removed_BV), -torch.inf)


def min_p(logprobs_BV: Float[Tensor, "B V"], p: float | Tensor) -> Float[Tensor, "B V"]:
    """Keep tokens at least p times as likely as the most likely one (Nguyen and others, 2024)."""
    probabilities_BV = logprobs_BV.softmax(dim=-1)
    threshold_B1 = _like(p, logprobs_BV) * probabilities_BV.amax(dim=-1, keepdim=True)
    return logprobs_BV.masked_fill(probabilities_BV < threshold_B1, -torch.inf)


SCHEMES: dict[str, Callable[..., Tensor]] = {
    "temperature": temperature,
    "top_k": top_k,
    "top_p": top_p,
    "min_p": min_p,
}
"""In the order in which they are applied."""


def _like(value: float | Tensor, other: Tensor) -> Tensor:
    if isinstance(value, Tensor):
        return value.to(other)
    return other.new_full((), value)  # made on its device: a CUDA graph cannot copy it there


def _check_bias(tokens: Tensor, vocab_size: int) -> None:
    low, high = map(int, tokens.aminmax()) if len(tokens) else (0, 0)
    if low < 0 or high >= vocab_size:
        raise UsageError(
            f"logit_bias names token {low if low < 0 else high}, which is not in the vocabulary",
            f"ids go from 0 to {vocab_size - 1}",
        )
