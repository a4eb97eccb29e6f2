"""Batches of tagged sentences: word ids, spellings and labels.

A batch holds each spelling once, so that character features are computed once per word type.

B batch, T time steps, U word types of the batch, C characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elman.batches.batch import bucket_size
from elman.batches.buckets import SentenceBatch, pad
from elman.batches.wording import Spelled, Wording
from elman.nn.character_cnn import KIM
from elman.tasks.tagging.vocabulary import TagVocabulary

NO_LABEL = -1
"""The label id of a word without a known label."""
CHARACTERS_APART = 16
"""Spellings for CUDA graphs are as long as a multiple of this."""


@dataclass(frozen=True, kw_only=True)
class TaggedBatch(SentenceBatch):
    """Padded sentences."""

    words_BT: Tensor
    """Word ids; 0 for unknown words and padding."""
    spellings_BT: Tensor
    """The row of `characters_UC` that spells each word."""
    characters_UC: Tensor
    labels_BT: Tensor
    """Label ids, or `NO_LABEL`."""

    @cached_property
    def num_targets(self) -> int:
        return self.num_tokens

    def rows(self, rows: slice) -> Self:
        some = super().rows(rows)
        types_U, spellings_BT = torch.unique(some.spellings_BT, return_inverse=True)
        characters_UC = some.characters_UC[types_U]
        return replace(some, spellings_BT=spellings_BT, characters_UC=characters_UC)

    def mask(self) -> Tensor:
        """(B, T), True for real words."""
        time_T = torch.arange(self.words_BT.shape[1], device=self.words_BT.device)
        return time_T < self.read_lengths.to(time_T.device).unsqueeze(1)

    def bucketed(self) -> Self:
        """Pad the spellings too: the first one is repeated, which no word refers to."""
        num_types, width = self.characters_UC.shape
        longest = int((self.characters_UC != KIM.padding).sum(1).max())
        extra = bucket_size(num_types, 1) - num_types
        characters_UC = torch.cat([self.characters_UC, self.characters_UC[:1].expand(extra, -1)])
        width = min(width, -(-longest // CHARACTERS_APART) * CHARACTERS_APART)
        return replace(super().bucketed(), characters_UC=characters_UC[:, :width])


@dataclass(frozen=True)
class EncodedSentence:
    """The ids of a sentence's words, spellings and labels."""

    words: NDArray[np.int64]
    spellings: NDArray[np.int64]
    labels: NDArray[np.int64]


def tagged_batch(
    sentences: Sequence[EncodedSentence],
    spellings_SC: Tensor,
    spellings: Sequence[str] | None = None,
) -> TaggedBatch:
    """Make a batch of non-empty sentences; `spellings_SC` is the table of all spellings.

    With `spellings`, the same spellings as text, the batch has a wording.
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
    return TaggedBatch(
        words_BT=words_BT,
        spellings_BT=spellings_BT,
        characters_UC=spellings_SC[types_U],
        lengths_B=lengths_B,
        labels_BT=labels_BT,
        wording=wording,
    )


@dataclass(frozen=True)
class EncodedSentences:
    """Encoded sentences, and the spellings that they refer to."""

    sentences: list[EncodedSentence]
    spellings: list[str]

    @property
    def lengths(self) -> list[int]:
        return [len(sentence.words) for sentence in self.sentences]


def encode_tagged(
    rows: Iterable[tuple[Sequence[str], Sequence[str | None]]], vocabulary: TagVocabulary
) -> EncodedSentences:
    """Encode words and tags; a tag that is not in the vocabulary gets `NO_LABEL`."""
    known: dict[str, int] = {}
    sentences = []
    for words, tags in rows:
        word_ids = [vocabulary.word_id(word) for word in words]
        spelling_ids = [known.setdefault(word, len(known)) for word in words]
        label_ids = [vocabulary.label_ids.get(tag or "", NO_LABEL) for tag in tags]
        arrays = (np.array(ids, np.int64) for ids in (word_ids, spelling_ids, label_ids))
        sentences.append(EncodedSentence(*arrays))
    return EncodedSentences(sentences, list(known))
