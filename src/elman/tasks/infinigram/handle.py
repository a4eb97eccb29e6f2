"""The handle of an n-gram model without a limit on n: a language model that knows its sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from elman.evaluate.perplexity import Evaluation
from elman.evaluate.provenance import Found, IndexedText, Source
from elman.ngrams.unbounded import COUNT, HITS, LENGTH
from elman.tasks.infinigram.model import UnboundedLM
from elman.tasks.language_model_handle import LM
from elman.text.sources import Paths


@dataclass(frozen=True)
class MatchEvaluation(Evaluation):
    """Perplexity, and how often the longest match guesses right."""

    agreement: list[dict[str, Any]] = field(default_factory=list)
    """By length of the longest match: `length` to `longest`, the number of `tokens` predicted, and
    the share of which the most frequent continuation of the match is right; `single_tokens` and
    `single_agreement` are about matches that one token alone follows."""


class InfinigramHandle(LM):
    """An n-gram model without a limit on n, with the index of its text."""

    what = "a model with an index of its text"
    model: UnboundedLM

    @cached_property
    def indexed(self) -> IndexedText:
        """The training text, to look things up in."""
        return IndexedText(self.name, self.model.counts.index, self.tokenizer)

    def find(self, text: str, *, k: int = 10, num_places: int = 5, as_is: bool = False) -> Found:
        """How often a text stands in the training text, what follows it, and where it stands."""
        tokenizer = self.tokenizer if as_is else self.fitted(text)
        return self.indexed.find(text, k=k, num_places=num_places, tokenizer=tokenizer)

    def why(self, ids: Sequence[int], before: Sequence[int] = ()) -> list[Source]:
        """For each token, the longest match that it was predicted from, exactly.

        The tokens `before` are the context of the first one: the boundary token at least.
        """
        read = np.array([*before, *ids], np.int64)
        num_before = len(before)
        counts = self.model.counts
        matches, _ = counts.index.follow(
            read[: num_before - 1], read[num_before - 1 : -1], read[num_before:]
        )
        weights, places = counts.weights(matches).tolist(), self.indexed.stretches(read)
        sources = []
        for at, match, weight in zip(
            range(num_before, len(read)), matches.tolist(), weights, strict=True
        ):
            length, count, hits = match[LENGTH], abs(match[COUNT]), match[HITS]
            shared, _, place = places[at]
            sources.append(
                self.indexed.source(
                    read,
                    at,
                    at,
                    length,
                    count if length else 0,
                    place,
                    share=hits / count if length else None,
                    weight=weight,
                    seen=max(0, shared - 1),
                )
            )
        return sources

    def evaluate(
        self,
        data: Paths,
        *,
        batch_size: int | None = None,
        context: int | None = None,
        as_is: bool = False,
    ) -> MatchEvaluation:
        """As for any language model, with the agreement of the longest match."""
        found = super().evaluate(data, batch_size=batch_size, context=context, as_is=as_is)
        text, _ = self.encoded(data, as_is=as_is)
        rows = self.model.counts.agreement(np.asarray(text.ids, np.int64))
        return MatchEvaluation(**asdict(found), agreement=rows)


def found_for_clients(handle: InfinigramHandle, text: str) -> Found:
    """What `find` returns, with the names of files: clients of a server must not see the paths."""
    found = handle.find(text)
    places = [
        place if place.file is None else replace(place, file=Path(place.file).name)
        for place in found.places
    ]
    return replace(found, places=places)
