"""What a handle of a language model knows of its model: tokenizer, unit, caveats."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np

from elman.base.errors import UsageError, check_text
from elman.batches.lines import line_end_id
from elman.models.interface import LanguageModel
from elman.tasks import Task, task_named
from elman.tasks.opening import OpenedRun
from elman.terminal.console import unknown_note
from elman.tokens.tokenizer import Tokenizer

MOST_NAMED = 5
"""Unknown words that a note names."""


class TextModel:
    """A language model with its tokenizer."""

    def __init__(
        self,
        name: str,
        model: LanguageModel,
        tokenizer: Tokenizer,
        runs: Sequence[OpenedRun] = (),
        parts: Sequence[TextModel] = (),
    ) -> None:
        self.name = name
        self.model = model
        self.tokenizer = tokenizer
        self.runs = tuple(runs)
        """Its run folders: one, several of a mixture, none of an ARPA file."""
        self.parts = tuple(parts)
        """The models of a mixture."""

    @property
    def task(self) -> Task | None:
        """The task of its run; None of a mixture or a model without a run folder."""
        return task_named(self.runs[0].config.task) if len(self.runs) == 1 else None

    @property
    def kind(self) -> str:
        """The kind of its model."""
        if self.parts:
            return "mixture"
        if not self.runs:
            return type(self.model).__name__
        return str(getattr(self.runs[0].config.model, "kind", "model"))

    @property
    def unit(self) -> str:
        """What it reads from a fresh state: the `text`, or each `line`."""
        if self.parts:
            return "line" if any(part.unit == "line" for part in self.parts) else "text"
        return str(getattr(self.runs[0].config.data, "unit", "text")) if self.runs else "text"

    @property
    def line_end(self) -> int | None:
        """The token that ends a line, of a model that reads each line by itself."""
        return line_end_id(self.tokenizer) if self.unit == "line" else None

    @property
    def notes(self) -> list[str]:
        """Caveats about its figures; usually none."""
        return [f"{part.name}: {note}" for part in self.parts for note in part.notes]

    @property
    def is_normalised(self) -> bool:
        """Whether its probabilities sum to one."""
        return True

    @property
    def can_be_undefined(self) -> bool:
        """Whether its estimate can be 0/0: of maximum likelihood, after an unseen context."""
        return False

    def notes_after(self, prefix: str) -> list[str]:
        """Caveats about the prediction after `prefix`, such as unknown words; usually none."""
        check_text(prefix)
        ids, spans = self.tokenizer.encode_spans(prefix)
        found = [
            span
            for token, span in zip(ids, spans, strict=True)
            if token == self.tokenizer.unknown_id
        ]
        if not found:
            return []
        words = list(dict.fromkeys(prefix[start:end] for start, end in found))
        listed = ", ".join(words[:MOST_NAMED]) + (", ..." if len(words) > MOST_NAMED else "")
        return [f"{unknown_note(len(found), len(ids), 'tokens of the prompt')}: {listed}"]

    def _ids(self, text: str | Sequence[int]) -> list[int]:
        check_text(text, Sequence, np.ndarray)
        ids = self.tokenizer.encode(text) if isinstance(text, str) else text
        try:
            tokens = [operator.index(token) for token in ids]
        except TypeError as error:
            raise UsageError("ids must be whole numbers", "give a text, or its ids") from error
        if not all(0 <= token < self.tokenizer.vocab_size for token in tokens):
            raise UsageError(
                f"ids must be from 0 to {self.tokenizer.vocab_size - 1}",
                "encode the text with the model's own tokenizer",
            )
        return tokens

    def end_ids(self) -> set[int]:
        """The tokens that end a text; a boundary that also ends lines does not, unless each line is
        a text."""
        if (line_end := self.line_end) is not None:
            return {line_end}
        return set() if self.tokenizer.marks_lines else {self.tokenizer.boundary_id}
