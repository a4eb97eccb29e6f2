"""Find the fastest plan for an LSTM layer on this machine, by timing at first use.

How threads divide a layer, whether its products are in bfloat16, and whether torch's own layer is
faster depend on caches, cores and libraries in ways that the time of one small product does not
tell. So each candidate computes the layer itself, forward and, in training, backward, in its shape,
in turns; the least time counts, because other programs only ever add to it. Choices are kept beside
those of `products.py`.

B batch, T time steps, I inputs, H hidden units.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from elman.nn.cells import LSTMCell
from elman.nn.kernels.products import OF_LAYERS, kept_or

if TYPE_CHECKING:
    from elman.nn.kernels.planning import KernelPlan

FEWEST_ROUNDS, MOST_ROUNDS = 3, 16
SECONDS = {"training": 0.6, "scoring": 0.2}
"""How often each is timed after a first run, and seconds after which no further round begins. On a
busy machine three rounds were too few to find the least time."""
TOO_SLOW = 2.0
"""After the fewest rounds, candidates that take this many times as long as the fastest are not
timed again."""
MOST_STEPS, FEWEST_STEPS, MOST_WORK = 256, 8, 1 << 32
"""Steps that are timed of a longer sequence: fewer where they have more multiplications. 32 steps
of 256 units were too few: what is done once for all steps weighed too much."""
MOST_ROWS = 1024
"""Rows that are timed of a larger batch with more multiplications: a batch of 30,000 was timed for
minutes, and one of 100,000 took all memory."""
SHORT, LONG = 16, 128
"""Steps that are timed for scoring, where batches have many lengths: of fewer than twice `SHORT`,
and of more."""
CLEARLY, FOR_HALVES = 1.05, 1.1
"""How many times as fast as the first candidate another one must be to be chosen; in bfloat16
beside float32."""


class Layer(NamedTuple):
    """An LSTM layer and what it is computed for."""

    batch_size: int
    num_steps: int
    input_size: int
    hidden_size: int
    trains: bool
    num_threads: int

    @property
    def purpose(self) -> str:
        return "training" if self.trains else "scoring"

    def rounded(self) -> Layer:
        """The layer that is timed for this one: four sizes of a batch between a power of two and
        the next, powers of two of steps."""
        exponent = max(0, self.batch_size.bit_length() - 3)
        batch_size = -(-self.batch_size >> exponent) << exponent
        num_steps = 1 << min(self.num_steps, MOST_STEPS).bit_length() - 1
        if not self.trains:
            num_steps = SHORT if self.num_steps < 2 * SHORT else LONG
        width = 4 * self.hidden_size * (self.input_size + self.hidden_size)
        while num_steps > FEWEST_STEPS and batch_size * num_steps * width > MOST_WORK:
            num_steps //= 2
        while batch_size > MOST_ROWS and batch_size * num_steps * width > MOST_WORK:
            batch_size //= 2
        return self._replace(batch_size=batch_size, num_steps=num_steps)


class Candidate(NamedTuple):
    """A plan, and whether it runs under autocast to bfloat16."""

    plan: KernelPlan
    half: bool


def fastest(layer: Layer, candidates: Mapping[str, Candidate]) -> str:
    """The name of the fastest candidate; the first one unless another is clearly faster."""
    if len(candidates) == 1:
        return next(iter(candidates))
    layer = layer.rounded()
    sizes = f"{layer.batch_size}x{layer.num_steps}x{layer.input_size}x{layer.hidden_size}"
    threads = f"{layer.num_threads} threads"
    name = f"{OF_LAYERS}{sizes}, {layer.purpose}, {threads}: {' | '.join(candidates)}"
    return kept_or(name, lambda: _measured(layer, candidates), candidates)


def _measured(layer: Layer, candidates: Mapping[str, Candidate]) -> str:
    with torch.inference_mode(False):
        with torch.device("meta"):  # draws no random numbers, which other threads may be drawing
            cell = LSTMCell(layer.input_size, layer.hidden_size).float()
        cell = cell.to_empty(device="cpu")
        for parameter in cell.parameters():
            torch.nn.init.constant_(parameter, 0.01)
        works = {name: _work(cell, layer, candidate) for name, candidate in candidates.items()}
        for run in works.values():
            run()  # compiles
        started, least = time.perf_counter(), dict.fromkeys(works, np.inf)
        for number in range(MOST_ROUNDS):
            if number == FEWEST_ROUNDS:
                limit = TOO_SLOW * min(least.values())
                works = {name: run for name, run in works.items() if least[name] <= limit}
            if number >= FEWEST_ROUNDS and time.perf_counter() - started > SECONDS[layer.purpose]:
                break
            for name, run in works.items():
                before = time.perf_counter()
                run()
                least[name] = min(least[name], time.perf_counter() - before)
    first, best = next(iter(candidates)), min(least, key=least.__getitem__)
    clearly = CLEARLY if candidates[first].half == candidates[best].half else FOR_HALVES
    return best if least[best] * clearly <= least[first] else first


def _work(cell: LSTMCell, layer: Layer, candidate: Candidate) -> Callable[[], None]:
    from elman.nn.kernels import kernel_of

    kernel, plan = kernel_of(candidate.plan), candidate.plan
    sizes = (layer.batch_size, layer.num_steps, layer.input_size)
    inputs_BTI = torch.full(sizes, 0.1, dtype=torch.float32, device="cpu")
    state = cell.initial_state(layer.batch_size)
    given = (cell, inputs_BTI.requires_grad_(layer.trains), state, None, cell.recurrent_weight)

    def run() -> None:
        with (
            torch.set_grad_enabled(layer.trains),
            torch.autocast("cpu", torch.bfloat16, enabled=candidate.half, cache_enabled=False),
        ):
            outputs, _ = kernel.run(*given, plan)
        if layer.trains:
            wanted = (inputs_BTI, cell.input_weight, cell.recurrent_weight, cell.bias)
            torch.autograd.grad(outputs, wanted, torch.ones_like(outputs))

    return run
