"""The plans that layers executed, for `elman info`, `elman bench` and the training log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import nn

from elman.nn.kernels.planning import KernelPlan

PlanRecord = dict[nn.Module, list[KernelPlan]]
"""The distinct plans that each layer executed, in order."""

_record: ContextVar[PlanRecord | None] = ContextVar("plan_record", default=None)


@contextmanager
def recorded_plans() -> Iterator[PlanRecord]:
    """Collect the plans that layers execute inside a `with` block, in this thread."""
    record: PlanRecord = {}
    token = _record.set(record)
    try:
        yield record
    finally:
        _record.reset(token)


def record_plan(layer: nn.Module, executed: KernelPlan) -> None:
    """Record that `layer` has executed a plan, inside a `recorded_plans` block."""
    record = _record.get()
    if record is not None and executed not in (plans := record.setdefault(layer, [])):
        plans.append(executed)


def plans_by_layer(model: nn.Module, record: PlanRecord) -> dict[str, str]:
    """What each layer of `model` executed, by the layer's name."""
    return {
        name: "; ".join(dict.fromkeys(plan.describe() for plan in record[layer]))
        for name, layer in model.named_modules()
        if layer in record
    }
