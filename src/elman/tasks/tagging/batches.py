"""Batches of tagged sentences: words as ids, their spellings, their labels.

Each spelling of a batch is held once, however often the word occurs: what is computed from
characters is computed once.

B batch, T time steps, U word types of the batch, C characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elman.batches.buckets import pad
from elman.batches.wording import Spelled, Wording
from elman.tasks.tagging.vocabulary import TagVocabulary

NO_LABEL = -1
"""The label of a word whose label is not known."""


@dataclass(frozen=True)
class TaggedBatch:
    """Sentences side by side."""

    words_BT: Tensor
    """Ids of the vocabulary, 0 for unknown words and beyond a sentence."""
    spellings_BT: Tensor
    """Which row of `characters_UC` spells each word."""
    characters_UC: Tensor
    """The spellings that occur."""
    lengths_B: Tensor
    """Words in each sentence, on the processor."""
    labels_BT: Tensor
    """Label ids, `NO_LABEL` where there is none."""
    wording: Wording | None = None
    """The words as they are spelled, for models that look them up elsewhere."""
    fresh: bool = True
    """Sentences stand alone."""

    @property
    def num_rows(self) -> int:
        """How many sentences."""
        return len(self.lengths_B)

    @property
    def num_tokens(self) -> int:
        """How many words."""
        return int(self.lengths_B.sum())

    @property
    def num_targets(self) -> int:
        """The same: each word has a label."""
        return self.num_tokens

    def mask(self) -> Tensor:
        """(B, T), True on real words."""
        time_T = torch.arange(self.words_BT.shape[1], device=self.words_BT.device)
        return time_T < self.lengths_B.to(time_T.device).unsqueeze(1)

    def rows(self, rows: slice) -> TaggedBatch:
        """Some of the sentences."""
        lengths_B = self.lengths_B[rows]
        longest = int(lengths_B.max())
        words, spellings, labels = (
            tensor[rows, :longest] for tensor in (self.words_BT, self.spellings_BT, self.labels_BT)
        )
        wording = None if self.wording is None else self.wording[rows]
        return TaggedBatch(words, spellings, self.characters_UC, lengths_B, labels, wording)

    def to(self, device: str) -> TaggedBatch:
        """The same batch on another device; lengths stay, where packing wants them."""
        moved = (
            tensor.to(device, non_blocking=True)
            for tensor in (self.words_BT, self.spellings_BT, self.characters_UC)
        )
        words, spellings, characters = moved
        labels = self.labels_BT.to(device, non_blocking=True)
        return TaggedBatch(words, spellings, characters, self.lengths_B, labels, self.wording)


@dataclass(frozen=True)
class EncodedSentence:
    """A sentence as numbers: ids of its words, of its spellings, of its labels."""

    words: NDArray[np.int64]
    spellings: NDArray[np.int64]
    labels: NDArray[np.int64]


def tagged_batch(
    sentences: Sequence[EncodedSentence],
    spellings_SC: Tensor,
    spellings: Sequence[str] | None = None,
) -> TaggedBatch:
    """A batch of sentences, none of them empty; `spellings_SC` is the table of all spellings.

    With `spellings`, the same as text, the batch has a wording.
    """
    words_BT, _ = pad([sentence.words for sentence in sentences])
    all_BT, _ = pad([sentence.spellings for sentence in sentences])
    labels_BT, _ = pad([sentence.labels for sentence in sentences], NO_LABEL)
    types_U, spellings_BT = torch.unique(all_BT, return_inverse=True)
    lengths_B = torch.tensor([len(sentence.words) for sentence in sentences])
    wording = None
    if spellings is not None:
        wording = Wording.of(
            [Spelled.of_words([spellings[i] for i in sentence.spellings]) for sentence in sentences]
        )
    return TaggedBatch(words_BT, spellings_BT, spellings_SC[types_U], lengths_B, labels_BT, wording)


@dataclass(frozen=True)
class TaggedData:
    """Sentences as numbers, and the spellings that theirs refer to."""

    sentences: list[EncodedSentence]
    spellings: list[str]

    @property
    def lengths(self) -> list[int]:
        """Words of each sentence."""
        return [len(sentence.words) for sentence in self.sentences]

    @property
    def num_tokens(self) -> int:
        """Words in all."""
        return sum(self.lengths)

    def beginning(self, num_tokens: int | None) -> TaggedData:
        """The first sentences with about so many words; all where it is None."""
        if num_tokens is None or num_tokens >= self.num_tokens:
            return self
        ends = np.cumsum(self.lengths)
        return TaggedData(
            self.sentences[: int(np.searchsorted(ends, num_tokens)) + 1], self.spellings
        )


def encode_tagged(
    rows: Iterable[tuple[Sequence[str], Sequence[str | None]]], vocabulary: TagVocabulary
) -> TaggedData:
    """Words and their tags as numbers; a tag that the vocabulary lacks has no label."""
    known: dict[str, int] = {}
    sentences = []
    for words, tags in rows:
        word_ids = [vocabulary.word_id(word) for word in words]
        spelling_ids = [known.setdefault(word, len(known)) for word in words]
        label_ids = [vocabulary.label_ids.get(tag or "", NO_LABEL) for tag in tags]
        arrays = (np.array(ids, np.int64) for ids in (word_ids, spelling_ids, label_ids))
        sentences.append(EncodedSentence(*arrays))
    return TaggedData(sentences, list(known))
