"""Where in a training text something stands: counts, continuations, places, shared stretches.

`IndexedText` is an index with the tokenizer of its text. It answers for any language model: the
longest stretch that a token shares with the text ends at that token. A model that predicts from the
index itself says more, which its handle adds.

T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elman.base.config import at_least
from elman.base.errors import UsageError, check_text
from elman.base.result_rows import Rows
from elman.ngrams.text_index import Place, TextIndex
from elman.tokens.tokenizer import Tokenizer

NUM_AROUND = 8
"""Words, or characters times five, that are shown on either side of a place."""
_LONGEST_SHOWN = 200
"""Tokens of a match that are spelled."""


@dataclass(frozen=True)
class Occurrence:
    """One place in the text at which a stretch of tokens stands."""

    file: str | None
    """The file; None if the index does not know the lines of its files."""
    line: int | None
    """The line in which the stretch begins, from 1."""
    position: int
    """The number of tokens of the whole text before it."""
    before: str
    """The text before the stretch."""
    text: str
    """The stretch."""
    after: str
    """The text after it."""


@dataclass(frozen=True)
class Found:
    """What an index knows of a stretch of text."""

    count: int
    """How often it occurs."""
    continuations: Rows[tuple[str, int, float]]
    """The most frequent next tokens: token, count, share of all occurrences that go on."""
    num_continuations: int
    """The number of different next tokens."""
    places: list[Occurrence] = field(default_factory=list)
    unknown: int = 0
    """Number of its tokens that are not in the vocabulary."""


@dataclass(frozen=True)
class Source:
    """Where in the text a token comes from."""

    token: str
    length: int
    """Tokens of the longest stretch: that of the match before the token for a model that predicts
    from the index, else that of the stretch which the token ends. 0: none."""
    match: str
    """The stretch; the end of a long one."""
    count: int
    """How often the text has the stretch."""
    file: str | None
    """A file that has the token after the longest stretch."""
    line: int | None
    """The line of the token there."""
    position: int | None = None
    """The number of tokens of the whole text before the token there."""
    share: float | None = None
    """The share of the matches that this token follows; None for other models."""
    weight: float | None = None
    """The weight of that share in the probability of the token; None for other models."""
    seen: int | None = None
    """Tokens of the longest context that the text has this token after, to which the rest of the
    probability backs off; None for other models."""

    @property
    def place(self) -> str:
        return spelled_place(self.file, self.line)


def spelled_place(file: str | None, line: int | None) -> str:
    return "" if file is None else f"{file}:{line}"


class IndexedText:
    """A text to look things up in."""

    def __init__(self, name: str, index: TextIndex, tokenizer: Tokenizer) -> None:
        self.name, self.index, self.tokenizer = name, index, tokenizer

    @cached_property
    def _line_ends(self) -> NDArray[np.int64]:
        return self.tokenizer.line_ends()

    def find(
        self, text: str, *, k: int = 10, num_places: int = 5, tokenizer: Tokenizer | None = None
    ) -> Found:
        """Count a text, and list what follows it and where it stands.

        A token of a sub-word vocabulary usually starts with the space before the word: there a text
        that begins with a word is looked for with a space before it, too. `tokenizer` reads the
        text in another way, as ids of the same vocabulary.
        """
        check_text(text)
        at_least("k", k, 0)
        at_least("places", num_places, 0)
        patterns = [text]
        if self.tokenizer.kind == "bpe" and text[:1].strip():
            patterns.append(f" {text}")
        encoded = [(tokenizer or self.tokenizer).encode(pattern) for pattern in patterns]
        if not len(encoded[0]):
            raise UsageError("there is nothing to find in an empty text", "give a word or more")
        ranges = [(*self.index.rows(ids), len(ids)) for ids in encoded]
        places = list[Occurrence]()
        for low, high, length in ranges:
            # Spread over the range: neighbours in it go on in the same way.
            wanted = min(num_places - len(places), high - low)
            rows = np.linspace(low, high - 1, wanted).round().astype(np.int64)
            for row in rows.tolist():
                (position,) = self.index.positions(row, row + 1).tolist()
                places.append(self.occurrence(position, length))
        tokens, numbers, num_continuations = self._continuations(ranges, k)
        followed = sum(self.index.num_followed(*some) for some in ranges)
        # Of all continuations, which may be very many, only those that are shown become objects.
        frequent = zip(tokens[:k].tolist(), numbers[:k].tolist(), strict=True)
        rows_shown = [(self.tokenizer.token(t), n, n / followed) for t, n in frequent]
        return Found(
            count=sum(high - low for low, high, _ in ranges),
            continuations=Rows(rows_shown, ("token", "count", "share")),
            num_continuations=num_continuations,
            places=places,
            unknown=int((encoded[0] == self.tokenizer.unknown_id).sum()),
        )

    def _continuations(
        self, ranges: Sequence[tuple[int, int, int]], k: int
    ) -> tuple[NDArray[Any], NDArray[Any], int]:
        """The `k` most frequent continuations of all ranges together, or more, how often each
        follows, and the number of all."""
        if len(ranges) == 1:
            return self.index.most_frequent(*ranges[0], k)
        parts = [self.index.continuations(*some) for some in ranges]
        joined = np.concatenate([one for one, _ in parts])
        tokens, which = np.unique(joined, return_inverse=True)
        numbers = np.zeros(len(tokens), np.int64)
        np.add.at(numbers, which, np.concatenate([some for _, some in parts]))
        order = np.lexsort((tokens, -numbers))
        return tokens[order], numbers[order], len(tokens)

    def occurrence(self, position: int, length: int) -> Occurrence:
        """Describe the stretch of tokens at a position."""
        per_word = 5 if self.tokenizer.kind in ("char", "byte") else 1
        around = NUM_AROUND * per_word
        first = max(1, position - around)  # without the boundary token in front
        ids = self.index.tokens(first, position - first + length + around)
        decode, cut = self.tokenizer.decode, position - first
        whole, before, until = decode(ids), decode(ids[:cut]), decode(ids[: cut + length])
        place = self.index.place(position, self._line_ends)
        text, after = whole[len(before) : len(until)], whole[len(until) :]
        return Occurrence(place.file, place.line, position, before, text, after)

    def shared(self, ids: Sequence[int], before: Sequence[int] = ()) -> list[Source]:
        """For each token, the longest stretch of the text that it ends, after tokens `before`."""
        joined = np.array([*before, *ids], np.int64)
        places = self.stretches(joined)
        sources = []
        for end in range(len(before) + 1, len(joined) + 1):
            length, count, place = places[end - 1]
            sources.append(self.source(joined, end - 1, end, length, count, place))
        return sources

    def stretches(self, ids_T: NDArray[Any]) -> list[tuple[int, int, Place | None]]:
        """For each token, the length and the count of the longest stretch of the text that it ends,
        and a place of the token at the end of it."""
        found = []
        for length, count, row in self.index.stretches(ids_T).tolist():
            place = None
            if length:
                (position,) = self.index.positions(row, row + 1).tolist()
                place = self.index.place(position + length - 1, self._line_ends)
            found.append((length, count, place))
        return found

    def source(
        self,
        tokens: NDArray[Any],
        at: int,
        end: int,
        length: int,
        count: int,
        place: Place | None,
        **exact: Any,
    ) -> Source:
        """Describe the token `at`, and the stretch of `length` tokens up to `end`, exclusive."""
        stretch = tokens[max(end - length, end - _LONGEST_SHOWN) : end]
        return Source(
            token=self.tokenizer.token(int(tokens[at])),
            length=length,
            match=self.tokenizer.decode(stretch),
            count=count,
            file=None if place is None else place.file,
            line=None if place is None else place.line,
            position=None if place is None else place.position,
            **exact,
        )
