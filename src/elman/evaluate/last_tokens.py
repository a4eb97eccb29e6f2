"""A language model that sees at most the last K tokens: each prediction begins anew.

    P(w_t | w_t-K .. w_t-1), read from the model's initial state

`with_context` turns any language model into another one, so scoring and evaluation need not know
about the limit. Predictions with at most K tokens before them, the boundary token included, are
computed as usual. The others are computed in windows of K tokens, many at once, which takes K times
the work of running text.

B batch, T time steps, K tokens of a window, W windows of a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn

from elman.base.config import at_least
from elman.base.errors import UsageError
from elman.decode.prefix import read
from elman.models.interface import (
    Hidden,
    LanguageModel,
    NetworkLM,
    NeuralLanguageModel,
    adapts,
    is_neural,
)
from elman.models.mixture import Mixture
from elman.nn.shapes import Float, Int
from elman.nn.state import State

TOKENS_PER_PASS = 1 << 15
"""Tokens of the windows in one pass; the hidden vectors of all of them are in memory."""


def with_context(model: LanguageModel, context: int | None) -> LanguageModel:
    """Limit a model to the last `context` tokens; None, or more than it reads, is no limit.

    The rows of a batch must have read equally many tokens: for scoring, not for decoding.
    """
    if context is None:
        return model
    if not isinstance(context, int):
        raise UsageError(f"context must be a whole number, not {context!r}", "use 1 or more")
    at_least("context", context, 1)
    if adapts(model):
        raise UsageError("a model that adapts cannot be limited to a context", "drop context")
    if isinstance(model, Mixture):
        return Mixture([with_context(part, context) for part in model.models], model.weights)
    if context >= getattr(model, "reach", math.inf):
        return model
    return _Network(model, context) if is_neural(model) else _Limited(model, context)


class _Limited:
    """Limits a model that has no hidden vectors."""

    def __init__(self, model: LanguageModel, context: int) -> None:
        self._model, self._context = model, context

    @property
    def vocab_size(self) -> int:
        return self._model.vocab_size

    def initial_state(self, batch_size: int) -> State:
        return _initial(self._model, batch_size)

    def step(self, tokens_B: Int[Tensor, "B"], state: State) -> tuple[Float[Tensor, "B V"], State]:
        num_plain, windows, after = _cut(self._context, tokens_B.unsqueeze(1), state)
        if num_plain:
            logprobs_BV, inner = self._model.step(tokens_B, state.part("model"))
            return logprobs_BV, State({**after, "model": inner})
        (window_BK,) = (window for _, window in windows)
        return self._model.step(window_BK[:, -1], self._before(window_BK))[0], after

    def logprobs(
        self, tokens_BT: Int[Tensor, "B T"], targets_BT: Int[Tensor, "B T"], state: State
    ) -> tuple[Float[Tensor, "B T"], State]:
        num_plain, windows, after = _cut(self._context, tokens_BT, state)
        parts = []
        if num_plain:
            logprobs_BT, inner = self._model.logprobs(
                tokens_BT[:, :num_plain], targets_BT[:, :num_plain], state.part("model")
            )
            parts, after = [logprobs_BT], State({**after, "model": inner})
        for times, windows_NK in windows:
            targets_BW = targets_BT[:, times]
            logprobs_N1, _ = self._model.logprobs(
                windows_NK[:, -1:], targets_BW.reshape(-1, 1), self._before(windows_NK)
            )
            parts.append(logprobs_N1.reshape(targets_BW.shape))
        return torch.cat(parts, dim=1), after

    def _before(self, windows_NK: Tensor) -> State:
        """Read all but the last token of each window."""
        return read(self._model, windows_NK[:, :-1], self._model.initial_state(len(windows_NK)))


class _Network(NetworkLM):
    """Limits a network."""

    def __init__(self, model: NeuralLanguageModel, context: int) -> None:
        super().__init__()
        self.model, self.head, self.vocab_size = model, model.head, model.vocab_size
        self._context = context
        self.train(cast(nn.Module, model).training if isinstance(model, nn.Module) else False)

    def initial_state(self, batch_size: int) -> State:
        return _initial(self.model, batch_size)

    def hidden(self, tokens_BT: Int[Tensor, "B T"], state: State) -> tuple[Hidden, State]:
        num_plain, windows, after = _cut(self._context, tokens_BT, state)
        parts: list[Hidden] = []
        if num_plain:
            hidden, inner = self.model.hidden(tokens_BT[:, :num_plain], state.part("model"))
            parts, after = [hidden], State({**after, "model": inner})
        for _, windows_NK in windows:
            hidden, _ = self.model.hidden(windows_NK, self.model.initial_state(len(windows_NK)))
            parts.append(_last(hidden, len(tokens_BT)))
        contexts = [part.contexts_BTO for part in parts if part.contexts_BTO is not None]
        joined = Hidden(
            dropped_BTH=torch.cat([part.dropped_BTH for part in parts], dim=1),
            raw_BTH=torch.cat([part.raw_BTH for part in parts], dim=1),
            contexts_BTO=torch.cat(contexts, dim=1) if contexts else None,
        )
        return joined, after


def _initial(model: LanguageModel, batch_size: int) -> State:
    """The state: that of the model while windows are not full, and up to K last tokens."""
    inner = model.initial_state(batch_size)
    device = next(iter(inner.flatten().values())).device
    none_B0 = torch.zeros(batch_size, 0, dtype=torch.long, device=device)
    return State({"model": inner, "tokens": none_B0})


def _cut(
    context: int, tokens_BT: Tensor, state: State
) -> tuple[int, Iterator[tuple[slice, Tensor]], State]:
    """Return how many tokens are read as usual, the windows of the others, and the next state.

    The windows come in blocks: the time steps of a block, and its windows of all rows, (B W, K).
    """
    before_BC = state.tensor("tokens")
    joined = torch.cat([before_BC, tokens_BT.to(before_BC.device)], dim=1)
    batch_size, num_steps = tokens_BT.shape
    # A row that has read fewer than K tokens still has all of them.
    num_plain = min(max(context - before_BC.shape[1], 0), num_steps)

    def windows() -> Iterator[tuple[slice, Tensor]]:
        size = max(1, TOKENS_PER_PASS // (batch_size * context))
        for start in range(num_plain, num_steps, size):
            end = min(start + size, num_steps)
            first = before_BC.shape[1] + start + 1 - context
            covered = joined[:, first : first + context + end - start - 1]
            yield slice(start, end), covered.unfold(1, context, 1).reshape(-1, context)

    return num_plain, windows(), State({**state, "tokens": joined[:, -context:]})


def _last(hidden: Hidden, batch_size: int) -> Hidden:
    """The vectors at the end of each window, (B, W, ...)."""

    def rows(vectors_NKX: Tensor) -> Tensor:
        size = len(vectors_NKX) // batch_size  # not -1: a maxent model's vectors are empty
        return vectors_NKX[:, -1].reshape(batch_size, size, vectors_NKX.shape[-1])

    contexts = hidden.contexts_BTO
    return Hidden(
        dropped_BTH=rows(hidden.dropped_BTH),
        raw_BTH=rows(hidden.raw_BTH),
        contexts_BTO=None if contexts is None else rows(contexts),
    )
