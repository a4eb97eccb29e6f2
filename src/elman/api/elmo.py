"""A bidirectional language model (ELMo), ready to be asked: sentences of words in, vectors out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.api.handle import Handle
from elman.base.errors import UsageError
from elman.evaluate.bidirectional import BidirectionalEvaluation
from elman.evaluate.contextual import Layers, layer_vectors
from elman.models.elmo import ElmoEmbedder
from elman.recipes.run_folder import Run
from elman.recipes.tasks.elmo import evaluate, of_files
from elman.text.sources import Paths


class Elmo(Handle):
    """A bidirectional language model: vectors for words in context."""

    what = "a bidirectional language model (ELMo)"

    def __init__(self, name: str, run: Run) -> None:
        super().__init__(name, run)
        self.embedder = ElmoEmbedder(run.model).eval().requires_grad_(False)

    def __repr__(self) -> str:
        return f"Elmo({self.name!r}, {self.embedder.num_layers} layers of {self.embedder.size})"

    def evaluate(self, data: Paths) -> BidirectionalEvaluation:
        """The perplexity of files, a sentence a line, in each direction and together."""
        if self.model.head is None:
            raise UsageError(
                f"{self.name} has no output layer, and predicts nothing",
                "ELMo's published weights come without it: evaluate a run of `elman train elmo`",
            )
        tokenizer = self.run.tokenizer
        return evaluate(self.model, tokenizer, of_files(data, tokenizer))

    def words(self, line: str) -> list[str]:
        """The words of a line as the model has learnt them: cut by its tokenizer; published weights
        have none, and words are what stands between spaces."""
        tokenizer = self.run.tokenizer
        return line.split() if tokenizer is None else list(tokenizer.words(line))

    def contextual(
        self,
        sentences: Iterable[Sequence[str]],
        *,
        layers: Layers = "mix",
        carry_state: bool = False,
    ) -> Iterator[NDArray[np.float32]]:
        """The vectors of each sentence's words, in order: (words, size) of the top layer or, as
        `mix`, of the mean of all; (layers, words, size) of `all`. See `layer_vectors`."""
        for vectors in layer_vectors(
            self.embedder, sentences, layers=layers, carry_state=carry_state
        ):
            yield vectors.numpy()

    def info(self) -> dict[str, Any]:
        """What the model is, as plain values."""
        layers, size = self.embedder.num_layers, self.embedder.size
        what = f"{self.what}: {layers} layers of {size} numbers for every word"
        return self.described(what, layers=layers, size=size)
