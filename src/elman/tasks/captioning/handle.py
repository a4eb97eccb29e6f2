"""The handle of a captioner: pictures in, sentences out."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from elman.base.files import explained, regular
from elman.decode.options import conditional_options
from elman.evaluate.generated_text import GeneratedText
from elman.tasks.captioning.batches import Pixels, decode_picture, read_captions
from elman.tasks.captioning.evaluation import caption
from elman.tasks.captioning.model import Captioner as Network
from elman.tasks.captioning.task import BEAM, encode_captions, measure, one_table
from elman.tasks.describe import describe_tokenizer
from elman.tasks.handle import Handle
from elman.tasks.opening import OpenedRun
from elman.text.sources import Paths
from elman.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class CaptionEvaluation:
    """Results of a captioner."""

    cider: float
    """CIDEr-D of its captions, from 0 to 10."""
    bleu: float | None
    """Corpus BLEU in lower case, from 0 to 100; None without sacrebleu."""
    perplexity: float
    """Perplexity of the true sentences."""
    nats_per_token: float
    """Their mean surprisal, natural logarithm."""
    accuracy: float
    """The share of their tokens that were the most likely ones."""
    tokens: int
    """Number of their tokens."""
    sentences: int
    """Number of sentences."""
    seconds: float
    """How long it took."""


class Captioner(Handle):
    """A captioner with its tokenizer."""

    what = "a captioner"
    model: Network

    def __init__(self, name: str, run: OpenedRun) -> None:
        super().__init__(name, run)
        self.tokenizer: Tokenizer = run.tokenizer

    def caption(self, image: Path | str, **options: Any) -> str:
        """The best sentence about a picture; options as in `captions`."""
        ((best, *_),) = self.captions([image], **options)
        return best.text

    def captions(
        self, images: Iterable[Path | str], **options: Any
    ) -> Iterator[list[GeneratedText]]:
        """Yield the `num_samples` best sentences, or samples, for each picture file, in order.

        The `options` are those of `DecodeOptions`; the default is a beam of 5.
        """
        config = conditional_options({"max_tokens": BEAM.max_tokens, **options})
        return caption(self.model, self.tokenizer, map(self._pixels, images), config)

    def evaluate(self, data: Paths, *, pictures: Path | str = "") -> CaptionEvaluation:
        """CIDEr, BLEU and likelihood on a table of images and sentences.

        `pictures` is a folder with more of them. One that the run's configuration names is not
        read: the run may come from someone else.
        """
        began = time.perf_counter()
        read = read_captions(one_table(data))
        config = self.run.config
        config = replace(config, data=replace(config.data, pictures=str(pictures)))
        captions = encode_captions(read, self.tokenizer, config)
        figures: dict[str, Any] = {"bleu": None, **measure(self.model, self.tokenizer, captions)}
        return CaptionEvaluation(
            **figures, sentences=len(captions), seconds=time.perf_counter() - began
        )

    def info(self) -> dict[str, Any]:
        blind = "a blind captioner" if self.model.config.blind else "a captioner"
        tokenizer = self.tokenizer
        return self.described(
            f"{blind} over {tokenizer.vocab_size:,} tokens ({tokenizer.kind})",
            tokenizer=describe_tokenizer(tokenizer),
        )

    def _pixels(self, image: Path | str) -> Pixels:
        with explained(image):
            data = regular(Path(image), or_pipe=True).read_bytes()
        return decode_picture(data, str(image), self.model.config.height, self.model.config.width)
