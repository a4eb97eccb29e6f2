"""The handle of an n-gram model: a language model that lists its n-grams."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from elman.batches.encoded import encode_files
from elman.evaluate.perplexity import Evaluation
from elman.ngrams.arpa_files import is_arpa, open_arpa
from elman.ngrams.model import NgramModel
from elman.ngrams.smoothing import NOT_PROBABILITIES
from elman.ngrams.statistics import num_undefined, unseen
from elman.tasks.counted_model import CountedLM
from elman.tasks.language_model_handle import LM
from elman.text.sources import Paths, expand


class NgramHandle(LM):
    """An n-gram model with its tokenizer, from a run folder or an ARPA file."""

    model: CountedLM[NgramModel]

    @property
    def kind(self) -> str:
        return "ngram"

    @property
    def notes(self) -> list[str]:
        about = self.model.counts.about
        found = [] if self.is_normalised else [NOT_PROBABILITIES]
        # Those of a file of another toolkit; a run's own were printed when it was made.
        return [*found, *about["notes"]] if "source" in about else found

    @property
    def is_normalised(self) -> bool:
        return bool(self.model.counts.about.get("normalised", True))

    @property
    def can_be_undefined(self) -> bool:
        return self.model.counts.can_be_undefined

    def notes_after(self, prefix: str) -> list[str]:
        """Say what is unknown, and if maximum likelihood is 0/0 after `prefix`."""
        notes = super().notes_after(prefix)
        counts = self.model.counts
        read = [self.tokenizer.boundary_id, *self._ids(prefix)]
        context = np.array([read[len(read) - min(len(read), counts.order - 1) :]], np.int64)
        undefined = counts.undefined(context)
        if undefined is None or not undefined[0]:
            return notes
        length = int(counts.context_lengths(context)[0])

        def spelled(ids: list[int]) -> str:
            # A context reaches back to the last boundary.
            ends = [i for i, token in enumerate(ids) if token == self.tokenizer.boundary_id]
            return " ".join(map(self.tokenizer.token, ids[ends[-1] if ends else 0 :]))

        (tokens,) = context.tolist()
        shorter = f"after '{spelled(tokens[-length:])}'" if length else "without a context"
        return [
            *notes,
            f"undefined (0/0): the training text has nothing after '{spelled(tokens)}'; the "
            f"estimates {shorter} are used",
        ]

    def evaluate(
        self,
        data: Paths,
        *,
        batch_size: int | None = None,
        context: int | None = None,
        as_is: bool = False,
    ) -> Evaluation:
        """As for any language model; under maximum likelihood, undefined tokens are counted."""
        found = super().evaluate(data, batch_size=batch_size, context=context, as_is=as_is)
        limited = context is not None and context < self.model.reach
        if limited or not self.can_be_undefined:
            return found
        text, _ = self.encoded(data, as_is=as_is)
        counts = cast(Any, self.model.counts)
        return replace(found, undefined=num_undefined(counts, text.ids))

    def unseen(self, data: Paths) -> list[dict[str, Any]]:
        """For each order, the share of a text's n-grams that the model does not list.

        A row has the order, the number of n-grams, and the shares of them (`unseen_ngrams`) and of
        their contexts (`unseen_contexts`) that are not in the model. A model that was not pruned
        lists all that its training text has.
        """
        text = encode_files(expand(data), self.tokenizer)
        return unseen(self.model.counts.plain(), text.ids, unknown_id=self.tokenizer.unknown_id)

    def info(self) -> dict[str, Any]:
        about = super().info()
        if not self.runs:
            about |= {
                "task": "ngram",
                "path": self.name,
                "ngrams": self.model.counts.growth(),
                "notes": self.notes,
            }
        return about


def open_arpa_file(path: Path, name: str, device: str) -> NgramHandle | None:
    """Open an ARPA file; None where `path` is no ARPA file."""
    if not is_arpa(path):
        return None
    ngrams, tokenizer = open_arpa(path)
    return NgramHandle(name, CountedLM(ngrams), tokenizer)
