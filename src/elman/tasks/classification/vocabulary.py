"""A tokenizer together with the labels that a model tells apart."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from elman.base.errors import ElmanError
from elman.base.files import read_json, write_json
from elman.tokens.tokenizer import Tokenizer

LABELS_FILE = "labels.json"


@dataclass(frozen=True)
class LabelVocabulary:
    """What gives a classifier's ids their meaning."""

    tokenizer: Tokenizer
    labels: tuple[str, ...]
    """In alphabetical order."""

    @property
    def vocab_size(self) -> int:
        """The number of token ids."""
        return self.tokenizer.vocab_size

    @cached_property
    def label_ids(self) -> dict[str, int]:
        """The id of each label."""
        return {label: index for index, label in enumerate(self.labels)}

    @cached_property
    def hash(self) -> str:
        """Of the tokens and the labels."""
        text = "\n".join([self.tokenizer.hash, *self.labels])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def encode(self, text: str) -> list[int]:
        """The ids of a text; one without any has the boundary's, so that every text has some."""
        return [int(i) for i in self.tokenizer.encode(text)] or [self.tokenizer.boundary_id]

    def save(self, folder: Path, tokenizer_file: str) -> None:
        """Write both into a run folder."""
        self.tokenizer.save(folder / tokenizer_file)
        write_json(folder / LABELS_FILE, list(self.labels))

    @staticmethod
    def load(folder: Path, tokenizer_file: str) -> LabelVocabulary:
        """Read what `save` wrote."""
        labels = read_json(folder / LABELS_FILE)
        if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
            raise ElmanError(
                f"{folder / LABELS_FILE} is not a list of labels", "restore the file from a copy"
            )
        return LabelVocabulary(Tokenizer.load(folder / tokenizer_file), tuple(labels))
