"""The words of a batch as spelled, for embedders that look words up by their letters.

B batch, T time steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from elman.tokens.tokenizer import Tokenizer

NO_WORD = -1
"""The place of a token that belongs to no word, such as an end mark."""


@dataclass(frozen=True)
class Spelled:
    """The words of a sentence, and the word that each token of the model belongs to."""

    words: tuple[str, ...]
    places: tuple[int, ...]
    """For each token the index of its word, or `NO_WORD`."""

    def __len__(self) -> int:
        return len(self.places)

    @classmethod
    def of_words(cls, words: Sequence[str]) -> Spelled:
        """Spell a sentence whose tokens are its words."""
        return cls(tuple(words), tuple(range(len(words))))

    @classmethod
    def of_text(cls, text: str, tokenizer: Tokenizer) -> Spelled:
        """Spell a text whose tokens are those of `tokenizer.encode`.

        Tokens that are whole words give the words, as spelled in the text; word pieces belong to
        the whitespace-separated word that contains them.
        """
        _, spans = tokenizer.encode_spans(text)
        if tokenizer.kind in ("word", "pretokenized"):
            surfaces = [text[start:end] for start, end in spans]
            kept = [place for place, surface in enumerate(surfaces) if surface.strip()]
            number = {place: n for n, place in enumerate(kept)}
            places = tuple(number.get(place, NO_WORD) for place in range(len(spans)))
            return cls(tuple(surfaces[place] for place in kept), places)
        words = text.split()
        ends: list[int] = []  # where each word ends in the text
        position = 0
        for word in words:
            position = text.index(word, position) + len(word)
            ends.append(position)
        places_of = []
        number_of_word = 0
        for start, end in spans:
            if not text[start:end].strip():
                places_of.append(NO_WORD)
                continue
            # A piece may begin with the space before its word, so its last character decides.
            while number_of_word < len(ends) - 1 and end > ends[number_of_word]:
                number_of_word += 1
            places_of.append(number_of_word)
        return cls(tuple(words), tuple(places_of))


@dataclass(frozen=True)
class Wording:
    """The sentences of a batch; moved and sliced together with its tensors."""

    sentences: tuple[Spelled, ...]

    @classmethod
    def of(cls, sentences: Sequence[Spelled]) -> Wording:
        return cls(tuple(sentences))

    def __getitem__(self, rows: slice) -> Wording:
        return Wording(self.sentences[rows])

    def to(self, device: Any, non_blocking: bool = False) -> Wording:
        """Return self: words are on no device."""
        return self

    @property
    def words(self) -> list[tuple[str, ...]]:
        return [sentence.words for sentence in self.sentences]

    def places(self, num_steps: int) -> Tensor:
        """(B, T) the word that each token belongs to; `NO_WORD` beyond a sentence."""
        padding = [NO_WORD] * num_steps
        rows = [(*sentence.places, *padding)[:num_steps] for sentence in self.sentences]
        return torch.tensor(rows, dtype=torch.long)

    @property
    def aligned(self) -> bool:
        """Whether token t is word t in every sentence."""
        return all(
            sentence.places == tuple(range(len(sentence.words))) for sentence in self.sentences
        )
