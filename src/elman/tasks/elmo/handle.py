"""The handle of a bidirectional language model (ELMo): sentences of words in, vectors out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.base.errors import UsageError
from elman.evaluate.contextual import Layers, layer_vectors
from elman.tasks.elmo.evaluation import BidirectionalEvaluation, evaluate_bidirectional
from elman.tasks.elmo.model import BidirectionalLM, ElmoEmbedder
from elman.tasks.elmo.task import read_sentences
from elman.tasks.handle import Handle
from elman.tasks.opening import OpenedRun
from elman.text.sources import Paths


class Elmo(Handle):
    """A bidirectional language model: vectors for words in context."""

    what = "a bidirectional language model (ELMo)"
    model: BidirectionalLM

    def __init__(self, name: str, run: OpenedRun) -> None:
        super().__init__(name, run)
        self.embedder = ElmoEmbedder(run.model).eval().requires_grad_(False)

    def __repr__(self) -> str:
        return f"Elmo({self.name!r}, {self.embedder.num_layers} layers of {self.embedder.size})"

    def evaluate(self, data: Paths) -> BidirectionalEvaluation:
        """Perplexity of files, one sentence per line, in each direction and together."""
        if self.model.head is None:
            raise UsageError(
                f"{self.name} has no output layer, so it predicts nothing",
                "published weights come without it: evaluate a run of `elman train elmo`",
            )
        tokenizer = self.run.tokenizer
        return evaluate_bidirectional(self.model, tokenizer, read_sentences(data, tokenizer))

    def words(self, line: str) -> list[str]:
        """Split a line into words by the tokenizer; for published weights, at spaces."""
        tokenizer = self.run.tokenizer
        return line.split() if tokenizer is None else list(tokenizer.words(line))

    def contextual(
        self,
        sentences: Iterable[Sequence[str]],
        *,
        layers: Layers = "mix",
        carry_state: bool = False,
    ) -> Iterator[NDArray[np.float32]]:
        """Yield the vectors of each sentence's words, in order: (words, size) of the `top` layer or
        the mean of all (`mix`), (layers, words, size) for `all`. See `layer_vectors`.
        """
        for vectors in layer_vectors(
            self.embedder, sentences, layers=layers, carry_state=carry_state
        ):
            yield vectors.numpy()

    def info(self) -> dict[str, Any]:
        layers, size = self.embedder.num_layers, self.embedder.size
        what = f"{self.what}: {layers} layers of {size} numbers for every word"
        return self.described(what, layers=layers, size=size)
