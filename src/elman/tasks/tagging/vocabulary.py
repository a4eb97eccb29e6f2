"""The words and labels of a tagger.

The words of treebanks come separated (some contain spaces), so there is no tokenizer: a word has an
id or is unknown. Entities are labelled in BIOES internally, whatever scheme their file uses, so
that their edges have labels of their own. `to_labels` and `to_tags` convert.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from elman.base.documents import is_list_of_names, read_json, write_json
from elman.base.errors import ElmanError
from elman.tasks.tagging.entities import Scheme, in_scheme, scheme_of, spans, tags_of
from elman.tokens.counting import most_frequent

UNKNOWN_ID = 0
"""The id of all words that are not in the vocabulary."""


@dataclass(frozen=True)
class TagVocabulary:
    """Words by frequency, from id 1 on, and labels in alphabetical order."""

    scheme: Scheme | None
    """The scheme of the training file; None if its tags are not entities."""
    lowercase: bool
    """Whether words are looked up in lower case (spellings keep their capitals)."""
    labels: tuple[str, ...]
    words: tuple[str, ...]

    @property
    def vocab_size(self) -> int:
        return len(self.words) + 1

    @property
    def tags(self) -> list[str]:
        """The tags of a sentence, in the scheme of the training file."""
        return list(self.labels) if self.scheme is None else tags_of(self.labels, self.scheme)

    @cached_property
    def label_ids(self) -> dict[str, int]:
        return {label: index for index, label in enumerate(self.labels)}

    @cached_property
    def _word_ids(self) -> dict[str, int]:
        return {word: index for index, word in enumerate(self.words, start=1)}

    @cached_property
    def hash(self) -> str:
        """Depends on the names and the order of the fields: saved models compare it."""
        text = json.dumps(asdict(self), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def word_id(self, word: str) -> int:
        return self._word_ids.get(word.lower() if self.lowercase else word, UNKNOWN_ID)

    def to_labels(self, tags: Sequence[str | None]) -> list[str | None]:
        """Convert tags of a file to labels."""
        if self.scheme is None or None in tags:
            return list(tags)
        given = [tag for tag in tags if tag is not None]
        return list(in_scheme(spans(given), len(given), "bioes"))

    def to_tags(self, labels: Sequence[str]) -> list[str]:
        """Convert labels to tags in the scheme of the training file."""
        if self.scheme is None:
            return list(labels)
        return in_scheme(spans(labels), len(labels), self.scheme)

    def save(self, path: Path) -> None:
        write_json(path, asdict(self), seal=True)

    @staticmethod
    def load(path: Path) -> TagVocabulary:
        return TagVocabulary.of(read_json(path), path)

    @staticmethod
    def of(data: Any, path: Path) -> TagVocabulary:
        """The vocabulary of the fields that `path` has."""
        names = {f.name for f in fields(TagVocabulary)}
        if (
            not isinstance(data, dict)
            or data.keys() != names
            or data["scheme"] not in (None, *get_args(Scheme))
            or not isinstance(data["lowercase"], bool)
            or not all(is_list_of_names(data[name]) for name in ("labels", "words"))
        ):
            raise ElmanError(
                f"{path} is not the vocabulary of a tagger", "restore the file from a copy"
            )
        lists = {name: tuple(data[name]) for name in ("labels", "words")}
        return TagVocabulary(**(data | lists))


def make_vocabulary(
    rows: Iterable[tuple[Sequence[str], Sequence[str | None]]],
    *,
    min_count: int = 1,
    vocab_size: int = 0,
    lowercase: bool = False,
) -> tuple[TagVocabulary, list[int]]:
    """The vocabulary of tagged sentences, and how often each word id occurs in them."""
    listed = list(rows)
    counts = Counter(word.lower() if lowercase else word for words, _ in listed for word in words)
    kept = most_frequent(counts, min_count)[: vocab_size or None]
    scheme = scheme_of([tag for tag in tags if tag is not None] for _, tags in listed)
    made = TagVocabulary(scheme, lowercase, (), tuple(kept))
    labels = {label for _, tags in listed for label in made.to_labels(tags) if label}
    known = [counts[word] for word in kept]
    return replace(made, labels=tuple(sorted(labels))), [counts.total() - sum(known), *known]
