"""Autoregressive generation: draw a token or take the best, read it, repeat; many rows at once.

Every row has its own random generator, so its tokens do not depend on the other rows of the batch.
A row that has ended leaves the batch.

B rows still going, V vocabulary, K alternatives.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from elman.base.errors import ElmanError, UsageError, check_k
from elman.decode.options import DecodeOptions
from elman.decode.prefix import prefill
from elman.decode.processors import process
from elman.decode.rows import RowSettings
from elman.models.decoding import for_decoding
from elman.models.interface import LanguageModel, reading
from elman.nn.kernels import stream
from elman.nn.state import State


@dataclass(frozen=True)
class Step:
    """One generated token of one row."""

    row: int
    """Prompt number * num_samples + sample number."""
    token: int
    logprob: float
    """Its log probability (natural) under the model's own distribution, before any processing."""
    alternatives: tuple[tuple[int, float], ...] = ()
    """The most likely tokens of that distribution and their log probabilities, best first."""
    finish_reason: str | None = None
    """`stop` after an end token, `length` at `max_tokens`, None while the row goes on."""


def sample(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    options: DecodeOptions,
    *,
    boundary_id: int,
    end_ids: Collection[int] = frozenset(),
    num_alternatives: int = 0,
    stopped: Collection[int] = frozenset(),
    state: State | None = None,
) -> Iterator[Step]:
    """Continue each prompt `options.num_samples` times; yield every token as soon as it is chosen.

    A row ends with one of `end_ids` (which is yielded) or at `max_tokens`. To end it earlier, for
    instance at a stop sequence in its text, add it to `stopped`. `state`, one row per prompt, is
    what a conditional model was given.
    """
    if options.beam_size > 1:
        raise UsageError("sampling has no beam", "use beam_search, or set beam_size to 1")
    if not prompts:
        return
    seed = random.SystemRandom().getrandbits(32) if options.seed is None else options.seed
    rows = list(range(len(prompts) * options.num_samples))
    generators = [random.Random(seed + row) for row in rows]
    model = for_decoding(model)
    logprobs_BV, state = prefill(model, prompts, boundary_id=boundary_id, state=state)
    repeated = [row // options.num_samples for row in rows]
    logprobs_BV, state = logprobs_BV[repeated], state.select(repeated)
    settings = RowSettings.of([options], logprobs_BV.device)
    counts_BV = (
        torch.zeros_like(logprobs_BV, dtype=torch.float32) if options.has_penalties else None
    )

    tokens_B = torch.empty(0)
    for position in range(1, options.max_tokens + 1):
        with reading(model):
            if position > 1:
                logprobs_BV, state = model.step(tokens_B, state)
            scores_BV = process(logprobs_BV, settings, counts_BV)
            tokens_B, possible = choose(scores_BV, settings, generators)
            if not all(possible):
                raise impossible()
            chosen = logprobs_of(logprobs_BV, tokens_B)
            alternatives = most_likely(logprobs_BV, num_alternatives)
            tokens = tokens_B.tolist()
        reasons = [
            "stop" if token in end_ids else "length" if position == options.max_tokens else None
            for token in tokens
        ]
        for row, token, logprob, others, reason in zip(
            rows, tokens, chosen, alternatives, reasons, strict=True
        ):
            yield Step(row, token, logprob, others, reason)

        left = [i for i, row in enumerate(rows) if reasons[i] is None and row not in stopped]
        if not left:
            return
        if counts_BV is not None:
            counts_BV = counts_BV.scatter_add(
                1, tokens_B[:, None], torch.ones_like(counts_BV[:, :1])
            )
        if len(left) < len(rows):
            rows = [rows[i] for i in left]
            generators = [generators[i] for i in left]
            tokens_B, state = tokens_B[left], state.select(left)
            counts_BV = None if counts_BV is None else counts_BV[left]


def choose(
    scores_BV: Tensor, settings: RowSettings, generators: Sequence[random.Random]
) -> tuple[Tensor, list[bool]]:
    """One token per row, the best or a draw, and whether the row had any possible token.

    `generators` has one for each row; those of greedy rows are not used.
    """
    if not settings.num_greedy and stream.is_plain(scores_BV):
        tokens_B = stream.draw(scores_BV, [1.0 - generator.random() for generator in generators])
        possible = [token >= 0 for token in tokens_B.tolist()]
        return (tokens_B if all(possible) else tokens_B.clamp(min=0)), possible
    draws = []
    if not settings.all_greedy:
        greedy = settings.greedy_B.tolist() if settings.num_greedy else [False] * len(generators)
        draws = [
            1.0 if is_greedy else 1.0 - generator.random()
            for generator, is_greedy in zip(generators, greedy, strict=True)
        ]
    draws_B = torch.tensor(draws, dtype=torch.float64, device=scores_BV.device)
    tokens_B, possible_B = pick(scores_BV, settings, draws_B)
    return tokens_B, possible_B.tolist()


def pick(scores_BV: Tensor, settings: RowSettings, draws_B: Tensor) -> tuple[Tensor, Tensor]:
    """One token per row and whether the row had any possible token, given numbers in (0, 1].

    The host does not wait for a GPU. `draws_B` is not used if all rows are greedy.
    """
    best_B = scores_BV.max(dim=-1)
    possible_B = torch.isfinite(best_B.values)
    if settings.all_greedy:
        return best_B.indices, possible_B
    # Invert the distribution function. A draw lies in (0, 1], and the first token at which the sum
    # reaches it has a probability above 0, so a token that was ruled out is never drawn.
    cumulative_BV = scores_BV.softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64)
    goals_B1 = draws_B[:, None] * cumulative_BV[:, -1:]
    drawn_B = torch.searchsorted(cumulative_BV, goals_B1)[:, 0]
    # If no token is possible the sums are NaN, and the search ends past the last token.
    drawn_B = drawn_B.clamp(max=scores_BV.shape[-1] - 1)
    if settings.num_greedy:
        drawn_B = torch.where(settings.greedy_B, best_B.indices, drawn_B)
    return drawn_B, possible_B


def logprobs_of(logprobs_BV: Tensor, tokens_B: Tensor) -> list[float]:
    if stream.is_plain(logprobs_BV):  # a tenth of the time of a small model's step
        values: list[float] = logprobs_BV.numpy()[range(len(tokens_B)), tokens_B.numpy()].tolist()
        return values
    return logprobs_BV.gather(1, tokens_B[:, None])[:, 0].tolist()


def next_tokens(
    model: LanguageModel, prefix: Sequence[int], k: int = 10, *, boundary_id: int
) -> list[tuple[int, float]]:
    """The k most likely tokens after the boundary token and `prefix`, with probabilities."""
    check_k(k)
    logprobs_BV, _ = prefill(for_decoding(model), [prefix], boundary_id=boundary_id)
    (found,) = most_likely(logprobs_BV.double(), k)
    return [(token, math.exp(logprob)) for token, logprob in found]


def drawn_from(
    model: LanguageModel, prefix: Sequence[int], options: DecodeOptions, *, boundary_id: int
) -> tuple[Tensor, Tensor]:
    """Return (V,) log probabilities of the next token, and the probabilities of a draw with
    `options`."""
    logprobs_BV, _ = prefill(for_decoding(model), [prefix], boundary_id=boundary_id)
    scores_BV = process(logprobs_BV, RowSettings.of([options], logprobs_BV.device))
    if options.is_greedy:
        drawn_BV = torch.zeros_like(scores_BV).scatter(1, scores_BV.argmax(1, keepdim=True), 1.0)
    else:
        drawn_BV = scores_BV.softmax(dim=-1)
    return logprobs_BV[0].double(), drawn_BV[0]


def impossible() -> ElmanError:
    """The error for a row without a possible token."""
    return ElmanError(
        "no token can follow: the scores are all -inf or NaN",
        "check logit_bias, and the model with `elman evaluate`",
    )


def most_likely(logprobs_BV: Tensor, k: int) -> list[tuple[tuple[int, float], ...]]:
    """The k most likely tokens of each row and their log probabilities, best first."""
    if k == 0:
        return [()] * len(logprobs_BV)
    values_BK, tokens_BK = logprobs_BV.topk(min(k, logprobs_BV.shape[-1]), dim=-1)
    return [
        tuple(zip(tokens, values, strict=True))
        for tokens, values in zip(tokens_BK.tolist(), values_BK.tolist(), strict=True)
    ]
