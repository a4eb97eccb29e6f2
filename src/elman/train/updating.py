"""One update of the weights: forward, backward, clipping, and the optimiser's step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from elman.batches.batch import TaskBatch
from elman.nn.graphed import Figures, GraphedUpdate, Update
from elman.nn.kernels import blocks, memory, planning, products
from elman.nn.kernels.adam import CompiledAdam
from elman.nn.kernels.norms import FEWEST_NUMBERS
from elman.nn.state import State
from elman.train.gradients import add_decay, clip
from elman.train.optimisers import OptimiserConfig, build, set_rate
from elman.train.ranks import Ranks
from elman.train.trainable import Trainable
from elman.train.training_config import TrainingConfig


class Updater:
    """Computes updates, on a GPU from CUDA graphs if the task allows it."""

    def __init__(
        self,
        trainable: Trainable,
        parameters: Sequence[Parameter],
        config: OptimiserConfig,
        training: TrainingConfig,
        ranks: Ranks,
    ) -> None:
        self.trainable, self.parameters = trainable, parameters
        self.config, self.training, self.ranks = config, training, ranks
        self.device = parameters[0].device
        self.is_bf16 = training.is_bf16(self.device.type, trainable.model)
        if ranks.size > 1:  # each has measured, and may have found otherwise
            self.restore_arithmetic(ranks.from_leader(self.arithmetic))
        groups = () if trainable.unfreezing is None else trainable.unfreezing.groups
        self.optimiser = build(config, parameters, groups)
        self.advance: Update = self._advance
        self.graphed: GraphedUpdate | None = None
        if self.device.type == "cuda" and trainable.graphed:
            self.graphed = GraphedUpdate(self._advance, trainable.initial_state, self.device)
            self.advance = self.graphed
        self.num_targets = 0
        """Targets of the current batch, in all processes."""
        self.learning_rate = 0.0

    def update(self, batch: TaskBatch, state: State | None) -> tuple[Figures, State | None]:
        """Update the weights from this process's rows of the batch and the state before them."""
        self.num_targets = batch.num_targets
        rows = self.ranks.rows(batch.num_rows)
        if rows.start == rows.stop:
            return self._step_with_others(), None
        if self.ranks.size > 1:
            batch = batch.rows(rows)
        if self.device.type != "cpu":
            batch = batch.to(str(self.device))
        return self.advance(batch, state)

    def set_learning_rate(self, factor: float, batch: TaskBatch) -> None:
        """`factor` is the schedule's."""
        self.learning_rate = self.config.learning_rate * factor
        if self.trainable.rate_factor is not None:
            factor *= self.trainable.rate_factor(batch)
        for group in self.optimiser.param_groups:
            share = group.get("share", 1.0)
            set_rate(group, self.config.learning_rate * factor * share)

    def arithmetic(self) -> dict[str, Any]:
        """What was chosen by measuring: resuming repeats the same losses with the same products."""
        precision = "bf16" if self.is_bf16 else "float32"
        return {"precision": precision, "products": products.choices()}

    def restore_arithmetic(self, chosen: Mapping[str, Any]) -> None:
        """Compute as a run was begun, as far as this machine can."""
        planning.restore_products(chosen.get("products", {}))
        can = self.device.type != "cpu" or not blocks.problem()
        # A train state without a precision is from before CPUs had a choice.
        usual = "float32" if self.device.type == "cpu" else "bf16"
        if self.training.precision == "auto" and can:
            self.is_bf16 = chosen.get("precision", usual) == "bf16"

    @torch.no_grad()
    def forget(self) -> None:
        """Clear the optimiser's memory, in place: captured updates have the addresses."""
        for memory_of_one in self.optimiser.state.values():
            for tensor in memory_of_one.values():
                if isinstance(tensor, Tensor):
                    tensor.zero_()

    def drop_graphs(self) -> str | None:
        """Compute without graphs from now on if one could not be captured; return what happened."""
        if self.graphed is None or self.graphed.problem is None:
            return None
        told = self.graphed.describe()
        self.advance, self.graphed = self._advance, None
        return told

    @contextmanager
    def running(self) -> Iterator[None]:
        """Keep freed memory for the next update; at the end release it, and the graphs."""
        memory.keep_freed()
        looked_up = self._looked_up()
        try:
            for embedding in looked_up:
                embedding.sparse = True
            yield
        finally:
            for embedding in looked_up:
                embedding.sparse = False
            if self.graphed is not None:
                self.graphed.release()
            memory.release()

    def _looked_up(self) -> list[nn.Embedding]:
        """Large embeddings whose gradients may be the rows of a batch's words: on a CPU most rows
        of a dense one would be zeros, cleared, measured and read at every update."""
        if not isinstance(self.optimiser, CompiledAdam) or self.ranks.size > 1:
            return []
        if self.config.decay_to_clip:  # all rows decay
            return []
        found = [m for m in self.trainable.model.modules() if isinstance(m, nn.Embedding)]
        return [m for m in found if m.weight.numel() >= FEWEST_NUMBERS and not m.sparse]

    def _advance(self, batch: TaskBatch, state: State | None) -> tuple[Figures, State | None]:
        """Run forward, backward, clipping and the optimiser, without waiting for the device."""
        if state is not None and self.trainable.forget is not None:
            state = self.trainable.forget(state)
        for group in self.optimiser.param_groups:  # faster than `zero_grad`
            for parameter in group["params"]:
                parameter.grad = None
        nats = torch.zeros((), device=self.device)
        states = []
        for part, before in _parts(batch, state, self.training.accumulate):
            with self._precision():
                outcome = self.trainable.objective(part, before)
            share = outcome.num_targets / self.num_targets
            loss = outcome.loss if share == 1 else outcome.loss * share
            loss.backward()  # type: ignore[no-untyped-call]
            nats = nats + outcome.nats
            if outcome.state is not None:
                states.append(outcome.state.detach())
        figures = self._step(nats)
        return figures, State.cat(states) if states[1:] else next(iter(states), None)

    def _step(self, nats: Tensor) -> Figures:
        """Clip the gradients, of all processes, and update the weights."""
        if self.ranks.size > 1:
            nats = self.ranks.sum_gradients(self.parameters, nats)
        if decay := self.config.decay_to_clip:
            add_decay(self.parameters, decay)
        norm, norms_P = clip(self.parameters, self.training.clip_norm, self.optimiser)
        self.optimiser.step()
        return nats, norm, norms_P

    def _step_with_others(self) -> Figures:
        """Take part in an update whose batch has fewer rows than there are processes."""
        self.optimiser.zero_grad(set_to_none=True)
        return self._step(torch.zeros((), device=self.device))

    def _precision(self) -> AbstractContextManager[object]:
        if self.is_bf16:
            # No cache: it would keep tensors of a CUDA graph beyond the graph.
            return torch.autocast(self.device.type, dtype=torch.bfloat16, cache_enabled=False)
        return nullcontext()


def _parts(
    batch: TaskBatch, state: State | None, num_parts: int
) -> Iterator[tuple[TaskBatch, State | None]]:
    """Split a batch and its state into `num_parts` groups of rows."""
    if num_parts == 1:
        yield batch, state
        return
    ends = [batch.num_rows * part // num_parts for part in range(num_parts + 1)]
    for start, end in pairwise(ends):
        if start < end:  # a small last batch may have fewer rows than parts
            rows = slice(start, end)
            yield batch.rows(rows), None if state is None else state.select(rows)
