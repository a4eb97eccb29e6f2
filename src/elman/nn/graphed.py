"""An update as one CUDA graph: a single replay instead of hundreds of small kernel launches.

At the usual sizes a recurrent network on a GPU spends most of its time waiting for launches.
`GraphedUpdate` wraps the update of the training loop, or of dynamic evaluation. For each shape of
batch that comes often it runs a few ordinary updates, captures the next one, and from then on
replays the graph: the batch and the carried state are copied into the tensors that the graph reads,
and the new state is left where the next replay reads it. Random numbers advance as they would
without a graph.

An update that cannot be captured (an output layer that waits for the device, for example) keeps
running normally, with the same results.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from elman.nn.state import State

Figures = tuple[Tensor, ...]
"""Results of an update. Of the training loop: the sum of the losses, the gradient norm, and the
norm per parameter."""
Update = Callable[[Any, State | None], tuple[Figures, State | None]]
"""Turns a batch and the state before it into the results and the state after it."""

STEPS_BEFORE_CAPTURE = 3
"""Ordinary updates first: libraries initialise, optimisers allocate their buffers. A second shape
needs twice as many, and so on: a capture takes as long as dozens of updates, so a shape that comes
once an epoch is not worth it."""
MOST_GRAPHS = 64
"""Maximum number of captured shapes; each costs a second, and all share one memory pool."""


@runtime_checkable
class Replayable(Protocol):
    """A batch whose shapes come again, so that a captured CUDA graph can be replayed on it."""

    def graph_key(self) -> Hashable | None:
        """Return a key that batches for the same graph share; None if this batch has no graph."""
        ...

    def clone(self) -> Any:
        """Return a copy with its own tensors, for a graph to read."""
        ...

    def copy_(self, other: Any) -> None:
        """Overwrite the tensors with those of a batch with the same `graph_key`."""
        ...


@dataclass
class _Captured:
    graph: torch.cuda.CUDAGraph
    batch: Replayable
    before: State
    figures: Figures


class GraphedUpdate:
    """Call or replay `update` on `device`; `initial` makes the state that None stands for."""

    def __init__(
        self, update: Update, initial: Callable[[int], State], device: torch.device
    ) -> None:
        self.update = update
        self.initial = initial
        self.device = device
        self.works = True
        self.seen: dict[Hashable, int] = {}
        self.captured: dict[Hashable, _Captured] = {}
        with torch.cuda.device(device):
            self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, batch: Any, state: State | None) -> tuple[Figures, State | None]:
        key = batch.graph_key() if isinstance(batch, Replayable) else None
        with torch.cuda.device(self.device):
            if key is None or not self.works:
                return self.update(batch, state)
            return self._step(key, batch, self.initial(batch.num_rows) if state is None else state)

    def _step(self, key: Hashable, batch: Replayable, state: State) -> tuple[Figures, State | None]:
        if key not in self.captured:
            self.seen[key] = self.seen.get(key, 0) + 1
            wanted = STEPS_BEFORE_CAPTURE * (1 + len(self.captured))
            if self.seen[key] <= wanted or len(self.captured) >= MOST_GRAPHS:
                return self._on_side_stream(batch, state)
            self.works = self._capture(key, batch, state)
            if not self.works:
                return self.update(batch, state)
        return self._replay(self.captured[key], batch, state)

    def _on_side_stream(self, batch: Replayable, state: State) -> tuple[Figures, State | None]:
        """Run an ordinary update on the stream of the capture, as capturing requires."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            result = self.update(batch, state)
        torch.cuda.current_stream().wait_stream(self.stream)
        return result

    def _capture(self, key: Hashable, batch: Replayable, state: State) -> bool:
        """Capture the update for batches with this key; return False if it cannot be captured."""
        inputs = batch.clone()
        before = state.map(torch.clone)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
                figures, after = self.update(inputs, before)
                assert after is not None
                _copy(after, before)
        except RuntimeError:
            torch.cuda.synchronize()
            return False
        self.captured[key] = _Captured(graph, inputs, before, figures)
        return True

    def _replay(
        self, captured: _Captured, batch: Replayable, state: State
    ) -> tuple[Figures, State | None]:
        captured.batch.copy_(batch)
        if state is not captured.before:
            _copy(state, captured.before)
        captured.graph.replay()
        # The next replay overwrites the figures; it reads the state before overwriting it.
        return tuple(figure.clone() for figure in captured.figures), captured.before


def _copy(source: State, target: State) -> None:
    theirs = target.flatten()
    for name, tensor in source.flatten().items():
        theirs[name].copy_(tensor)
