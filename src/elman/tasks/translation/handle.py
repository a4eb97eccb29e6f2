"""The handle of a translator: lines in, translations out."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any

from elman.base.errors import UsageError
from elman.decode.options import conditional_options
from elman.decode.tree import Tree
from elman.evaluate.generated_text import GeneratedText, score
from elman.tasks.conditioned import figures
from elman.tasks.handle import Handle
from elman.tasks.opening import OpenedRun
from elman.tasks.translation.evaluation import (
    Alignment,
    TranslationEvaluation,
    alignment,
    measure,
    score_by_length,
    translate,
    translation_tree,
)
from elman.tasks.translation.model import SequenceToSequence
from elman.tasks.translation.pairs import read_pairs
from elman.tasks.translation.pictures import draw_alignment
from elman.tasks.translation.vocabulary import TokenizerPair
from elman.text.pairs import pair_of_files
from elman.text.sources import Paths
from elman.tokens.tokenizer import Tokenizer


class Translator(Handle):
    """A translator with its tokenizers."""

    what = "a translator"
    model: SequenceToSequence

    def __init__(self, name: str, run: OpenedRun) -> None:
        super().__init__(name, run)
        self.tokenizers: TokenizerPair = run.tokenizer

    def translate(self, line: str, **options: Any) -> str:
        """The best translation of a line; options as in `translations`."""
        ((best, *_),) = self.translations([line], **options)
        return best.text

    def translations(
        self,
        lines: Iterable[str],
        *,
        batch_size: int | None = None,
        max_tokens: int | None = None,
        **options: Any,
    ) -> Iterator[list[GeneratedText]]:
        """Yield the `num_samples` best translations, or samples, of each line, in order.

        `batch_size` lines are read and translated at a time; None: 64, on a GPU 1,024. The
        `options` are those of `DecodeOptions`; the default is a beam of 5.
        """
        config = conditional_options(options)
        batch_size = batch_size or (1024 if self.model.boundary.is_cuda else 64)
        waiting = iter(lines)
        while some := list(islice(waiting, batch_size)):
            yield from translate(self.model, self.tokenizers, some, config, max_tokens=max_tokens)

    def align(self, line: str, **options: Any) -> Alignment:
        """The best translation of a line, and the attention to the source for each token."""
        config = replace(conditional_options(options), num_samples=1)
        return alignment(self.model, self.tokenizers, line, config)

    def beam_tree(self, line: str, **sampled: Any) -> tuple[Tree, Tokenizer]:
        """Every step of the beam search for a translation, and the tokenizer that spells it;
        `options` (beam_size and others) and arguments of `decoding_tree`."""
        options = conditional_options(sampled.pop("options", {}))
        found = translation_tree(self.model, self.tokenizers, line, options, **sampled)
        return found, self.tokenizers.target

    def draw_alignment(self, line: str, path: Path | str, **options: Any) -> Alignment:
        """As `align`, and draw it into a file."""
        found = self.align(line, **options)
        draw_alignment(found, Path(path))
        return found

    def evaluate(self, data: Paths, **options: Any) -> TranslationEvaluation:
        """BLEU, chrF and likelihood on two files, source and target."""
        began = time.perf_counter()
        spelled = self.model.embeddings.wanted
        pairs = read_pairs(pair_of_files(data), self.tokenizers, spelled=spelled)
        config = replace(conditional_options(options), num_samples=1)
        measured = measure(self.model, self.tokenizers, pairs, config)
        translations, references = measured.translations, measured.references
        return TranslationEvaluation(
            **asdict(score(translations, references)),
            **figures(measured.prediction),
            sentences=len(pairs),
            seconds=time.perf_counter() - began,
            by_length=score_by_length(measured.sources, translations, references),
        )

    def info(self) -> dict[str, Any]:
        source, target = self.tokenizers.source, self.tokenizers.target
        sizes = f"{target.vocab_size:,} tokens"
        if not self.tokenizers.shared:
            sizes = f"{source.vocab_size:,} source tokens and {sizes}"
        return self.described(
            f"a translator over {sizes} ({target.kind})",
            tokenizer={
                "kind": target.kind,
                "vocab_size": target.vocab_size,
                "source_vocab_size": source.vocab_size,
                "hash": target.hash,
            },
        )


def ask(handle: Translator, text: str) -> dict[str, Any]:
    """Answer the HTTP route: the translation, and the alignment of a model with attention."""
    result = {"text": handle.translate(text)}
    try:
        return result | asdict(handle.align(text))
    except UsageError:
        return result
