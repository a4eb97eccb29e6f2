"""The kernels that this machine can execute: suites about kernels run once for each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from elman.nn.kernels import PlanRecord, kernel_limits, mkl, recorded_plans
from elman.nn.kernels.persistent_launch import runs_on


@dataclass(frozen=True)
class KernelCase:
    """A kernel, and limits under which it runs as `name` says at the small sizes of tests."""

    kernel: str
    variant: str = ""
    limits: dict[str, Any] = field(default_factory=dict)
    device: str = "cpu"

    @property
    def name(self) -> str:
        return f"{self.kernel}, {self.variant}" if self.variant else self.kernel

    @property
    def cell(self) -> str:
        """A cell that it computes."""
        return "mingru" if self.kernel == "scan" else "lstm"

    @property
    def marks(self) -> list[pytest.MarkDecorator]:
        return [pytest.mark.gpu] if self.device == "cuda" else []

    @contextmanager
    def executed(self) -> Iterator[PlanRecord]:
        """Run a block with these limits; afterwards, check that this kernel computed all of it."""
        with kernel_limits(**self.limits), recorded_plans() as record:
            yield record
        plans = {plan for found in record.values() for plan in found}
        if self.kernel != "auto":
            assert {plan.kernel for plan in plans} == {self.kernel}
        loops = [plan for plan in plans if "compiled loop" in plan.variant]
        # In bfloat16 the few units of a test's model are not divided.
        divided = [plan for plan in loops if plan.num_parts > 1]
        assert all(plan.by_units == (self.variant == "by units") for plan in divided)


def kernels_here() -> list[KernelCase]:
    """`triton` and `wave` are among them on a CUDA device, or with TRITON_INTERPRET=1, slowly, on
    the CPU."""
    cases = [KernelCase(name) for name in ("auto", "reference", "torch", "stepwise", "scan")]
    if mkl.available():
        cases.append(KernelCase("cpu", limits={"num_threads": 2, "fewest_rows": 1}))
        limits = {"num_threads": 2, "cache_bytes": 0, "large_bytes": 0, "row_groups": 1}
        cases.append(KernelCase("cpu", "by units", limits))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if runs_on(torch.device(device)):
        cases += [KernelCase("triton", device=device), KernelCase("wave", device=device)]
    return cases
