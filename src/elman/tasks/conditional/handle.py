"""The handle of a language model that is given a label."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from elman.base.errors import UsageError, nearest
from elman.decode.prefix import reading
from elman.tasks.conditional.model import ConditionalLM, Given
from elman.tasks.conditional.task import read_texts
from elman.tasks.conditioned import figures, likelihood
from elman.tasks.handle import Handle
from elman.tasks.language_model_handle import LM
from elman.tasks.opening import OpenedRun
from elman.text.sources import Paths
from elman.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class ConditionalEvaluation:
    """How well texts are predicted, each given its label."""

    perplexity: float
    """exp(nats_per_token)."""
    nats_per_token: float
    """Average surprisal of a token, natural logarithm; the mark that ends a text is one."""
    accuracy: float
    """The share of tokens that were the most likely ones."""
    tokens: int
    """How many tokens there are."""
    texts: int
    """How many texts."""
    seconds: float
    """How long it took."""


class Conditional(Handle):
    """A language model for each of several labels."""

    what = "a language model that is given a label"
    model: ConditionalLM

    def __init__(self, name: str, run: OpenedRun) -> None:
        super().__init__(name, run)
        self.tokenizer: Tokenizer = run.tokenizer
        self.labels: tuple[str, ...] = run.config.model.labels

    def __repr__(self) -> str:
        return f"Conditional({self.name!r}, {len(self.labels)} labels)"

    def given(self, label: str) -> LM:
        """The language model of one label: everything that an `LM` can do."""
        if label not in self.labels:
            raise UsageError(
                f"{self.name} knows no label '{label}'", nearest(label, list(self.labels))
            )
        with reading(self.model):
            number = torch.tensor(
                [self.labels.index(label)], device=self.model.labels.weight.device
            )
            state = self.model.condition(number)
        return LM(f"{self.name}, {label}", Given(self.model, state), self.tokenizer)

    def evaluate(self, data: Paths) -> ConditionalEvaluation:
        """Perplexity of files whose names are labels, line by line."""
        began = time.perf_counter()
        texts = read_texts(data, self.tokenizer, self.labels)
        found = figures(likelihood(self.model, self.tokenizer, texts))
        return ConditionalEvaluation(**found, texts=len(texts), seconds=time.perf_counter() - began)

    def info(self) -> dict[str, Any]:
        """What the model is, as plain values: parts, kernels, tokenizer, training, figures."""
        size = f"{self.tokenizer.vocab_size:,} tokens ({self.tokenizer.kind})"
        return self.described(
            f"a language model over {size}, given one of {len(self.labels)} labels",
            tokenizer={
                "kind": self.tokenizer.kind,
                "vocab_size": self.tokenizer.vocab_size,
                "hash": self.tokenizer.hash,
            },
        )
