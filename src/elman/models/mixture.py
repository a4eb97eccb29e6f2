"""Linear interpolation of language models: P(w) = sum over m of weight_m P_m(w).

All models need the same vocabulary: networks, counting models, mixtures.

B batch, T time steps, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from elman.base.errors import UsageError
from elman.models.decoding import for_decoding
from elman.models.interface import (
    LanguageModel,
    adapts,
    learns,
    memory_of,
    next_text,
    warm_up,
    with_memory,
)
from elman.nn.shapes import Float, Int
from elman.nn.state import State


class Mixture:
    """A weighted mixture of language models; the weights are normalised to sum to one."""

    def __init__(self, models: Sequence[LanguageModel], weights: Sequence[float]) -> None:
        fitting = models and len(models) == len(weights)
        # Not `weight <= 0`: NaN must fail too. The sum of two large weights may be infinite.
        if not fitting or not min(weights) > 0 or not math.isfinite(sum(weights)):
            raise UsageError(
                "a mixture needs a positive, finite weight for each of its models",
                "write it as 0.7*runs/a+0.3*runs/b",
            )
        sizes = {model.vocab_size for model in models}
        if len(sizes) > 1:
            raise UsageError(
                f"the models of a mixture differ in vocabulary size: {sorted(sizes)}",
                "mix models that were trained with the same tokenizer",
            )
        self.models = list(models)
        self.weights = [weight / sum(weights) for weight in weights]

    @property
    def vocab_size(self) -> int:
        return self.models[0].vocab_size

    def initial_state(self, batch_size: int) -> State:
        return State({str(i): m.initial_state(batch_size) for i, m in enumerate(self.models)})

    def for_decoding(self, *, share_weights: bool = False) -> Mixture:
        """The mixture of the models' forms for decoding."""
        parts = [for_decoding(model, share_weights=share_weights) for model in self.models]
        return Mixture(parts, self.weights)

    @property
    def adapts(self) -> bool:
        return any(adapts(model) for model in self.models)

    @property
    def learns(self) -> bool:
        return any(learns(model) for model in self.models)

    @property
    def warm_up(self) -> int:
        return max(warm_up(model) for model in self.models)

    def next_text(self, state: State, last_B: Int[Tensor, "B"]) -> State:
        parts = enumerate(self.models)
        return State({str(i): next_text(m, state.part(str(i)), last_B) for i, m in parts})

    def memory(self, state: State) -> State:
        return State({str(i): memory_of(m, state.part(str(i))) for i, m in enumerate(self.models)})

    def with_memory(self, memory: State) -> Mixture:
        none = State({})  # of models that keep nothing
        parts = [with_memory(m, memory.get(str(i), none)) for i, m in enumerate(self.models)]
        return Mixture(parts, self.weights)

    def step(self, tokens_B: Int[Tensor, "B"], state: State) -> tuple[Float[Tensor, "B V"], State]:
        results = [m.step(tokens_B, state.part(str(i))) for i, m in enumerate(self.models)]
        return self._mixed(results)

    def logprobs(
        self, tokens_BT: Int[Tensor, "B T"], targets_BT: Int[Tensor, "B T"], state: State
    ) -> tuple[Float[Tensor, "B T"], State]:
        results = [
            m.logprobs(tokens_BT, targets_BT, state.part(str(i))) for i, m in enumerate(self.models)
        ]
        return self._mixed(results)

    def _mixed(self, results: list[tuple[Tensor, State]]) -> tuple[Tensor, State]:
        first = results[0][0]
        weighted = [
            logprobs.to(first.device) + math.log(weight)
            for (logprobs, _), weight in zip(results, self.weights, strict=True)
        ]
        states = State({str(i): state for i, (_, state) in enumerate(results)})
        return torch.logsumexp(torch.stack(weighted), dim=0), states
