"""The handle of a tagger: sentences in, tags out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from elman.base.counting import some_of
from elman.base.errors import ElmanError, check_text
from elman.tasks.handle import Handle
from elman.tasks.opening import OpenedRun
from elman.tasks.tagging.batches import EncodedSentences, encode_tagged
from elman.tasks.tagging.evaluation import TaggingEvaluation, evaluate_tagger, marginals, predict
from elman.tasks.tagging.model import Tagger as Network
from elman.tasks.tagging.task import read_rows
from elman.tasks.tagging.vocabulary import TagVocabulary
from elman.text.sources import Paths, listed
from elman.text.words import split_words

MOST_LABELS = 6
"""Labels of a word in an answer over HTTP."""
SENTENCES_AT_A_TIME = 512
"""Sentences that are sorted by length and tagged together."""


class Tagger(Handle):
    """A tagger: a tag for every word of a sentence."""

    what = "a tagger"
    model: Network

    def __init__(self, name: str, run: OpenedRun) -> None:
        super().__init__(name, run)
        self.vocabulary: TagVocabulary = run.tokenizer

    def __repr__(self) -> str:
        return f"Tagger({self.name!r}, {len(self.vocabulary.labels)} labels)"

    @property
    def labels(self) -> list[str]:
        """The labels it predicts; those of entities are in BIOES."""
        return list(self.vocabulary.labels)

    @property
    def tags(self) -> list[str]:
        """The tags that `tag` gives, in the scheme of the training file."""
        return self.vocabulary.tags

    def tag(self, sentence: str | Sequence[str]) -> list[tuple[str, str]]:
        """Return each word of a sentence with its tag; a string is split into words first."""
        words = _words(sentence)
        (tags,) = self.tag_all([words])
        return list(zip(words, tags, strict=True))

    def tag_all(self, sentences: Iterable[Sequence[str]]) -> Iterator[list[str]]:
        """Yield the tags of each sentence, given as words, in order: faster than one by one.

        Entities are marked in the scheme of the training file.
        """
        waiting = iter(sentences)
        while some := list(islice(waiting, SENTENCES_AT_A_TIME)):
            for labels in predict(self.model, self._encoded(some)):
                yield self.vocabulary.to_tags([self.vocabulary.labels[label] for label in labels])

    def probabilities(self, sentence: str | Sequence[str]) -> list[dict[str, float]]:
        """The probability of every label for every word of a sentence (exact marginals)."""
        (found,) = marginals(self.model, self._encoded([_words(sentence)]))
        return [dict(zip(self.vocabulary.labels, map(float, row), strict=True)) for row in found]

    def evaluate(self, data: Paths) -> TaggingEvaluation:
        """Accuracy on tagged files, and F1 if the tags are entities."""
        rows = read_rows(listed(data), self.run.config.data.column)
        labels = set(self.labels)
        if not any(labels.intersection(self.vocabulary.to_labels(tags)) for _, tags in rows):
            raise ElmanError(
                f"{', '.join(listed(data))}: {self.name} knows none of the tags there",
                f"name files tagged as those it was trained on: {some_of(self.labels)}",
            )
        return evaluate_tagger(self.model, self.vocabulary, rows)

    def info(self) -> dict[str, Any]:
        vocabulary = self.vocabulary
        return self.described(
            f"a tagger of {len(vocabulary.labels)} labels over {len(vocabulary.words):,} words",
            labels=self.labels,
            scheme=vocabulary.scheme,
            vocab_size=vocabulary.vocab_size,
        )

    def _encoded(self, sentences: Sequence[Sequence[str]]) -> EncodedSentences:
        untagged = ((words, [None] * len(words)) for words in sentences)
        return encode_tagged(untagged, self.vocabulary)


def ask_probabilities(handle: Tagger, text: str) -> list[dict[str, Any]]:
    """Answer the HTTP route: each word with its tag and its most likely labels."""
    answers = []
    for (word, tag), found in zip(handle.tag(text), handle.probabilities(text), strict=True):
        ranked = sorted(found.items(), key=lambda one: -one[1])[:MOST_LABELS]
        answers.append({"word": word, "tag": tag, "probabilities": dict(ranked)})
    return answers


def _words(sentence: str | Sequence[str]) -> list[str]:
    if isinstance(sentence, str):
        return split_words(sentence)
    check_text(sentence, Sequence)
    for word in sentence:
        check_text(word)
    return list(sentence)
