"""Perplexity of a bidirectional language model, in each direction and together.

B batch, X words with the marks around them, U word types.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch

from elman.base.errors import ElmanError
from elman.batches.buckets import batches_by_length
from elman.evaluate.sequences import exp
from elman.models.interface import reading
from elman.tasks.elmo.batches import BidirectionalBatch
from elman.tasks.elmo.model import MARKS, BidirectionalLM, spelled
from elman.tokens.tokenizer import Tokenizer

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
    model: BidirectionalLM, tokenizer: Tokenizer, sentences: Iterable[Sequence[str]]
) -> BidirectionalEvaluation:
    """Measure the perplexity of sentences of words."""
    started = time.perf_counter()
    device = next(model.parameters()).device
    totals = torch.zeros(2, dtype=torch.float64, device=device)
    num_tokens = num_unknown = num_bytes = 0
    stream = iter(sentences)
    while window := list(islice(stream, WINDOW)):
        num_bytes += sum(len(word.encode()) + 1 for words in window for word in words)
        for indices in batches_by_length(
            [len(words) for words in window], TOKENS_PER_BATCH, alike=1
        ):
            batch = _batch([window[i] for i in indices], model, tokenizer)
            num_tokens += batch.num_tokens
            num_unknown += int((batch.targets_BX == unknown_id(tokenizer)).sum())
            moved = batch.to(str(device))
            with reading(model):
                losses = model.losses(moved.characters_UC, moved.places_BX, moved.targets_BX)
            totals += torch.stack([loss.double().sum() for loss in losses])
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


def unknown_id(tokenizer: Tokenizer) -> int:
    assert tokenizer.unknown_id is not None, "a vocabulary of words has one"
    return tokenizer.unknown_id


def _batch(
    rows: list[Sequence[str]], model: BidirectionalLM, tokenizer: Tokenizer
) -> BidirectionalBatch:
    """Make a batch of sentences; words that the model does not predict are unknown targets."""
    types = {mark: place for place, mark in enumerate(MARKS)}
    begin, end = MARKS
    places = [
        [types.setdefault(word, len(types)) for word in (begin, *words, end)] for words in rows
    ]
    known = [tokenizer.id(word) for word in types]
    unknown, limit = unknown_id(tokenizer), model.num_targets
    ids = np.array([unknown if id is None or id >= limit else id for id in known])
    ids[: len(MARKS)] = tokenizer.boundary_id
    places_BX = np.array(places)
    return BidirectionalBatch(
        spelled(list(types), model.config.character_cnn),
        torch.from_numpy(places_BX),
        torch.from_numpy(ids[places_BX]),
    )
