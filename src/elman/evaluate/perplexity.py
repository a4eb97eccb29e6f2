"""Perplexity and bits per byte of a model on an encoded text.

The text is one sequence after the boundary token, every token counts exactly once, and averages are
weighted by tokens. For speed it is read in parallel lanes: a lane starts `overlap` tokens early,
from the initial state, and its predictions there do not count. With `batch_size=1` there is one
lane and the result is exact; the default chooses lanes that are long compared with their overlap.
A model of separate lines reads each line after the boundary token, from the initial state.

B lanes, T time steps, N tokens.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from elman.base.config import at_least
from elman.base.errors import ElmanError, UsageError
from elman.batches.encoded import EncodedText
from elman.batches.lanes import scoring_lanes
from elman.batches.lines import lines_of, scoring_lines
from elman.decode.prefix import device_of
from elman.evaluate.last_tokens import with_context
from elman.evaluate.sequences import exp
from elman.models.interface import (
    LanguageModel,
    adapts,
    learns,
    next_text,
    reading,
    warm_up,
)

LANE_LENGTH = 16
"""Minimum length of a lane as a multiple of its overlap: at most 1 / 16 extra work."""
MOST_LANES = 64
"""More lanes are hardly faster."""
CHUNK_LENGTH = 128
"""Time steps per pass."""
LEARNT_LENGTH = 2048
"""Time steps per pass of a model that learns: a pass copies its weights."""


@dataclass(frozen=True)
class Evaluation:
    perplexity: float
    """exp(nats_per_token)."""
    nats_per_token: float
    """Average surprisal of a token (natural log)."""
    bits_per_byte: float
    """Total surprisal per byte of text (UTF-8): comparable across tokenizers."""
    tokens: int
    """Number of tokens scored, end-of-line marks included if the tokenizer sets them."""
    oov: int
    """Number of out-of-vocabulary tokens, scored as the unknown token."""
    perplexity_without_unknown: float
    """Perplexity over the other tokens; unknown ones are read but not counted."""
    seconds: float
    impossible: int = 0
    """Number of tokens with probability zero; any makes the perplexity infinite."""
    undefined: int = 0
    """Number of tokens whose estimate is 0/0: of maximum likelihood, after an unseen context."""
    reads_as: str = ""
    """How the text was changed to the form of the training text; empty: not at all."""


def scored_tokens(
    model: LanguageModel,
    text: EncodedText,
    *,
    boundary_id: int,
    batch_size: int | None = None,
    overlap: int = 128,
    line_end: int | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield log probabilities (float64) and ids of all tokens of a text, chunk by chunk.

    Their order depends on the lanes or lines alone, not on the model; an adaptive model that learns
    or that reads lines takes them in the order of the text.
    """
    if adapts(model) and (line_end is not None or learns(model)):
        with reading(model):
            memory = model.initial_state(1)
        device = device_of(memory)
        for tokens_1T, targets_1T, ends in in_order(text, boundary_id, line_end, device):
            with reading(model):
                logprobs_1T, memory = model.logprobs(tokens_1T, targets_1T, memory)
                memory = next_text(model, memory, targets_1T[:, -1]) if ends else memory
            yield logprobs_1T[0].double(), targets_1T[0]
        return
    overlap += warm_up(model)
    if line_end is not None:
        lines = lines_of(text, line_end)
        batches = scoring_lines(lines, boundary_id=boundary_id, chunk_length=CHUNK_LENGTH)
    else:
        if batch_size is None:
            batch_size = max(1, min(MOST_LANES, text.num_tokens // (LANE_LENGTH * max(overlap, 1))))
        batches = scoring_lanes(
            text,
            boundary_id=boundary_id,
            batch_size=batch_size,
            chunk_length=CHUNK_LENGTH,
            overlap=overlap if batch_size > 1 else 0,
        )
    state = None
    for batch in batches:
        with reading(model):
            if batch.fresh or state is None:
                state = model.initial_state(batch.tokens_BT.shape[0])
            moved = batch.to(str(device_of(state)))
            logprobs_BT, state = model.logprobs(moved.tokens_BT, moved.targets_BT, state)
        # Index instead of multiplying with a mask: 0 * -inf would be NaN.
        if moved.mask_BT is None:
            yield logprobs_BT.double().flatten(0, 1), moved.targets_BT.flatten()
        else:
            yield logprobs_BT[moved.mask_BT].double(), moved.targets_BT[moved.mask_BT]


def in_order(
    text: EncodedText, boundary_id: int, line_end: int | None, device: torch.device
) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """Yield tokens and targets from front to back, and whether a text ends with them: the whole
    one, or each line."""
    texts = [(0, len(text))]
    if line_end is not None:
        lines = lines_of(text, line_end)
        ends = np.minimum(lines.ends + 1, len(text))
        texts = list(zip(lines.starts.tolist(), ends.tolist(), strict=True))
    for start, end in texts:
        previous = boundary_id
        for first in range(start, end, LEARNT_LENGTH):
            stop = min(first + LEARNT_LENGTH, end)
            targets = text.slice(first, stop).tolist()
            tokens_1T = torch.tensor([[previous, *targets[:-1]]], device=device)
            yield tokens_1T, torch.tensor([targets], device=device), stop == end
            previous = targets[-1]


def evaluate(
    model: LanguageModel,
    text: EncodedText,
    *,
    boundary_id: int,
    unknown_id: int | None = None,
    batch_size: int | None = None,
    overlap: int = 128,
    context: int | None = None,
    line_end: int | None = None,
) -> Evaluation:
    """Score all of `text` in `batch_size` lanes (None: chosen by its length; 1: exact).

    With `line_end`, the token that ends a line, each line is read from the initial state instead.

    With `context` each token is predicted from at most that many tokens; any number of lanes is
    exact then.
    """
    if learns(model) and batch_size not in (None, 1):
        raise UsageError("a model that adapts reads the text in one lane", "drop batch_size")
    if context is not None:
        model, overlap = with_context(model, context), context
    if batch_size is not None:
        at_least("batch_size", batch_size, 1)
    if text.num_tokens == 0:
        raise ElmanError("nothing to evaluate: the text is empty", "check the file")
    start = time.perf_counter()
    known_nats, unknown_nats = 0.0, 0.0
    num_tokens, num_unknown, impossible = 0, 0, 0
    for logprobs_N, targets_N in scored_tokens(
        model,
        text,
        boundary_id=boundary_id,
        batch_size=batch_size,
        overlap=overlap,
        line_end=line_end,
    ):
        unknown_N = targets_N == (-1 if unknown_id is None else unknown_id)
        sums = torch.stack([logprobs_N[~unknown_N].sum(), logprobs_N[unknown_N].sum()]).tolist()
        if math.isinf(sums[0]) or math.isinf(sums[1]):
            impossible += int(torch.isneginf(logprobs_N).sum())
        known_nats, unknown_nats = known_nats - sums[0], unknown_nats - sums[1]
        num_tokens, num_unknown = num_tokens + len(targets_N), num_unknown + int(unknown_N.sum())
    known_tokens = num_tokens - num_unknown
    nats = known_nats + unknown_nats
    return Evaluation(
        perplexity=exp(nats / num_tokens),
        nats_per_token=nats / num_tokens,
        bits_per_byte=nats / math.log(2) / max(text.num_bytes, 1),
        tokens=num_tokens,
        oov=num_unknown,
        perplexity_without_unknown=exp(known_nats / known_tokens) if known_tokens else math.inf,
        seconds=time.perf_counter() - start,
        impossible=impossible,
    )
