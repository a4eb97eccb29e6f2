"""An update as one CUDA graph: hundreds of small launches become a single replay.

A recurrent network at the usual sizes spends most of its time on a GPU waiting for the next launch.
`GraphedUpdate` wraps the loop's update. Each shape of batch runs as it is for a few steps, which
are ordinary training; then it is captured once, and from there on replayed: the batch and the
carried state are copied into the tensors that the graph reads, and the new state is left where the
next replay looks for it. Random numbers advance as they would without it.

What cannot be captured (an output layer that asks the device a question, say) goes on running as it
is, without a word: the results are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from elman.batches.batch import Batch
from elman.nn.state import State

Figures = tuple[Tensor, Tensor, Tensor]
"""What a step reports: the sum of the losses, the norm of the gradient, each parameter's own."""

STEPS_BEFORE_CAPTURE = 3
"""Ordinary steps first: libraries set themselves up, optimisers make their buffers."""
MOST_GRAPHS = 64
"""Shapes that are captured at most; each costs a second, and they share one pool of memory."""


@dataclass
class _Captured:
    graph: torch.cuda.CUDAGraph
    batch: Batch
    before: State
    figures: Figures


class GraphedUpdate:
    """Calls `update`, or replays it; `initial` makes the state that None stands for.

    All of it happens on `device`, the model's, whichever is the current one.
    """

    def __init__(
        self,
        update: Callable[[Batch, State | None], tuple[Figures, State | None]],
        initial: Callable[[int], State],
        device: torch.device,
    ) -> None:
        self.update = update
        self.initial = initial
        self.device = device
        self.works = True
        self.seen: dict[tuple[int, ...], int] = {}
        self.captured: dict[tuple[int, ...], _Captured] = {}
        with torch.cuda.device(device):
            self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, batch: Batch, state: State | None) -> tuple[Figures, State | None]:
        """One update."""
        with torch.cuda.device(self.device):
            return self._step(batch, state)

    def _step(self, batch: Batch, state: State | None) -> tuple[Figures, State | None]:
        shape = tuple(batch.tokens_BT.shape)
        state = self.initial(shape[0]) if state is None else state
        if batch.mask_BT is not None or not self.works:
            return self.update(batch, state)
        if shape not in self.captured:
            self.seen[shape] = self.seen.get(shape, 0) + 1
            if self.seen[shape] <= STEPS_BEFORE_CAPTURE or len(self.captured) >= MOST_GRAPHS:
                return self._aside(batch, state)
            self.works = self._capture(shape, batch, state)
            if not self.works:
                return self.update(batch, state)
        return self._replay(self.captured[shape], batch, state)

    def _aside(self, batch: Batch, state: State) -> tuple[Figures, State | None]:
        """An ordinary step, on a stream of its own: what capturing asks of the steps before it."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            result = self.update(batch, state)
        torch.cuda.current_stream().wait_stream(self.stream)
        return result

    def _capture(self, shape: tuple[int, ...], batch: Batch, state: State) -> bool:
        """Capture the update for batches of this shape; False where it cannot be."""
        inputs = Batch(batch.tokens_BT.clone(), batch.targets_BT.clone())
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
        self.captured[shape] = _Captured(graph, inputs, before, figures)
        return True

    def _replay(
        self, captured: _Captured, batch: Batch, state: State
    ) -> tuple[Figures, State | None]:
        captured.batch.tokens_BT.copy_(batch.tokens_BT, non_blocking=True)
        captured.batch.targets_BT.copy_(batch.targets_BT, non_blocking=True)
        if state is not captured.before:
            _copy(state, captured.before)
        captured.graph.replay()
        # The next replay overwrites the figures; the state is read before it is overwritten.
        nats, norm, norms_P = captured.figures
        return (nats.clone(), norm.clone(), norms_P.clone()), captured.before


def _copy(source: State, target: State) -> None:
    theirs = target.flatten()
    for name, tensor in source.flatten().items():
        theirs[name].copy_(tensor)
