"""A tagger with its words and labels, ready to be asked: sentences in, tags out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from elman.base.errors import ElmanError
from elman.tasks.handle import Handle
from elman.tasks.opening import OpenedRun
from elman.tasks.tagging.batches import encode_tagged
from elman.tasks.tagging.evaluation import TaggingEvaluation, evaluate_tagger, marginals, predict
from elman.tasks.tagging.task import read_rows
from elman.text.sources import Paths, listed
from elman.text.words import split_words

SENTENCES_AT_A_TIME = 512
"""Sentences that are tagged together: those of one length side by side."""


class Tagger(Handle):
    """A tagger: a tag for every word of a sentence."""

    what = "a tagger"

    def __init__(self, name: str, run: OpenedRun) -> None:
        super().__init__(name, run)
        self.vocabulary = run.tokenizer

    def __repr__(self) -> str:
        return f"Tagger({self.name!r}, {len(self.vocabulary.labels)} labels)"

    @property
    def labels(self) -> list[str]:
        """The labels that it tells apart; those of entities in BIOES."""
        return list(self.vocabulary.labels)

    def tag(self, sentence: str | Sequence[str]) -> list[tuple[str, str]]:
        """The words of one sentence, each with its tag; a text is split into words and marks."""
        words = split_words(sentence) if isinstance(sentence, str) else list(sentence)
        (tags,) = self.tag_all([words])
        return list(zip(words, tags, strict=True))

    def tag_all(self, sentences: Iterable[Sequence[str]]) -> Iterator[list[str]]:
        """The tags of each sentence, given as words, in order; many sentences are quicker than one.

        Entities are marked in the scheme of the file that the tagger learnt from.
        """
        waiting = iter(sentences)
        while some := list(islice(waiting, SENTENCES_AT_A_TIME)):
            for labels in predict(self.model, self._encoded(some)):
                names = [self.vocabulary.labels[label] for label in labels]
                yield self.vocabulary.told(names)

    def probabilities(self, sentence: str | Sequence[str]) -> list[dict[str, float]]:
        """The probability of every label for every word of one sentence (exact marginals)."""
        words = split_words(sentence) if isinstance(sentence, str) else list(sentence)
        (found,) = marginals(self.model, self._encoded([words]))
        return [dict(zip(self.vocabulary.labels, map(float, row), strict=True)) for row in found]

    def evaluate(self, data: Paths) -> TaggingEvaluation:
        """Accuracy, and F1 where the tags are entities, on tagged files."""
        rows = read_rows(listed(data), self.run.config.data.column)
        labels = set(self.labels)
        if not any(labels.intersection(self.vocabulary.labelled(tags)) for _, tags in rows):
            some = ", ".join(self.labels[:5]) + (", ..." if len(labels) > 5 else "")
            raise ElmanError(
                f"{', '.join(listed(data))}: {self.name} knows none of the tags there",
                f"name files tagged as those it learnt from: {some}",
            )
        return evaluate_tagger(self.model, self.vocabulary, rows)

    def info(self) -> dict[str, Any]:
        """What the tagger is, as plain values."""
        vocabulary = self.vocabulary
        return self.described(
            f"a tagger of {len(vocabulary.labels)} labels over {len(vocabulary.words):,} words",
            labels=self.labels,
            scheme=vocabulary.scheme,
            vocab_size=vocabulary.vocab_size,
        )

    def _encoded(self, sentences: Sequence[Sequence[str]]) -> Any:
        unknown = ((words, [None] * len(words)) for words in sentences)
        return encode_tagged(unknown, self.vocabulary)
