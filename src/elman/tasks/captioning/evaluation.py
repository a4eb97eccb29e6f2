"""Caption pictures, and measure captions by CIDEr.

CIDEr (Vedantam and others, 2015) rewards words that distinguish a picture from others: it compares
the n-grams of a caption and of a reference by the cosine of their tf-idf weights, with document
frequencies from the references of all pictures. This is the variant that is usually reported,
CIDEr-D: counts are clipped, different lengths are penalised, and the mean over n = 1 to 4 is
multiplied by 10. It is implemented here because the original program needs Java.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
import torch

from elman.decode.conditional import decode
from elman.decode.options import DecodeOptions
from elman.decode.prefix import device_of
from elman.evaluate.generated_text import GeneratedText
from elman.models.interface import reading
from elman.tasks.captioning.batches import Pixels
from elman.tasks.captioning.model import Captioner
from elman.tokens.tokenizer import Tokenizer

LONGEST = 4
"""The longest n-grams that CIDEr compares."""
SPREAD = 6.0
"""The standard deviation of the length penalty."""
PICTURES_PER_BATCH = 32
"""Pictures that are captioned together."""

_Weights = list[dict[tuple[str, ...], float]]


def caption(
    model: Captioner, tokenizer: Tokenizer, pictures: Iterable[Pixels], config: DecodeOptions
) -> Iterator[list[GeneratedText]]:
    """Yield `config.num_samples` captions of each picture, best first."""
    waiting = iter(pictures)
    while some := list(islice(waiting, PICTURES_PER_BATCH)):
        with reading(model):
            device = device_of(model.initial_state(1))
            state = model.condition(torch.from_numpy(np.stack(some)).to(device))
        boundary_id, unknown_id = tokenizer.boundary_id, tokenizer.unknown_id
        for hypotheses in decode(
            model, state, config, boundary_id=boundary_id, unknown_id=unknown_id
        ):
            yield [GeneratedText.of(h, tokenizer) for h in hypotheses]


def cider(captions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """CIDEr-D, from 0 to 10, of captions against the references of their pictures."""
    seen: Counter[tuple[str, ...]] = Counter()
    for each in references:
        seen.update({gram for text in each for gram in _counts(text)})
    log_total = math.log(max(1, len(references)))

    def weights(text: str) -> _Weights:
        by_length: _Weights = [{} for _ in range(LONGEST)]
        for gram, count in _counts(text).items():
            rarity = log_total - math.log(max(1, seen[gram]))
            by_length[len(gram) - 1][gram] = count * rarity
        return by_length

    scores = []
    for text, each in zip(captions, references, strict=True):
        own = weights(text)
        similar = [_similarity(own, weights(other), text, other) for other in each]
        scores.append(math.fsum(similar) / max(1, len(similar)))
    return 10 * math.fsum(scores) / max(1, len(scores))


def _similarity(own: _Weights, other: _Weights, text: str, reference: str) -> float:
    change = len(_words(text)) - len(_words(reference))
    penalty = math.exp(-(change**2) / (2 * SPREAD**2))
    total = 0.0
    for mine, theirs in zip(own, other, strict=True):
        product = math.fsum(
            min(weight, theirs.get(gram, 0.0)) * theirs.get(gram, 0.0)
            for gram, weight in mine.items()
        )
        norm = math.hypot(*mine.values()) * math.hypot(*theirs.values())
        total += product / norm if norm else 0.0
    return penalty * total / LONGEST


def _counts(text: str) -> Counter[tuple[str, ...]]:
    words = _words(text)
    return Counter(
        tuple(words[start : start + n])
        for n in range(1, LONGEST + 1)
        for start in range(len(words) - n + 1)
    )


def _words(text: str) -> list[str]:
    return re.findall(r"[\w']+", text.lower())
