"""Translations of lines of text, and how good they are: BLEU and chrF.

The scores are sacrebleu's (Post, 2018), on raw text: it tokenises by itself, in a way that its
signature names, so that figures can be compared across systems. Translation quality by the length
of the source shows what a decoder without attention forgets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from elman.batches.buckets import batches_by_length, pad
from elman.batches.wording import Spelled, Wording
from elman.decode.conditional import decode
from elman.decode.options import DecodeOptions
from elman.decode.prefix import device_of, reading
from elman.evaluate.generated_text import GeneratedText, import_sacrebleu
from elman.tasks.translation.model import SequenceToSequence
from elman.tasks.translation.vocabulary import TokenizerPair

TOKENS_PER_BATCH = 4096
"""Source tokens that are translated side by side, each of them once per hypothesis."""
MOST_TOKENS = 1000
"""The longest translation that is made unasked."""
LENGTHS = (1, 6, 11, 16, 21, 26, 31, 41, 51)
"""Where the groups of source lengths begin, in words."""
FEWEST = 10
"""A group of fewer sentences goes with its neighbour: BLEU of a few says little."""


@dataclass(frozen=True)
class LengthGroup:
    """How good the translations of sources of like length are."""

    shortest: int
    """The shortest source, in words."""
    longest: int
    """The longest."""
    sentences: int
    """How many there are."""
    bleu: float
    """Their corpus BLEU."""


def longest_translation(num_source: int) -> int:
    """How many tokens a translation of so many source tokens may have, where nobody says."""
    return min(MOST_TOKENS, 2 * num_source + 16)


def translate(
    model: SequenceToSequence,
    tokenizers: TokenizerPair,
    lines: Sequence[str],
    config: DecodeOptions,
    *,
    max_tokens: int | None = None,
) -> list[list[GeneratedText]]:
    """`config.num_samples` translations of each line, best first; an empty line's are empty.

    `max_tokens` limits every translation; None fits the limit to each line.
    """
    sources = [tokenizers.encode_source(line) for line in lines]
    found: list[list[GeneratedText]] = [
        [GeneratedText("", 0.0, 0.0, 0, "stop")] * config.num_samples for _ in lines
    ]
    filled = [index for index, line in enumerate(lines) if line.strip()]
    rows = max(1, TOKENS_PER_BATCH // max(config.beam_size, config.num_samples))
    for batch in batches_by_length([len(sources[index]) for index in filled], rows):
        indices = [filled[i] for i in batch]
        source_BS, mask_BS = pad([sources[index] for index in indices])
        limits = [max_tokens or longest_translation(len(sources[index])) for index in indices]
        with reading(model):
            device = model.boundary.device
            wording = _wording(model, tokenizers, [lines[index] for index in indices])
            state = model.condition(source_BS.to(device), mask_BS.to(device), wording)
        boundary_id = tokenizers.target.boundary_id
        texts = decode(model, state, config, boundary_id=boundary_id, limits=limits)
        for index, hypotheses in zip(indices, texts, strict=True):
            found[index] = [
                GeneratedText(
                    tokenizers.decode_target(h.tokens),
                    h.logprob,
                    h.score,
                    len(h.tokens),
                    h.finish_reason,
                )
                for h in hypotheses
            ]
    return found


def _wording(
    model: SequenceToSequence, tokenizers: TokenizerPair, lines: Sequence[str]
) -> Wording | None:
    """The words of lines, where the model looks words up."""
    if not model.embeddings.wanted:
        return None
    return Wording.of([Spelled.of_text(line, tokenizers.source) for line in lines])


@dataclass(frozen=True)
class Alignment:
    """Where the decoder looked while it wrote."""

    source: list[str]
    """The source's tokens, the mark that ends it included."""
    target: list[str]
    """The translation's, likewise."""
    weights: list[list[float]]
    """For each target token, how much each source token was looked at; they sum to one."""


def alignment(
    model: SequenceToSequence, tokenizers: TokenizerPair, line: str, config: DecodeOptions
) -> Alignment:
    """Translate a line, and look at the attention with which its best translation is written."""
    source = tokenizers.encode_source(line)
    boundary_id = tokenizers.target.boundary_id
    with reading(model):
        source_BS = torch.tensor([source], device=model.boundary.device)
        state = model.condition(source_BS, wording=_wording(model, tokenizers, [line]))
    ((best, *_),) = decode(
        model, state, config, boundary_id=boundary_id, limits=[longest_translation(len(source))]
    )
    read_BT = torch.tensor([[boundary_id, *best.tokens[:-1]]], device=device_of(state))
    with reading(model):
        weights_BTS, _ = model.decoder.weights(read_BT, state)
    return Alignment(
        [tokenizers.source.token(id) for id in source],
        [tokenizers.target.token(id) for id in best.tokens],
        weights_BTS[0].tolist(),
    )


def score_by_length(
    sources: Sequence[str], translations: Sequence[str], references: Sequence[str]
) -> list[LengthGroup]:
    """BLEU in groups of sources by their number of words, the shortest first."""
    sacrebleu = import_sacrebleu()
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
            bleu=sacrebleu.BLEU()
            .corpus_score([translations[i] for i in group], [[references[i] for i in group]])
            .score,
        )
        for group in groups
    ]
