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
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from elman.base.config import at_least, between
from elman.models.decoding import for_decoding
from elman.models.interface import LanguageModel, NeuralLanguageModel, is_neural
from elman.nn.shapes import Float, Int
from elman.nn.state import State

EMPTY, UNKNOWN = -2, -1
"""Instead of the word that followed: there is no such position yet; its word is not known yet."""
MOST_COMPARED = 8
"""Tokens compared at most, for models of counts that look further back or do not say how far."""
BLOCK_SIZE = 1 << 22
"""Scores in memory at a time, in numbers."""
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

    def memory(self, state: State) -> State:
        """What the cache holds, without the state of the model."""
        inner = getattr(self.model, "memory", lambda _: State({}))(state.part("model"))
        own = State({key: part for key, part in state.items() if key != "model"})
        return State({**own, "model": inner}) if len(inner) else own

    def next_text(self, state: State, last_B: Int[Tensor, "B"]) -> State:
        """The state at the beginning of another text, with the cache kept; `last_B` ended this
        one."""
        following = getattr(self.model, "next_text", None)
        inner = state.part("model")
        inner = self.model.initial_state(len(last_B)) if following is None else following(inner, last_B)
        followed_BN = _completed(state.tensor("followed"), last_B)
        return State({**state, "followed": followed_BN, "model": inner})

    def step(self, tokens_B: Int[Tensor, "B"], state: State) -> tuple[Float[Tensor, "B V"], State]:
        """Read one token; return the log probability of every possible next one."""
        tokens_B1 = tokens_B[:, None]
        logprobs_BV, hidden_BH, inner = _step(self.model, tokens_B, state.part("model"))
        hidden_B1H = None if hidden_BH is None else hidden_BH[:, None]
        after, followed_BK, scores = self._read(tokens_B1, hidden_B1H, state, inner)
        (scores_B1K,) = (block for _, block in scores)
        shares_BK = scores_B1K[:, 0].exp()  # NaN where the cache is empty, and not used
        cache_BV = torch.zeros_like(logprobs_BV, dtype=shares_BK.dtype)
        cache_BV.scatter_add_(1, followed_BK[:, : shares_BK.shape[1]].clamp(min=0), shares_BK)
        return self._mixed(logprobs_BV, cache_BV.log(), cache_BV.isnan().any(1, keepdim=True)), after

    def logprobs(
        self, tokens_BT: Int[Tensor, "B T"], targets_BT: Int[Tensor, "B T"], state: State
    ) -> tuple[Float[Tensor, "B T"], State]:
        """Read T tokens; return the log probability of each one's target."""
        logprobs_BT, cache_BT, after = self.parts(tokens_BT, targets_BT, state)
        return self._mixed(logprobs_BT, cache_BT, cache_BT.isnan()), after

    def parts(
        self, tokens_BT: Tensor, targets_BT: Tensor, state: State
    ) -> tuple[Tensor, Tensor, State]:
        """As `logprobs`, but those of the model and of the cache, NaN while it is empty."""
        logprobs_BT, hidden_BTH, inner = _logprobs(
            self.model, tokens_BT, targets_BT, state.part("model")
        )
        after, followed_BK, scores = self._read(tokens_BT, hidden_BTH, state, inner)
        parts = []
        for times, scores_BtK in scores:
            targets_Bt1 = targets_BT[:, times, None].to(followed_BK.device)
            same_BtK = followed_BK[:, None, : scores_BtK.shape[2]] == targets_Bt1
            parts.append(scores_BtK.masked_fill(~same_BtK, -torch.inf).logsumexp(2))
        return logprobs_BT, torch.cat(parts, dim=1).to(logprobs_BT), after

    def _mixed(self, logprobs: Tensor, cache: Tensor, empty: Tensor) -> Tensor:
        weight = self.config.weight
        if weight == 0:
            return logprobs
        cache = cache.to(logprobs) + math.log(weight)
        return torch.where(
            empty.to(logprobs.device),
            logprobs,
            torch.logaddexp(logprobs + math.log1p(-weight), cache),
        )

    def _read(
        self, tokens_BT: Tensor, hidden_BTH: Tensor | None, state: State, inner: State
    ) -> tuple[State, Tensor, Any]:
        """Return the next state, the word that followed each key, and blocks of time steps with
        the log shares of the keys at each step, NaN at steps where the cache is empty."""
        window, num_steps = self.config.window, tokens_BT.shape[1]
        before_BN = _completed(state.tensor("followed"), tokens_BT[:, 0])
        tokens_BT = tokens_BT.to(before_BN.device)
        unknown_B1 = torch.full_like(tokens_BT[:, :1], UNKNOWN)
        followed_BK = torch.cat([before_BN, tokens_BT[:, 1:], unknown_B1], dim=1)
        after: dict[str, Any] = {"model": inner, "followed": followed_BK[:, -window:]}
        if hidden_BTH is not None:
            keys_BKH = torch.cat([state.tensor("hidden"), hidden_BTH.to(state.tensor("hidden"))], 1)
            after["hidden"] = keys_BKH[:, -window:]
        else:
            read_BX = torch.cat([state.tensor("tokens"), tokens_BT], dim=1)
            after["tokens"] = read_BX[:, num_steps:]

        def blocks() -> Any:
            size = max(1, BLOCK_SIZE // (len(tokens_BT) * (window + num_steps)))
            for start in range(0, num_steps, size):
                end = min(start + size, num_steps)
                last = window + end - 1  # the last key that the block sees
                if hidden_BTH is not None:
                    similar = keys_BKH[:, window + start : window + end] @ keys_BKH[
                        :, :last
                    ].transpose(1, 2)
                else:
                    similar = self._agreeing(read_BX, slice(start, end), last)
                times = torch.arange(start, end, device=similar.device)[:, None]
                places = torch.arange(last, device=similar.device)[None]
                seen = (places >= times) & (places < times + window)
                seen = seen & (followed_BK[:, None, :last] >= 0)
                scores = (self.theta * similar).masked_fill(~seen, -torch.inf)
                yield slice(start, end), scores - scores.logsumexp(2, keepdim=True)

        return State(after), followed_BK, blocks()

    def _agreeing(self, read_BX: Tensor, times: slice, last: int) -> Tensor:
        """How many tokens agree, backwards from each of some time steps and from each key."""
        window, compared = self.config.window, self._compared
        agreeing, so_far = None, None
        for back in range(compared):
            first = compared - back  # of the keys, in `read_BX`
            queries = read_BX[:, first + window + times.start : first + window + times.stop, None]
            equal = (queries == read_BX[:, None, first : first + last]) & (queries >= 0)
            so_far = equal if so_far is None else so_far & equal
            agreeing = so_far.float() if agreeing is None else agreeing + so_far
        if agreeing is None:  # unigrams look at nothing
            shape = (len(read_BX), times.stop - times.start, last)
            return torch.zeros(shape, device=read_BX.device)
        return agreeing


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


def _step(
    model: Any, tokens_B: Tensor, state: State
) -> tuple[Tensor, Tensor | None, State]:
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
