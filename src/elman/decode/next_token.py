"""The next-token distribution after a prefix."""

from __future__ import annotations

from collections.abc import Sequence

from elman.decode.prefix import prefill
from elman.models.decoding import for_decoding
from elman.models.interface import LanguageModel


def next_tokens(
    model: LanguageModel, prefix: Sequence[int], k: int = 10, *, boundary_id: int
) -> list[tuple[int, float]]:
    """The k most likely tokens after the boundary token and `prefix`, with probabilities."""
    logprobs_BV, _ = prefill(for_decoding(model), [prefix], boundary_id=boundary_id)
    values_K, tokens_K = logprobs_BV[0].double().topk(min(k, logprobs_BV.shape[-1]))
    return list(zip(tokens_K.tolist(), values_K.exp().tolist(), strict=True))
