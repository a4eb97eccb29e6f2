"""The handle of a language model that takes a label."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from elman.base.errors import UsageError, nearest
from elman.models.interface import reading
from elman.tasks.conditional.model import ConditionalLM, FixedCondition
from elman.tasks.conditional.task import read_texts
from elman.tasks.conditioned import figures, likelihood
from elman.tasks.describe import describe_tokenizer
from elman.tasks.handle import Handle
from elman.tasks.language_model_handle import LM
from elman.tasks.opening import OpenedRun
from elman.text.sources import Paths
from elman.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class ConditionalEvaluation:
    """How well texts are predicted, given their labels."""

    perplexity: float
    """exp(nats_per_token)."""
    nats_per_token: float
    """Mean surprisal of a token, natural logarithm; the end of a text is a token."""
    accuracy: float
    """The share of tokens that were the most likely ones."""
    tokens: int
    """Number of tokens."""
    texts: int
    """Number of texts."""
    seconds: float
    """How long it took."""


class Conditional(Handle):
    """A language model for each of several labels."""

    what = "a language model that takes a label"
    model: ConditionalLM

    def __init__(self, name: str, run: OpenedRun) -> None:
        super().__init__(name, run)
        self.tokenizer: Tokenizer = run.tokenizer

    @property
    def labels(self) -> tuple[str, ...]:
        return self.model.config.labels

    def __repr__(self) -> str:
        return f"Conditional({self.name!r}, {len(self.labels)} labels)"

    def given(self, label: str) -> LM:
        """The language model of one label: everything that an `LM` can do."""
        if label not in self.labels:
            raise UsageError(
                f"{self.name} has no label '{label}'", nearest(label, list(self.labels))
            )
        device = self.model.labels.weight.device
        with reading(self.model):
            state = self.model.condition(torch.tensor([self.labels.index(label)], device=device))
        return LM(f"{self.name}, {label}", FixedCondition(self.model, state), self.tokenizer)

    def evaluate(self, data: Paths) -> ConditionalEvaluation:
        """Perplexity of files whose names are labels, line by line."""
        began = time.perf_counter()
        texts = read_texts(data, self.tokenizer, self.labels)
        found = figures(likelihood(self.model, self.tokenizer, texts))
        return ConditionalEvaluation(**found, texts=len(texts), seconds=time.perf_counter() - began)

    def info(self) -> dict[str, Any]:
        tokenizer = self.tokenizer
        return self.described(
            f"a language model over {tokenizer.vocab_size:,} tokens ({tokenizer.kind}), given one "
            f"of {len(self.labels)} labels",
            tokenizer=describe_tokenizer(tokenizer),
        )
