"""An update as one CUDA graph: a single replay instead of hundreds of small kernel launches.

At the usual sizes a recurrent network on a GPU spends most of its time waiting for launches.
`GraphedUpdate` wraps the update of the training loop, or of dynamic evaluation. For each shape of
batch that comes often it runs a few ordinary updates, captures the next one, and from then on
replays the graph: the batch and the carried state are copied into the tensors that the graph reads,
and the new state is left where the next replay reads it. Random numbers advance as they would
without a graph. Tasks that read sentences pad their batches to few shapes (`bucketed`) and carry no
state.

An update that cannot be captured (an output layer that waits for the device, for example) keeps
running normally, with the same results; `describe` says so, and why. What is particular to CUDA is
in `CudaCapture`, so that the rest can be tested without a GPU.

Decoding replays its steps in the same way (`decode/streams_on_device.py`,
`decode/beam_on_device.py`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from elman.nn.state import State

log = logging.getLogger("elman")
Result = TypeVar("Result")
Figures = tuple[Tensor, ...]
"""Results of an update. Of the training loop: the sum of the losses, the gradient norm, and the
norm per parameter."""
Update = Callable[[Any, State | None], tuple[Figures, State | None]]
"""Turns a batch and the state before it into the results and the state after it."""

STEPS_BEFORE_CAPTURE = 3
"""Ordinary updates first: libraries initialise, optimisers allocate their buffers. With a carried
state a second shape needs twice as many, and so on: a capture takes as long as dozens of updates of
a language model, so a shape that comes once an epoch is not worth it. A batch of sentences has many
shapes, and an ordinary update takes half as long as its capture: its shape is captured when it
comes again."""
MOST_GRAPHS = 128
"""Maximum number of captured shapes; each costs a second, and all share one memory pool."""
MOST_MEMORY = 1 / 8
"""Part of the device's memory that graphs of decoding may keep for what their steps read and
write."""


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


@runtime_checkable
class Capture(Protocol):
    """Runs work, or captures it to run again."""

    def here(self) -> AbstractContextManager[Any]:
        """Open a context around all that follows."""
        ...

    def run(self, work: Callable[[], Result]) -> Result:
        """Run work as capturing it later requires."""
        ...

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Return a function that runs the same work on the same memory, or raise RuntimeError."""
        ...


class CudaCapture:
    """Captures work in CUDA graphs that share one memory pool."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        with torch.cuda.device(device):
            self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self.pool = torch.cuda.graph_pool_handle()

    def here(self) -> AbstractContextManager[Any]:
        return torch.cuda.device(self.device)

    def run(self, work: Callable[[], Result]) -> Result:
        """Run work on the stream of the capture."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            result = work()
        torch.cuda.current_stream().wait_stream(self.stream)
        return result

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        # A failed capture leaves its stream behind as the current one: set it back.
        with torch.cuda.stream(torch.cuda.current_stream()):
            try:
                return self._record(self.pool, work)
            except RuntimeError:
                self._recover()
                raise

    def _record(self, pool: Any, work: Callable[[], Any]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        # thread_local: a server's other threads may allocate meanwhile, for other models.
        mode = "thread_local"
        with torch.cuda.graph(graph, pool=pool, stream=self.stream, capture_error_mode=mode):
            work()
        return graph.replay

    def _recover(self) -> None:
        """Let what follows run without a graph, and let other graphs be replayed.

        torch ends a failed capture in the driver alone: its allocator still waits for the end, and
        its random generator refuses to draw until another capture has succeeded.
        """
        torch.cuda.synchronize()
        index, binding = torch.cuda.current_device(), torch._C
        with suppress(AttributeError, RuntimeError, TypeError):  # no public functions
            binding._cuda_endAllocateToPool(index, self.pool)
            binding._cuda_releasePool(index, self.pool)
        with suppress(RuntimeError):
            self._record(torch.cuda.graph_pool_handle(), lambda: torch.zeros(1, device=self.device))


@dataclass
class _Captured:
    batch: Replayable
    before: State | None
    figures: Figures = ()
    replay: Callable[[], None] = lambda: None


class Graphed:
    """What is replayed, by shape, and why nothing is."""

    def __init__(self, what: str, device: torch.device, capture: Capture | None) -> None:
        """`what` is warned of if it cannot be captured; empty if the caller tells people."""
        self.what = what
        self.capture = CudaCapture(device) if capture is None else capture
        self.problem: str | None = None
        """Why nothing can be captured."""
        self.num_calls = self.num_replayed = self.num_graphs = 0
        self.seen: dict[Hashable, int] = {}
        self.captured: dict[Hashable, Any] = {}
        self.num_bytes = 0
        """What graphs keep, as far as the caller says."""
        self.room = math.inf
        """The most bytes that they may keep."""
        if device.type == "cuda":
            self.room = MOST_MEMORY * torch.cuda.get_device_properties(device).total_memory

    def describe(self) -> str:
        """For people: how many calls were replayed."""
        if self.problem is not None:
            return f"not replayed from a CUDA graph: {self.problem}"
        return (
            f"{self.num_replayed:,} of {self.num_calls:,} replayed from CUDA graphs "
            f"of {self.num_graphs} shapes"
        )

    def release(self) -> None:
        """Drop all graphs. nccl's connections cannot be closed while there are graphs that use
        them."""
        self.captured.clear()
        self.num_bytes = 0

    def _has_room(self, num_bytes: int) -> bool:
        """Whether there is room for one more graph, which keeps `num_bytes`."""
        return self.num_graphs < MOST_GRAPHS and self.num_bytes + num_bytes <= self.room

    def _captures(self, key: Hashable, capture: Callable[[], Any], num_bytes: int = 0) -> bool:
        """Add what `capture` returns, which keeps `num_bytes`; False if nothing can be captured,
        now or later."""
        try:
            self.captured[key] = capture()
        except RuntimeError as error:
            self.problem = _cause(error)
            self.release()
            if self.what:
                log.warning("%s are %s", self.what, self.describe())
            return False
        self.num_graphs += 1
        self.num_bytes += num_bytes
        return True


def _cause(error: BaseException) -> str:
    """The first line of the first of the errors that followed one another: after the first one,
    torch raises another that says only that there was one."""
    while isinstance(error.__context__, RuntimeError):
        error = error.__context__
    return (str(error).splitlines() or ["unknown"])[0]


class GraphedUpdate(Graphed):
    """Call or replay `update` on `device`; `initial` makes the state that None stands for, and is
    None if no state is carried."""

    def __init__(
        self,
        update: Update,
        initial: Callable[[int], State] | None,
        device: torch.device,
        capture: Capture | None = None,
        *,
        what: str = "",
    ) -> None:
        super().__init__(what, device, capture)
        self.update = update
        self.initial = initial

    def __call__(self, batch: Any, state: State | None) -> tuple[Figures, State | None]:
        self.num_calls += 1
        key = batch.graph_key() if isinstance(batch, Replayable) else None
        with self.capture.here():
            if self.problem is not None:
                return self.update(batch, state)
            if key is None:
                return self.capture.run(lambda: self.update(batch, state))
            if state is None and self.initial is not None:
                state = self.initial(batch.num_rows)
            return self._step(key, batch, state)

    def _step(
        self, key: Hashable, batch: Replayable, state: State | None
    ) -> tuple[Figures, State | None]:
        if key not in self.captured:
            self.seen[key] = self.seen.get(key, 0) + 1
            if not self._is_wanted(key):
                return self.capture.run(lambda: self.update(batch, state))
            if not self._captures(key, lambda: self._capture(batch, state)):
                return self.update(batch, state)
        self.num_replayed += 1
        return self._replay(self.captured[key], batch, state)

    def _is_wanted(self, key: Hashable) -> bool:
        if not self._has_room(0):
            return False
        if self.initial is None:
            return self.seen[key] > 1 and self.num_calls > STEPS_BEFORE_CAPTURE
        return self.seen[key] > STEPS_BEFORE_CAPTURE * (1 + self.num_graphs)

    def _capture(self, batch: Replayable, state: State | None) -> _Captured:
        """Capture the update for batches of this shape; raise RuntimeError if it is impossible."""
        captured = _Captured(batch.clone(), None if state is None else state.map(torch.clone))

        def work() -> None:
            captured.figures, after = self.update(captured.batch, captured.before)
            if captured.before is not None:
                assert after is not None
                copy_state(after, captured.before)

        captured.replay = self.capture.record(work)
        return captured

    def _replay(
        self, captured: _Captured, batch: Replayable, state: State | None
    ) -> tuple[Figures, State | None]:
        captured.batch.copy_(batch)
        if state is not None and captured.before is not None and state is not captured.before:
            copy_state(state, captured.before)
        captured.replay()
        # The next replay overwrites the figures; it reads the state before overwriting it.
        return tuple(figure.clone() for figure in captured.figures), captured.before


Step = Callable[[Tensor, State], tuple[Tensor, State]]
"""Reads a token in each row: (B,) tokens and states to (B, V) log probabilities and states."""


def copy_state(source: State, target: State) -> None:
    """Overwrite the first rows of `target`; what the two share stays."""
    theirs = target.flatten()
    for name, tensor in source.flatten().items():
        if tensor is not theirs[name]:
            theirs[name][: len(tensor)].copy_(tensor)
