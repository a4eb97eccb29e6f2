"""Perplexity of a bidirectional language model, in each direction and together.

B batch, X words with the marks around them, U word types.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch

from elman.base.errors import ElmanError
from elman.batches.buckets import batches_by_length
from elman.evaluate.sequences import exp
from elman.tasks.elmo.batches import BidirectionalBatch
from elman.tasks.elmo.model import MARKS, BidirectionalLM, spelled

WINDOW = 4096
"""Sentences that are sorted by length together."""
TOKENS_PER_BATCH = 4096
"""Words that are read at a time."""


@dataclass(frozen=True)
class BidirectionalEvaluation:
    """How well a text is predicted in both directions."""

    perplexity: float
    """exp(nats_per_token), of both directions together."""
    forward_perplexity: float
    """Perplexity of each word given those before it; the sentence end is a word."""
    backward_perplexity: float
    """Perplexity of each word given those after it; the sentence begin is a word."""
    nats_per_token: float
    """Mean surprisal of a token over both directions, natural logarithm."""
    bits_per_byte: float
    """The same per byte of the words with a space after each."""
    tokens: int
    """Number of tokens in each direction, sentence ends included."""
    oov: int
    """Tokens that are predicted as the unknown word."""
    seconds: float
    """How long it took."""


def evaluate_bidirectional(
    model: BidirectionalLM,
    sentences: Iterable[Sequence[str]],
    target: Callable[[str], int],
    *,
    boundary_id: int,
    unknown_id: int,
) -> BidirectionalEvaluation:
    """Measure sentences of words; `target` gives the id that stands for a word."""
    started = time.perf_counter()
    device = next(model.parameters()).device
    totals = torch.zeros(2, dtype=torch.float64, device=device)
    num_tokens = num_unknown = num_bytes = 0
    stream = iter(sentences)
    training = model.training
    model.eval()
    try:
        while window := list(islice(stream, WINDOW)):
            num_bytes += sum(len(word.encode()) + 1 for words in window for word in words)
            for indices in batches_by_length(
                [len(words) for words in window], TOKENS_PER_BATCH, alike=1
            ):
                batch = _batch([window[i] for i in indices], model, target, boundary_id)
                num_tokens += batch.num_tokens
                num_unknown += int((batch.targets_BX == unknown_id).sum())
                moved = batch.to(str(device))
                with torch.no_grad():
                    losses = model.losses(moved.characters_UC, moved.places_BX, moved.targets_BX)
                totals += torch.stack([loss.double().sum() for loss in losses])
    finally:
        model.train(training)
    if not num_tokens:
        raise ElmanError("nothing to evaluate: the text is empty", "check the file")
    forward, backward = totals.tolist()
    nats = (forward + backward) / 2
    return BidirectionalEvaluation(
        perplexity=exp(nats / num_tokens),
        forward_perplexity=exp(forward / num_tokens),
        backward_perplexity=exp(backward / num_tokens),
        nats_per_token=nats / num_tokens,
        bits_per_byte=nats / math.log(2) / max(1, num_bytes),
        tokens=num_tokens,
        oov=num_unknown,
        seconds=time.perf_counter() - started,
    )


def _batch(
    rows: list[Sequence[str]], model: BidirectionalLM, target: Callable[[str], int], boundary: int
) -> BidirectionalBatch:
    types = {mark: place for place, mark in enumerate(MARKS)}
    begin, end = MARKS
    places = [
        [types.setdefault(word, len(types)) for word in (begin, *words, end)] for words in rows
    ]
    ids = np.array([target(word) for word in types])
    ids[: len(MARKS)] = boundary
    places_BX = np.array(places)
    return BidirectionalBatch(
        spelled(list(types), model.config.character_cnn),
        torch.from_numpy(places_BX),
        torch.from_numpy(ids[places_BX]),
    )
