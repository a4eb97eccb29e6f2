"""The continuous cache (Grave, Joulin and Usunier, 2017): words seen after similar contexts.

    P(w) = (1 - weight) P_model(w) + weight P_cache(w)
    P_cache(w) ~ sum over the last `window` positions i of [w followed i] exp(theta s(t, i))

For a network s(t, i) is the product of the hidden vectors h_t and h_i that enter the output layer.
A model of counts has none: there s(t, i) is how many of the last tokens before the two positions
agree, at most as many as the model looks at. With theta 0 both are the cache of Kuhn and De Mori
(1990), the shares of words among the last ones. P_cache is a distribution over the words that it
holds, so P is one too; while the cache is empty P is the model's.

The cache is part of the `State`: a prefix has one, it can be selected, saved and dropped like any
other, and its size is that of the window however long the stream is.

B batch, T time steps, V vocabulary, H hidden, N window, K keys: those of the window and new ones, R
tokens that are compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from elman.base.config import at_least, between
from elman.models.decoding import for_decoding
from elman.models.interface import (
    LanguageModel,
    NeuralLanguageModel,
    is_neural,
    learns,
    memory_of,
    next_text,
    with_memory,
)
from elman.nn.shapes import Float, Int
from elman.nn.state import State

EMPTY, UNKNOWN = -2, -1
"""Instead of the word that followed: there is no such position yet; its word is not known yet."""
MOST_COMPARED = 8
"""Tokens compared at most, for models of counts that look further back or do not say how far."""
BLOCK_SIZE = 1 << 22
"""Similarities in memory at a time, in numbers."""
BLOCK_STEPS = 64
"""Time steps computed at a time: each sees as many keys more than its window as there are."""
THETA_OF_HIDDEN, THETA_OF_COUNTS = 0.3, 1.0


@dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """A continuous cache."""

    window: int = 500
    """Positions that the cache holds."""
    weight: float = 0.1
    """Weight of the cache in the mixture."""
    theta: float | None = None
    """How much similar contexts count more than others; none: 0.3 for networks, 1 for counts."""

    def __post_init__(self) -> None:
        at_least("cache.window", self.window, 1)
        between("cache.weight", self.weight, 0, 1, below=True)
        if self.theta is not None:
            at_least("cache.theta", self.theta, 0)


class Cached:
    """A language model mixed with a cache of what it has read."""

    def __init__(
        self, model: LanguageModel, config: CacheConfig | None = None, memory: State | None = None
    ) -> None:
        """`memory`, of one row, is what the cache holds at the beginning of a text."""
        self.model, self.config = model, config or CacheConfig()
        self.compares_hidden = hidden_size(model) > 0
        default = THETA_OF_HIDDEN if self.compares_hidden else THETA_OF_COUNTS
        self.theta = default if self.config.theta is None else self.config.theta
        self._compared = min(getattr(model, "reach", MOST_COMPARED), MOST_COMPARED)
        self._memory = memory

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    @property
    def adapts(self) -> bool:
        return True

    @property
    def learns(self) -> bool:
        return learns(self.model)

    @property
    def warm_up(self) -> int:
        return self.config.window

    def for_decoding(self, *, share_weights: bool = False) -> Cached:
        inner = for_decoding(self.model, share_weights=share_weights)
        return Cached(inner, self.config, self._memory)

    def initial_state(self, batch_size: int) -> State:
        inner = self.model.initial_state(batch_size)
        if self._memory is not None:
            return State({**self._memory.select([0] * batch_size), "model": inner})
        tensor = next(iter(inner.flatten().values()), torch.empty(0))
        device, window = tensor.device, self.config.window
        followed_BN = torch.full((batch_size, window), EMPTY, device=device)
        parts: dict[str, Any] = {"model": inner, "followed": followed_BN}
        if self.compares_hidden:
            dtype = torch.promote_types(_dtype(self.model), torch.float32)
            shape = (batch_size, window, hidden_size(self.model))
            parts["hidden"] = torch.zeros(shape, dtype=dtype, device=device)
        else:
            parts["tokens"] = torch.full(
                (batch_size, window + self._compared), UNKNOWN, device=device
            )
        return State(parts)

    def next_text(self, state: State, last_B: Int[Tensor, "B"]) -> State:
        inner = next_text(self.model, state.part("model"), last_B)
        followed_BN = _completed(state.tensor("followed"), last_B)
        return State({**state, "followed": followed_BN, "model": inner})

    def memory(self, state: State) -> State:
        return State({**state, "model": memory_of(self.model, state.part("model"))})

    def with_memory(self, memory: State) -> Cached:
        inner = with_memory(self.model, memory.get("model", State({})))
        return Cached(inner, self.config, memory)

    def step(self, tokens_B: Int[Tensor, "B"], state: State) -> tuple[Float[Tensor, "B V"], State]:
        """Read one token; return the log probability of every possible next one."""
        logprobs_BV, hidden_BH, inner = _step(self.model, tokens_B, state.part("model"))
        hidden_B1H = None if hidden_BH is None else hidden_BH[:, None]
        after, followed_BK, blocks = self._read(tokens_B[:, None], hidden_B1H, state, inner)
        ((_, similar_B1K, seen_B1K),) = blocks
        shares_BK = _shares(similar_B1K, seen_B1K, self.theta)[:, 0].exp()
        cache_BV = torch.zeros(logprobs_BV.shape, dtype=shares_BK.dtype, device=shares_BK.device)
        cache_BV.scatter_add_(1, followed_BK[:, : shares_BK.shape[1]].clamp(min=0), shares_BK)
        empty_B1 = ~seen_B1K.any(dim=2)
        return self._mixed(logprobs_BV, cache_BV.log(), empty_B1), after

    def logprobs(
        self, tokens_BT: Int[Tensor, "B T"], targets_BT: Int[Tensor, "B T"], state: State
    ) -> tuple[Float[Tensor, "B T"], State]:
        """Read T tokens; return the log probability of each one's target."""
        logprobs_BT, (cache_BT,), after = self.parts(tokens_BT, targets_BT, state, [self.theta])
        return self._mixed(logprobs_BT, cache_BT, cache_BT.isnan()), after

    def parts(
        self, tokens_BT: Tensor, targets_BT: Tensor, state: State, thetas: Sequence[float]
    ) -> tuple[Tensor, list[Tensor], State]:
        """As `logprobs`, but those of the model, and those of the cache for each of `thetas`, NaN
        while it is empty."""
        logprobs_BT, hidden_BTH, inner = _logprobs(
            self.model, tokens_BT, targets_BT, state.part("model")
        )
        after, followed_BK, blocks = self._read(tokens_BT, hidden_BTH, state, inner)
        parts: list[list[Tensor]] = [[] for _ in thetas]
        for times, similar_BtK, seen_BtK in blocks:
            targets_Bt1 = targets_BT[:, times, None].to(followed_BK.device)
            keys_BK = followed_BK[:, times.start : times.start + similar_BtK.shape[2]]
            other_BtK = keys_BK[:, None] != targets_Bt1
            for part, theta in zip(parts, thetas, strict=True):
                shares_BtK = _shares(similar_BtK, seen_BtK, theta)
                part.append(shares_BtK.masked_fill_(other_BtK, -torch.inf).logsumexp(2))
        found = [torch.cat(part, dim=1).to(logprobs_BT) for part in parts]
        # The sum of no shares is log 0, also of an empty cache.
        empty_BT = _is_empty(state.tensor("followed"), tokens_BT).to(logprobs_BT.device)
        return logprobs_BT, [part.masked_fill(empty_BT, torch.nan) for part in found], after

    def _mixed(self, logprobs: Tensor, cache: Tensor, empty: Tensor) -> Tensor:
        weight = self.config.weight
        if weight == 0:
            return logprobs
        mixed = torch.logaddexp(
            logprobs + math.log1p(-weight), cache.to(logprobs) + math.log(weight)
        )
        return torch.where(empty.to(logprobs.device), logprobs, mixed)

    def _read(
        self, tokens_BT: Tensor, hidden_BTH: Tensor | None, state: State, inner: State
    ) -> tuple[State, Tensor, Iterator[tuple[slice, Tensor, Tensor]]]:
        """Return the next state, the word that followed each key, and blocks of time steps, each
        with the similarity of the keys and whether they are in the window."""
        window, num_steps = self.config.window, tokens_BT.shape[1]
        before_BN = _completed(state.tensor("followed"), tokens_BT[:, 0])
        tokens_BT = tokens_BT.to(before_BN.device)
        unknown_B1 = torch.full_like(tokens_BT[:, :1], UNKNOWN)
        followed_BK = torch.cat([before_BN, tokens_BT[:, 1:], unknown_B1], dim=1)
        after: dict[str, Any] = {"model": inner, "followed": followed_BK[:, -window:].clone()}
        if hidden_BTH is not None:
            hidden_BNH = state.tensor("hidden")
            keys_BKH = torch.cat([hidden_BNH, hidden_BTH.to(hidden_BNH)], dim=1)
            after["hidden"] = keys_BKH[:, -window:].clone()
        else:
            read_BX = torch.cat([state.tensor("tokens"), tokens_BT], dim=1)
            after["tokens"] = read_BX[:, num_steps:].clone()

        def blocks() -> Iterator[tuple[slice, Tensor, Tensor]]:
            size = max(1, min(BLOCK_STEPS, BLOCK_SIZE // (len(tokens_BT) * (window + BLOCK_STEPS))))
            for start in range(0, num_steps, size):
                end = min(start + size, num_steps)
                # The keys that any step of the block sees.
                places = slice(start, window + end - 1)
                if hidden_BTH is not None:
                    queries_BtH = keys_BKH[:, window + start : window + end]
                    similar_BtK = queries_BtH @ keys_BKH[:, places].transpose(1, 2)
                else:
                    similar_BtK = self._agreeing(read_BX, slice(start, end), places)
                # A step sees the `window` keys before it.
                ages = torch.arange(end - start)[:, None] + window
                ages = (ages - torch.arange(window + end - start - 1)).to(similar_BtK.device)
                seen_BtK = (ages > 0) & (ages <= window) & (followed_BK[:, None, places] >= 0)
                yield slice(start, end), similar_BtK, seen_BtK

        return State(after), followed_BK, blocks()

    def _agreeing(self, read_BX: Tensor, times: slice, places: slice) -> Tensor:
        """How many tokens agree, backwards from each of some time steps and from each key."""
        compared, window = self._compared, self.config.window
        shape = (len(read_BX), times.stop - times.start, places.stop - places.start)
        agreeing = torch.zeros(shape, device=read_BX.device)
        so_far = torch.ones(shape, dtype=torch.bool, device=read_BX.device)
        for back in range(compared):
            first = compared - back  # where the keys begin in `read_BX`, so far back
            queries = read_BX[:, first + window + times.start : first + window + times.stop, None]
            keys = read_BX[:, None, first + places.start : first + places.stop]
            so_far = so_far & (queries == keys) & (queries >= 0)
            agreeing += so_far
        return agreeing


def _shares(similar: Tensor, seen: Tensor, theta: float) -> Tensor:
    """Log shares of the keys, which sum to one over those that are seen; -inf of others."""
    return (similar * theta).masked_fill_(~seen, -torch.inf).log_softmax(dim=-1)


def _is_empty(followed_BN: Tensor, tokens_BT: Tensor) -> Tensor:
    """(B, T) whether no word is known to follow any position yet."""
    known_B1 = (followed_BN != EMPTY).any(dim=1, keepdim=True)
    first_1T = torch.arange(tokens_BT.shape[1], device=known_B1.device)[None] == 0
    return first_1T & ~known_B1


def hidden_size(model: LanguageModel) -> int:
    """The size of a network's hidden vectors; 0 of other models."""
    if hasattr(model, "step_with_hidden") or is_neural(model):
        size: int = model.head.hidden_size  # type: ignore[attr-defined]
        return size
    return 0


def _completed(followed_BN: Tensor, tokens_B: Tensor) -> Tensor:
    """Write the word that followed the last position, if it was not known."""
    last_B = followed_BN[:, -1]
    new_B = torch.where(last_B == UNKNOWN, tokens_B.to(followed_BN.device), last_B)
    return torch.cat([followed_BN[:, :-1], new_B[:, None]], dim=1)


def _step(model: Any, tokens_B: Tensor, state: State) -> tuple[Tensor, Tensor | None, State]:
    """A step of a model, with the hidden vectors if it has any."""
    if hasattr(model, "step_with_hidden"):
        found: tuple[Tensor, Tensor, State] = model.step_with_hidden(tokens_B, state)
        return found
    if hidden_size(model) == 0:
        logprobs_BV, state = model.step(tokens_B, state)
        return logprobs_BV, None, state
    network: NeuralLanguageModel = model
    hidden, state = network.hidden(tokens_B[:, None], state)
    contexts = None if hidden.contexts_BTO is None else hidden.contexts_BTO[:, 0]
    hidden_BH = hidden.dropped_BTH[:, 0]
    return network.head.logprobs_all(hidden_BH, contexts), hidden_BH, state


def _logprobs(
    model: Any, tokens_BT: Tensor, targets_BT: Tensor, state: State
) -> tuple[Tensor, Tensor | None, State]:
    """Log probabilities of targets, with the hidden vectors if the model has any."""
    if hasattr(model, "logprobs_with_hidden"):
        found: tuple[Tensor, Tensor, State] = model.logprobs_with_hidden(
            tokens_BT, targets_BT, state
        )
        return found
    if hidden_size(model) == 0:
        logprobs_BT, state = model.logprobs(tokens_BT, targets_BT, state)
        return logprobs_BT, None, state
    network: NeuralLanguageModel = model
    hidden, state = network.hidden(tokens_BT, state)
    logprobs_BT = network.head.logprobs(hidden.dropped_BTH, targets_BT, hidden.contexts_BTO)
    return logprobs_BT, hidden.dropped_BTH, state


def _dtype(model: Any) -> torch.dtype:
    found: torch.dtype = next(iter(model.head.parameters())).dtype
    return found
