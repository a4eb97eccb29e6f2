"""A tokenizer together with the labels of a classifier."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from elman.base.documents import is_list_of_names, read_json, write_json
from elman.base.errors import ElmanError
from elman.batches.wording import Spelled
from elman.tasks.classification.reading import Texts
from elman.tokens.tokenizer import TOKENIZER_FILE, Tokenizer

LABELS_FILE = "labels.json"


@dataclass(frozen=True)
class LabelVocabulary:
    """What the ids of tokens and labels mean."""

    tokenizer: Tokenizer
    labels: tuple[str, ...]
    """In alphabetical order."""

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    @cached_property
    def label_ids(self) -> dict[str, int]:
        return {label: index for index, label in enumerate(self.labels)}

    @cached_property
    def hash(self) -> str:
        return self._digest(self.tokenizer.hash)

    @property
    def old_hash(self) -> str:
        return self._digest(self.tokenizer.old_hash)

    def _digest(self, of_tokenizer: str) -> str:
        text = "\n".join([of_tokenizer, *self.labels])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def encode(self, text: str) -> list[int]:
        """Encode a text; an empty one becomes the boundary token, so that none is empty."""
        return [int(i) for i in self.tokenizer.encode(text)] or [self.tokenizer.boundary_id]

    def encode_row(self, texts: Texts) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def spell_row(self, texts: Texts) -> list[Spelled]:
        """The words of a row's texts, for pre-trained embeddings."""
        return [Spelled.of_text(text, self.tokenizer) for text in texts]

    def save(self, folder: Path) -> None:
        self.tokenizer.save(folder / TOKENIZER_FILE)
        write_json(folder / LABELS_FILE, list(self.labels))

    @staticmethod
    def load(folder: Path) -> LabelVocabulary:
        labels = read_json(folder / LABELS_FILE)
        if not is_list_of_names(labels):
            raise ElmanError(
                f"{folder / LABELS_FILE} is not a list of different labels",
                "restore it from a copy",
            )
        return LabelVocabulary(Tokenizer.load(folder / TOKENIZER_FILE), tuple(labels))
