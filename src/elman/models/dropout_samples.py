"""Several dropout masks when a network is measured, as in training, and the mean of what they
predict (Gal and Ghahramani, 2016; Melis, Kočiský and Blunsom, 2020): P(w) = 1/N sum of P_i(w).

It is the arithmetic mean of probabilities, so that they sum to one. Masks are drawn anew at each
call, for its time steps together where dropout is locked in time. They are determined by the seed
and by the number of calls that led to a state: the same state gives the same prediction. Fewer
units are dropped if `scale`, which the rates of dropout are multiplied by, is less than one.

Samples are rows of one batch, as many as `MOST_ROWS` allows: a GPU takes hardly longer for 20 of
them than for one. Where rows share a mask, of recurrent weights or of words, they are read one by
one.

B batch, T time steps, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from elman.base.config import at_least, between
from elman.models.dynamic import network_of
from elman.models.interface import NeuralLanguageModel
from elman.nn.dropout import scaled
from elman.nn.shapes import Float, Int
from elman.nn.state import State

MOST_ROWS = {"cpu": 64, "cuda": 1024}
"""Of a batch of samples: the memory of 128 time steps grows with them."""


class DropoutSamples:
    """A network that predicts the mean over `num_samples` dropout masks."""

    def __init__(
        self, model: NeuralLanguageModel, num_samples: int, seed: int = 1, scale: float = 1.0
    ) -> None:
        at_least("samples", num_samples, 1)
        between("dropout_scale", scale, 0, 1)
        self.model, self.num_samples, self.seed, self.scale = model, num_samples, seed, scale
        self._network = network_of(model)
        self._shares_masks = _shares_masks(self._network)

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    def initial_state(self, batch_size: int) -> State:
        """A state for each sample, and the number of calls."""
        inner = self.model.initial_state(batch_size)
        calls_B = torch.zeros(batch_size, dtype=torch.long)
        return State({**{str(i): inner for i in range(self.num_samples)}, "calls": calls_B})

    def logprobs(
        self, tokens_BT: Int[Tensor, "B T"], targets_BT: Int[Tensor, "B T"], state: State
    ) -> tuple[Float[Tensor, "B T *K"], State]:
        """Read T tokens; return the log probability of each one's target."""
        return self._mean(self.model.logprobs, (tokens_BT, targets_BT), state)

    def step(self, tokens_B: Int[Tensor, "B"], state: State) -> tuple[Float[Tensor, "B V"], State]:
        """Read one token; return the log probability of every possible next one."""
        return self._mean(self.model.step, (tokens_B,), state)

    def _mean(
        self, read: Callable[..., tuple[Tensor, State]], given: Sequence[Tensor], state: State
    ) -> tuple[Tensor, State]:
        calls_B = state.tensor("calls")
        batch_size = len(calls_B)
        most = MOST_ROWS.get(given[0].device.type, MOST_ROWS["cpu"])
        at_once = 1 if self._shares_masks else max(1, most // max(1, batch_size))
        found, parts = None, {}
        with _dropping(self._network, self.seed * 1_000_003 + int(calls_B[0]), self.scale):
            for first in range(0, self.num_samples, at_once):
                names = [str(i) for i in range(first, min(first + at_once, self.num_samples))]
                rows = State.cat([state.part(name) for name in names])
                repeated = (
                    tensor.repeat(len(names), *[1] * (tensor.dim() - 1)) for tensor in given
                )
                logprobs, after = read(*repeated, rows)
                for place, name in enumerate(names):
                    own = slice(place * batch_size, (place + 1) * batch_size)
                    parts[name] = after.select(own)
                    found = logprobs[own] if found is None else found.logaddexp(logprobs[own])
        assert found is not None
        return found - math.log(self.num_samples), State({**parts, "calls": calls_B + 1})


def _shares_masks(network: nn.Module) -> bool:
    """Whether rows of a batch share a mask: that of recurrent weights, or of words, whose layers
    have a number as `dropout` and not a module."""
    for part in network.modules():
        of_words = getattr(part, "dropout", 0)
        if getattr(part, "weight_drop", 0) or (not isinstance(of_words, nn.Module) and of_words):
            return True
    return False


@contextmanager
def _dropping(network: nn.Module, seed: int, scale: float) -> Iterator[None]:
    """Let a network drop out, with random numbers of its own."""
    device = next(network.parameters()).device
    devices = [device] if device.type == "cuda" else []
    training = network.training
    with torch.random.fork_rng(devices), torch.no_grad(), scaled(network, scale):
        torch.manual_seed(seed)
        network.train()
        try:
            yield
        finally:
            network.train(training)
