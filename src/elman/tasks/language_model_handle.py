"""The handle of a language model: a model with its tokenizer, from text to text.

It measures (`language_model_measuring.py`), continues (`language_model_continuing.py`) and looks
inside. Text is encoded and decoded in these files; the rest works on ids.

T time steps, E embedding, H hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from elman.base.config import at_least
from elman.base.errors import ElmanError, UsageError, check_k, closest, nearest
from elman.base.result_rows import Rows
from elman.batches.encoded import encode_files
from elman.evaluate.adaptation import Trial
from elman.evaluate.contextual import Layers, layer_vectors
from elman.evaluate.embeddings import (
    contextual_vectors,
    neighbours,
    sequence_vectors,
    word_vectors,
)
from elman.evaluate.inside import Inside, inside
from elman.evaluate.novelty import Novelty, novelty
from elman.evaluate.provenance import IndexedText
from elman.models.cache import CacheConfig
from elman.models.dynamic import DynamicConfig
from elman.models.embedder import Embedder
from elman.models.mixture import Mixture
from elman.models.recurrent import RecurrentLM
from elman.nn.kernels import plans_by_layer, recorded_plans
from elman.tasks.describe import describe_run, describe_tokenizer
from elman.tasks.embeddings import embedder_of
from elman.tasks.language_model_continuing import Completion as Completion
from elman.tasks.language_model_continuing import Continuing
from elman.tasks.language_model_measuring import Measuring
from elman.tasks.opening import OpenedRun
from elman.text.sources import Paths, expand, listed

if TYPE_CHECKING:
    from elman.tasks.adapted_handle import AdaptedLM

Kind = Literal["word", "token", "sequence"]
INTERNAL = {
    *("can_be_undefined", "decoding", "embedder", "encoded", "end_ids", "is_normalised", "kind"),
    *("line_end", "notes_after", "of_run", "parts", "runs", "task", "unit", "what"),
}
"""Names of `LM` that other modules use, which completion does not offer."""
Vectors = NDArray[np.float32]
WRITTEN_AT_ONCE, WRITTEN_LENGTH = 32, 512
"""Texts that `novelty` writes at a time, and the tokens of each."""


class LM(Measuring, Continuing):
    """A language model with its tokenizer."""

    what = "a language model"
    parts: tuple[LM, ...]

    @classmethod
    def of_run(cls, name: str, run: OpenedRun) -> LM:
        return cls(name, run.model, run.tokenizer, [run])

    def __repr__(self) -> str:
        return f"LM({self.name!r}, {self.tokenizer})"

    def __dir__(self) -> Iterable[str]:
        return sorted(set(super().__dir__()) - INTERNAL)

    def adapting(
        self,
        *,
        adapt: bool | Mapping[str, Any] | DynamicConfig = False,
        cache: bool | Mapping[str, Any] | CacheConfig = False,
        temperature: float | None = None,
        samples: int | None = None,
        dropout_scale: float | None = None,
        tune: Paths = (),
        on_trial: Callable[[Trial], None] | None = None,
        on_note: Callable[[str], None] | None = None,
    ) -> AdaptedLM:
        """The model as one that adapts to what it reads: see `elman.tasks.adapted_handle`.

        `adapt` lets networks keep training (dynamic evaluation), `cache` mixes in the words that
        followed similar contexts; both take settings, such as {"rate": 0.0001}. `temperature` is
        that of the softmax of networks; `samples` lets them predict the mean over this many dropout
        masks, with rates of dropout times `dropout_scale`. With `tune`, files of validation text,
        settings are found there: the temperature if it is given or nothing else is, and the scale
        of dropout if there are samples and it is not given. `on_trial` is called with every one
        tried, `on_note` before something that takes long.
        """
        from elman.tasks.adapted_handle import adapting

        return adapting(
            self,
            adapt_with=adapt,
            cache=cache,
            temperature=temperature,
            samples=samples,
            dropout_scale=dropout_scale,
            tune_on=tune,
            on_trial=on_trial,
            on_note=on_note,
        )

    def novelty(
        self,
        indexed: IndexedText,
        data: Paths = (),
        *,
        num_tokens: int = 10_000,
        seed: int = 1,
        as_is: bool = False,
    ) -> Novelty:
        """How much of what the model writes stands verbatim in an indexed text, by length.

        It writes `num_tokens` tokens or a few more, from the beginning of a text. `data`, held-out
        text cut to the same lengths, is for comparison.
        """
        at_least("num_tokens", num_tokens, 1)
        same = indexed.tokenizer.hash == self.tokenizer.hash
        written: list[NDArray[np.int64]] = []
        total = 0
        while total < num_tokens:
            rows = min(WRITTEN_AT_ONCE, -(-(num_tokens - total) // WRITTEN_LENGTH))
            length = min(WRITTEN_LENGTH, -(-(num_tokens - total) // rows))
            options: dict[str, Any] = {"max_tokens": length, "num_samples": rows}
            made = self.complete("", seed=seed + len(written), **options)
            if not any(one.tokens for one in made):
                raise ElmanError(f"{self.name} ends every text at once", "train it for longer")
            for one in made:
                other = () if same else indexed.tokenizer.encode(one.text)
                written.append(np.array(one.ids if same else other, np.int64))
            total += sum(one.tokens for one in made)
        pieces: list[NDArray[np.int64]] = []
        if listed(data):
            if same:
                text, _ = self.encoded(data, as_is=as_is)
            else:
                text = encode_files(expand(data), indexed.tokenizer)
            ends = np.cumsum([0, *map(len, written)]).tolist()
            pieces = [text.slice(start, end) for start, end in pairwise(ends)]
        return novelty(indexed, written, [piece for piece in pieces if len(piece)])

    # Looking inside

    def inside(
        self,
        text: str | Sequence[int],
        *,
        layer: int = 0,
        part: str = "h",
        target: int | None = None,
    ) -> Inside:
        """States and gates of a layer while the model reads `text`, and gradients of a prediction.

        `part` is a letter of the cell's equations. `target` is the place of the token whose
        prediction the gradients are about, from 1; by default the last one. For recurrent models.
        """
        model = self.model
        if not isinstance(model, RecurrentLM):
            has = "is a mixture, which has" if self.parts else "has"
            raise UsageError(
                f"{self.name} {has} no recurrent layers to look into",
                "name one of its parts" if self.parts else "name the run of a recurrent model",
            )
        ids = [self.tokenizer.boundary_id, *self._ids(text)]
        spellings = [self.tokenizer.token(token) for token in ids]
        return inside(model, ids, spellings, layer=layer, part=part, target=target)

    def embed(self, text: str, *, kind: Kind = "sequence") -> Vectors:
        """The vector of a text (H,), or of each of its tokens (T, E or H): see `embeddings`."""
        return next(self.embeddings([text], kind=kind))

    def embeddings(self, texts: Iterable[str], *, kind: Kind = "sequence") -> Iterator[Vectors]:
        """One array per text, in order; each text is read separately.

        `word`: a vector per token, independent of context (T, E). `token`: a vector per
        token in its left context (T, H). `sequence`: the vector after the last token (H,).
        """
        boundary_id = self.tokenizer.boundary_id
        sequences = (self._ids(text) for text in texts)
        if kind == "word":
            vectors_VE = word_vectors(self.model).float().cpu().numpy()
            yield from (vectors_VE[ids] for ids in sequences)
        elif kind == "token":
            found = contextual_vectors(self.model, sequences, boundary_id=boundary_id)
            yield from (vectors_TH.numpy() for vectors_TH in found)
        elif kind == "sequence":
            found = sequence_vectors(self.model, sequences, boundary_id=boundary_id)
            yield from (vector_H.numpy() for vector_H in found)
        else:
            raise UsageError(
                f"kind cannot be '{kind}'", nearest(kind, ("word", "token", "sequence"))
            )

    def words(self, line: str) -> list[str]:
        """Split a line into the words that `contextual` takes: with a word tokenizer, else at
        spaces."""
        whole = self.tokenizer.kind in ("word", "pretokenized")
        return self.tokenizer.words(line) if whole else line.split()

    def contextual(
        self,
        sentences: Iterable[Sequence[str]],
        *,
        layers: Layers = "mix",
        carry_state: bool = False,
    ) -> Iterator[Vectors]:
        """One array per sentence of words, in order: a vector per word in its left context.

        `top`: (words, H) of the top layer; `mix`: of the mean of the layers of the same width;
        `all`: (layers, words, H) of these layers.
        """
        found = layer_vectors(self.embedder, sentences, layers=layers, carry_state=carry_state)
        return (vectors.numpy() for vectors in found)

    @cached_property
    def embedder(self) -> Embedder:
        return embedder_of(self.task, self.model, self.tokenizer, self.name)

    def word_vector(self, word: str) -> Vectors:
        """The vector (E,) of one token of the vocabulary."""
        vector: Vectors = word_vectors(self.model)[self._word_id(word)].float().cpu().numpy()
        return vector

    def neighbours(self, word: str, k: int = 10) -> Rows[tuple[str, float]]:
        """The `k` words whose vectors are nearest to the vector of `word`, with their cosines."""
        check_k(k)
        token = self._word_id(word)
        tokenizer = self.tokenizer
        special = [i for i in (tokenizer.boundary_id, tokenizer.unknown_id) if i is not None]
        found = neighbours(word_vectors(self.model), token, k, exclude=special)
        rows = [(self.tokenizer.token(other), cosine) for other, cosine in found]
        return Rows(rows, ("word", "cosine"))

    def _word_id(self, word: str) -> int:
        # A token of a sub-word vocabulary usually starts with the space before the word.
        for spelling in (word, f" {word}"):
            token = self.tokenizer.id(spelling)
            if token is not None:
                return token
        near = closest(word, self.tokenizer.spellings())
        raise UsageError(
            f"'{word}' is not a token of this model",
            "`elman next MODEL` shows how tokens are written"
            if near is None
            else f"did you mean '{near}'?",
        )

    def _generation_plans(self) -> dict[str, str]:
        """The kernel of each layer when generating one text, found by running one step."""
        network = getattr(self.decoding, "model", None)
        if not isinstance(network, nn.Module):
            return {}
        with recorded_plans() as plans:
            device = next(network.parameters()).device
            first = torch.tensor([self.tokenizer.boundary_id], device=device)
            self.decoding.step(first, self.decoding.initial_state(1))
        return plans_by_layer(network, plans)

    def info(self) -> dict[str, Any]:
        """Describe the model as plain values: parts, kernels, tokenizer, training, figures."""
        about: dict[str, Any] = {
            "name": self.name,
            "kind": self.kind,
            "tokenizer": describe_tokenizer(self.tokenizer),
        }
        if isinstance(self.model, Mixture):
            about["parts"] = [
                {"weight": weight, **part.info()}
                for part, weight in zip(self.parts, self.model.weights, strict=True)
            ]
        elif self.runs:
            about |= describe_run(self.runs[0])
            about["generation"] = self._generation_plans()
        return about
