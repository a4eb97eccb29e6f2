"""Translate lines, and measure: BLEU, chrF and the likelihood of the true translations.

BLEU by the length of the source shows what a decoder without attention forgets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from elman.batches.batch import bucket_size, padded
from elman.batches.buckets import batches_by_length, pad
from elman.batches.wording import Spelled, Wording
from elman.decode.conditional import decode
from elman.decode.options import DecodeOptions
from elman.decode.prefix import device_of
from elman.decode.tree import Tree, decoding_tree
from elman.evaluate.conditional import Prediction
from elman.evaluate.generated_text import GeneratedText, can_score, corpus_bleu, score
from elman.models.interface import reading
from elman.tasks.conditioned import figures, likelihood
from elman.tasks.translation.model import SequenceToSequence
from elman.tasks.translation.pairs import Pairs
from elman.tasks.translation.vocabulary import TokenizerPair

TOKENS_PER_BATCH = {"cpu": 4096, "cuda": 1 << 16}
"""Source tokens that are translated at a time, counted once per hypothesis. On a GPU a step of many
takes as long as one of few."""
MOST_TOKENS = 1000
"""The largest default limit of a translation."""
LENGTHS = (1, 6, 11, 16, 21, 26, 31, 41, 51)
"""The shortest source of each length group, in words."""
FEWEST = 10
"""Smaller length groups are merged with a neighbour: BLEU of a few sentences is noise."""


@dataclass(frozen=True)
class LengthGroup:
    """Translations of sources of similar length."""

    shortest: int
    """The shortest source, in words."""
    longest: int
    """The longest source, in words."""
    sentences: int
    """Number of sentences."""
    bleu: float
    """Corpus BLEU."""


@dataclass(frozen=True)
class TranslationEvaluation:
    """Results of a translator."""

    bleu: float
    """Corpus BLEU, from 0 to 100."""
    chrf: float
    """Corpus chrF, from 0 to 100."""
    perplexity: float
    """Perplexity of the true translations."""
    nats_per_token: float
    """Their mean surprisal, natural logarithm."""
    accuracy: float
    """The share of their tokens that were the most likely ones."""
    tokens: int
    """Number of their tokens."""
    sentences: int
    """Number of lines."""
    bleu_signature: str
    """The variant of BLEU, in sacrebleu's notation."""
    chrf_signature: str
    """The variant of chrF."""
    seconds: float
    """How long it took."""
    by_length: list[LengthGroup] = field(default_factory=list)
    """BLEU by the number of words in the source."""


def longest_translation(num_source: int) -> int:
    """The default limit of a translation of `num_source` tokens."""
    return min(MOST_TOKENS, 2 * num_source + 16)


def translate(
    model: SequenceToSequence,
    tokenizers: TokenizerPair,
    lines: Sequence[str],
    config: DecodeOptions,
    *,
    max_tokens: int | None = None,
) -> list[list[GeneratedText]]:
    """Return `config.num_samples` translations of each line, best first; empty for an empty line.

    `max_tokens` limits every translation; None: a limit that depends on the line.
    """
    sources = [tokenizers.encode_source(line) for line in lines]
    empty = GeneratedText("", 0.0, 0.0, 0, "stop")
    found = [[empty] * config.num_samples for _ in lines]
    filled = [index for index, line in enumerate(lines) if line.strip()]
    at_once = TOKENS_PER_BATCH["cpu" if model.boundary.device.type == "cpu" else "cuda"]
    rows = max(1, at_once // max(config.beam_size, config.num_samples))
    for batch in batches_by_length([len(sources[index]) for index in filled], rows):
        indices = [filled[i] for i in batch]
        source_BS, mask_BS = pad([sources[index] for index in indices])
        if model.boundary.is_cuda:  # few shapes, for the graphs of beam search
            size = len(batch), bucket_size(source_BS.shape[1], 2)
            source_BS, mask_BS = padded(source_BS, *size), padded(mask_BS, *size)
        limits = [max_tokens or longest_translation(len(sources[index])) for index in indices]
        with reading(model):
            device = model.boundary.device
            wording = _wording(model, tokenizers, [lines[index] for index in indices])
            state = model.condition(source_BS.to(device), mask_BS.to(device), wording)
        texts = decode(model, state, config, **_special(tokenizers), limits=limits)
        for index, hypotheses in zip(indices, texts, strict=True):
            found[index] = [GeneratedText.of(h, tokenizers.target) for h in hypotheses]
    return found


def translation_tree(
    model: SequenceToSequence,
    tokenizers: TokenizerPair,
    line: str,
    config: DecodeOptions,
    **sampled: Any,
) -> Tree:
    """Every step of the search for a translation; `sampled` are arguments of `decoding_tree`."""
    with reading(model):
        source_BS = torch.tensor([tokenizers.encode_source(line)], device=model.boundary.device)
        state = model.condition(source_BS, wording=_wording(model, tokenizers, [line]))
    boundary_id = tokenizers.target.boundary_id
    config = config.without_unknown(tokenizers.target.unknown_id)
    return decoding_tree(
        model, [], config, boundary_id=boundary_id, end_ids={boundary_id}, state=state, **sampled
    )


def _special(tokenizers: TokenizerPair) -> dict[str, Any]:
    """Arguments of `decode`."""
    target = tokenizers.target
    return {"boundary_id": target.boundary_id, "unknown_id": target.unknown_id}


def _wording(
    model: SequenceToSequence, tokenizers: TokenizerPair, lines: Sequence[str]
) -> Wording | None:
    if not model.embeddings.wanted:
        return None
    return Wording.of([Spelled.of_text(line, tokenizers.source) for line in lines])


@dataclass(frozen=True)
class Alignment:
    """The attention with which a translation was generated."""

    source: list[str]
    """The source tokens, with the boundary at the end."""
    target: list[str]
    """The target tokens, with the boundary at the end."""
    weights: list[list[float]]
    """For each target token, the attention to each source token; sums to 1."""


def alignment(
    model: SequenceToSequence, tokenizers: TokenizerPair, line: str, config: DecodeOptions
) -> Alignment:
    """Translate a line, and return the attention of its best translation."""
    source = tokenizers.encode_source(line)
    boundary_id = tokenizers.target.boundary_id
    with reading(model):
        source_BS = torch.tensor([source], device=model.boundary.device)
        state = model.condition(source_BS, wording=_wording(model, tokenizers, [line]))
    ((best, *_),) = decode(
        model, state, config, **_special(tokenizers), limits=[longest_translation(len(source))]
    )
    read_BT = torch.tensor([[boundary_id, *best.tokens[:-1]]], device=device_of(state))
    with reading(model):
        weights_BTS, _ = model.decoder.weights(read_BT, state)
    return Alignment(
        [tokenizers.source.token(id) for id in source],
        [tokenizers.target.token(id) for id in best.tokens],
        weights_BTS[0].tolist(),
    )


@dataclass(frozen=True)
class Measured:
    """What was measured on pairs of lines."""

    prediction: Prediction
    sources: list[str]
    references: list[str]
    translations: list[str]
    """Empty without sacrebleu."""

    def figures(self) -> dict[str, Any]:
        """By name: BLEU and chrF with sacrebleu, accuracy and likelihood."""
        quality = {}
        if self.translations:
            scores = score(self.translations, self.references)
            quality = {"bleu": scores.bleu, "chrf": scores.chrf}
        return quality | figures(self.prediction)


def measure(
    model: SequenceToSequence, tokenizers: TokenizerPair, pairs: Pairs, config: DecodeOptions
) -> Measured:
    """Predict the true translations, and generate translations."""
    numbers = pairs.numbers
    lengths = np.maximum(pairs.source.lengths[numbers], pairs.target.lengths[numbers]) + 1
    found = likelihood(model, tokenizers.target, pairs, lengths.tolist())
    if not can_score():
        return Measured(found, [], [], [])
    sources, references = pairs.texts()
    translations = [best.text for best, *_ in translate(model, tokenizers, sources, config)]
    return Measured(found, sources, references, translations)


def score_by_length(
    sources: Sequence[str], translations: Sequence[str], references: Sequence[str]
) -> list[LengthGroup]:
    """BLEU in groups by the number of words in the source, shortest first."""
    lengths = [len(source.split()) for source in sources]
    groups: list[list[int]] = []
    for low, high in pairwise((*LENGTHS, 1 << 62)):
        inside = [index for index, length in enumerate(lengths) if low <= length < high]
        if groups and min(len(inside), len(groups[-1])) < FEWEST:
            groups[-1] += inside
        else:
            groups.append(inside)
    return [
        LengthGroup(
            shortest=min(lengths[i] for i in group),
            longest=max(lengths[i] for i in group),
            sentences=len(group),
            bleu=corpus_bleu([translations[i] for i in group], [references[i] for i in group]),
        )
        for group in groups
    ]
