"""A softmax temperature other than 1 when a network is measured: P(w)^(1/T), divided by its sum.

Above 1 the distribution is flatter, below 1 sharper. Networks that were trained with much dropout
are under- or overconfident without it; one number, tuned on validation text, corrects part of that
(Melis, Dyer and Blunsom, 2018). Probabilities sum to one by construction.

`Temperatures` reads a text once for several of them.

B batch, T time steps, N rows, V vocabulary, H hidden, K temperatures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from elman.base.errors import UsageError
from elman.models.decoding import for_decoding
from elman.models.interface import Hidden, LanguageModel, NeuralLanguageModel, is_neural
from elman.nn.heads import Head
from elman.nn.shapes import Float, Int
from elman.nn.state import State

LOGITS_AT_ONCE = 1 << 24
"""Numbers (rows times vocabulary) that are in memory at once."""
LOGITS_IN_CACHE = 1 << 19
"""The same on a CPU, where they are read again for each of several temperatures."""


class Tempered:
    """A network with a softmax temperature."""

    def __init__(self, model: NeuralLanguageModel, temperature: float) -> None:
        if not 0 < temperature < math.inf:
            raise UsageError(f"temperature cannot be {temperature:g}", "use more than 0, such as 1")
        self.model, self.temperature = model, temperature

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    @property
    def head(self) -> Head:
        return _TemperedHead(self.model.head, self.temperature)

    @property
    def reach(self) -> int | float:
        """Tokens that the model reads at most."""
        found: int | float = getattr(self.model, "reach", math.inf)
        return found

    def for_decoding(self, *, share_weights: bool = False) -> LanguageModel:
        inner = for_decoding(self.model, share_weights=share_weights)
        assert is_neural(inner)
        return Tempered(inner, self.temperature)

    def initial_state(self, batch_size: int) -> State:
        return self.model.initial_state(batch_size)

    def hidden(self, tokens_BT: Int[Tensor, "B T"], state: State) -> tuple[Hidden, State]:
        return self.model.hidden(tokens_BT, state)

    def logprobs(
        self, tokens_BT: Int[Tensor, "B T"], targets_BT: Int[Tensor, "B T"], state: State
    ) -> tuple[Float[Tensor, "B T"], State]:
        """Read T tokens; return the log probability of each one's target."""
        hidden, state = self.hidden(tokens_BT, state)
        return self.head.logprobs(hidden.dropped_BTH, targets_BT, hidden.contexts_BTO), state

    def step(self, tokens_B: Int[Tensor, "B"], state: State) -> tuple[Float[Tensor, "B V"], State]:
        """Read one token; return the log probability of every possible next one."""
        logprobs_BV, state = self.model.step(tokens_B, state)
        return (logprobs_BV / self.temperature).log_softmax(dim=-1), state


class Temperatures:
    """A network at K temperatures: `logprobs` returns (B, T, K), from one reading."""

    def __init__(self, model: NeuralLanguageModel, temperatures: Sequence[float]) -> None:
        self.model = model
        self.temperatures = [Tempered(model, one).temperature for one in temperatures]
        self.vocab_size, self.head = model.vocab_size, model.head
        self.initial_state, self.hidden, self.step = model.initial_state, model.hidden, model.step

    def logprobs(
        self, tokens_BT: Int[Tensor, "B T"], targets_BT: Int[Tensor, "B T"], state: State
    ) -> tuple[Float[Tensor, "B T K"], State]:
        """Read T tokens; return the log probability of each one's target, by temperature."""
        hidden, state = self.hidden(tokens_BT, state)
        vectors_NH, targets_N1 = hidden.dropped_BTH.flatten(0, 1), targets_BT.flatten()[:, None]
        contexts = None if hidden.contexts_BTO is None else hidden.contexts_BTO.flatten(0, 1)
        most = LOGITS_AT_ONCE if vectors_NH.is_cuda else LOGITS_IN_CACHE
        size = max(1, most // self.vocab_size)
        found = []
        for first in range(0, len(vectors_NH), size):
            rows = slice(first, first + size)
            contexts_RO = None if contexts is None else contexts[rows]
            logprobs_RV = self.head.logprobs_all(vectors_NH[rows], contexts_RO)
            chosen_R = logprobs_RV.gather(1, targets_N1[rows])[:, 0]
            each = [
                chosen_R / one - (logprobs_RV / one).logsumexp(dim=-1) for one in self.temperatures
            ]
            found.append(torch.stack(each, dim=1))
        return torch.cat(found).view(*targets_BT.shape, -1), state


class _TemperedHead(Head):
    def __init__(self, head: Head, temperature: float) -> None:
        super().__init__(head.hidden_size, head.vocab_size)
        self.head, self.temperature = head, temperature
        self.exact = head.exact

    def _logprobs_all(self, hidden_NH: Tensor, contexts_NO: Tensor | None) -> Tensor:
        logprobs_NV = self.head.logprobs_all(hidden_NH, contexts_NO)
        return (logprobs_NV / self.temperature).log_softmax(dim=-1)

    def _logprobs(self, hidden_NH: Tensor, targets_N: Tensor, contexts_NO: Tensor | None) -> Tensor:
        size = max(1, LOGITS_AT_ONCE // self.vocab_size)
        found = []
        for first in range(0, len(hidden_NH), size):
            rows = slice(first, first + size)
            contexts = None if contexts_NO is None else contexts_NO[rows]
            logprobs_RV = self._logprobs_all(hidden_NH[rows], contexts)
            found.append(logprobs_RV.gather(1, targets_N[rows, None])[:, 0])
        return torch.cat(found)
