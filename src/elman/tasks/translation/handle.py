"""The handle of a translator: lines in, translations out."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from elman.decode.options import conditional_options
from elman.evaluate.generated_text import GeneratedText, score
from elman.tasks.handle import Handle
from elman.tasks.opening import OpenedRun
from elman.tasks.translation.evaluation import (
    Alignment,
    LengthGroup,
    alignment,
    score_by_length,
    translate,
)
from elman.tasks.translation.model import SequenceToSequence
from elman.tasks.translation.pictures import draw_alignment
from elman.tasks.translation.task import measure, read_pairs
from elman.tasks.translation.vocabulary import TokenizerPair
from elman.text.pairs import pair_of_files
from elman.text.sources import Paths


@dataclass(frozen=True)
class TranslationEvaluation:
    """How well a translator does."""

    bleu: float
    """Corpus BLEU, from 0 to 100."""
    chrf: float
    """Corpus chrF, from 0 to 100."""
    perplexity: float
    """Of the true translations."""
    nats_per_token: float
    """Their average surprisal, natural logarithm."""
    accuracy: float
    """The share of their tokens that were the most likely ones."""
    tokens: int
    """How many tokens they have."""
    sentences: int
    """How many lines there are."""
    bleu_signature: str
    """What was measured, in sacrebleu's notation."""
    chrf_signature: str
    """Likewise."""
    seconds: float
    """How long it took."""
    by_length: list[LengthGroup] = field(default_factory=list)
    """BLEU by the number of words in the source."""


class Translator(Handle):
    """A translator with its tokenizers."""

    what = "a translator"
    model: SequenceToSequence

    def __init__(self, name: str, run: OpenedRun) -> None:
        super().__init__(name, run)
        self.tokenizers: TokenizerPair = run.tokenizer

    def __repr__(self) -> str:
        return f"Translator({self.name!r})"

    def translate(self, line: str, **options: Any) -> str:
        """The best translation of one line; options as in `translations`."""
        ((best, *_),) = self.translations([line], **options)
        return best.text

    def translations(
        self,
        lines: Iterable[str],
        *,
        batch_size: int = 64,
        max_tokens: int | None = None,
        **options: Any,
    ) -> Iterator[list[GeneratedText]]:
        """For each line, in order, its `num_samples` best translations, or draws.

        Lines are taken in as many at a time as `batch_size` says, so that a stream flows. The
        `options` are those of `DecodeOptions`; by default a beam of 5.
        """
        decoding = conditional_options(options)
        waiting = iter(lines)
        while some := list(islice(waiting, batch_size)):
            yield from translate(self.model, self.tokenizers, some, decoding, max_tokens=max_tokens)

    def align(self, line: str, **options: Any) -> Alignment:
        """A line's best translation, and where the decoder looked for each of its tokens."""
        decoding = replace(conditional_options(options), num_samples=1)
        return alignment(self.model, self.tokenizers, line, decoding)

    def draw_alignment(self, line: str, path: Path | str, **options: Any) -> Alignment:
        """`align`, as a picture in a file too."""
        found = self.align(line, **options)
        draw_alignment(found, Path(path))
        return found

    def evaluate(self, data: Paths, **options: Any) -> TranslationEvaluation:
        """BLEU, chrF and likelihood on two files, source and target."""
        began = time.perf_counter()
        wanted = self.model.embeddings.wanted
        pairs = read_pairs(pair_of_files(data), self.tokenizers, spelled=wanted)
        decoding = replace(conditional_options(options), num_samples=1)
        measured = measure(self.model, self.tokenizers, pairs, decoding)
        texts = measured.sources, measured.translations, measured.references
        found = measured.prediction
        return TranslationEvaluation(
            **asdict(score(*texts[1:])),
            perplexity=found.perplexity,
            nats_per_token=found.nats_per_token,
            accuracy=found.accuracy,
            tokens=found.tokens,
            sentences=len(pairs),
            seconds=time.perf_counter() - began,
            by_length=score_by_length(*texts),
        )

    def info(self) -> dict[str, Any]:
        """What the model is, as plain values: parts, kernels, tokenizers, training, figures."""
        sizes = [f"{self.tokenizers.target.vocab_size:,} tokens"]
        if not self.tokenizers.shared:
            sizes.insert(0, f"{self.tokenizers.source.vocab_size:,} source tokens")
        kind = self.tokenizers.target.kind
        return self.described(
            f"a translator over {' and '.join(sizes)} ({kind})",
            tokenizer={
                "kind": kind,
                "vocab_size": self.tokenizers.target.vocab_size,
                "source_vocab_size": self.tokenizers.source.vocab_size,
                "hash": self.tokenizers.target.hash,
            },
        )
