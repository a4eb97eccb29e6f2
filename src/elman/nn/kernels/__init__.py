"""Kernels: ways to run a cell over a sequence. `planning.plan` decides which one computes a cell.

A kernel is a module, or another object, with the two functions of `Kernel`. It executes the plan
that it is given or raises. `persistent.run_directions` also runs both directions of a bidirectional
layer at once, `wave.run_layers` all layers of a stack.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from elman.base.errors import UsageError
from elman.base.tables import look_up
from elman.nn.cells import Cell
from elman.nn.kernels import cpu, persistent, reference, scan, stepwise, torch_rnn, wave
from elman.nn.kernels.mkl import kernel_notes
from elman.nn.kernels.plan_record import PlanRecord, plans_by_layer, record_plan, recorded_plans
from elman.nn.kernels.planning import (
    KernelLimits,
    KernelPlan,
    Purpose,
    halves_are_faster,
    kernel_limits,
    plan,
)
from elman.nn.state import State

__all__ = [
    "KERNELS",
    "Kernel",
    "KernelLimits",
    "KernelPlan",
    "PlanRecord",
    "Purpose",
    "halves_are_faster",
    "kernel_limits",
    "kernel_notes",
    "kernel_of",
    "plan",
    "plans_by_layer",
    "record_plan",
    "recorded_plans",
]


@runtime_checkable
class Kernel(Protocol):
    """The two functions of a kernel."""

    def run(
        self,
        cell: Cell,
        inputs_BTI: Tensor,
        state: State,
        lengths_B: Tensor | None,
        recurrent_weight: Tensor,
        plan: KernelPlan,
    ) -> tuple[Tensor, State]:
        """Compute a whole sequence from `state`: outputs (B, T, P) and the final state.

        Steps beyond `lengths_B` (None: nothing is padded) are ignored: outputs are zeros there, and
        the state is that of each row's last real step. `recurrent_weight` is the matrix U to use:
        the cell's own, or one with dropped entries.
        """

    def step(
        self, cell: Cell, inputs_BI: Tensor, state: State, plan: KernelPlan
    ) -> tuple[Tensor, State]:
        """Compute one step, for decoding: the output (B, P) and the new state."""


KERNELS: dict[str, Kernel] = {
    "scan": scan,
    "cpu": cpu,
    "triton": persistent,
    "torch": torch_rnn,
    "wave": wave,
    "stepwise": stepwise,
    "reference": reference,
}


def kernel_of(plan: KernelPlan) -> Kernel:
    """The kernel that a plan names; `package.module:name` is imported."""
    name = plan.kernel
    if name in KERNELS:
        return KERNELS[name]
    kernel = look_up({}, name, "kernel")
    if not isinstance(kernel, Kernel):
        raise UsageError(f"{name} is not a kernel", "give it the functions run and step")
    return kernel
