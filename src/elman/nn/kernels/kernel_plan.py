"""The types of planning: the work to compute, and the plan or refusal that a planner returns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import torch

from elman.nn.cells import Cell
from elman.nn.kernels.limits import KernelLimits
from elman.nn.kernels.persistent_tiling import Tiling
from elman.nn.kernels.products import BFLOAT16, MKL, ONEDNN

PRODUCTS = {MKL: "by MKL", ONEDNN: "by oneDNN", BFLOAT16: "in bfloat16 by oneDNN"}
COMPILED_STEP, WHOLE_MODEL = "compiled step", "whole model in one call"
PACKED_MODEL = "whole model in one call, packed weights"
ONE_LAUNCH, STEP_BY_STEP, TWO_LEVELS = "one launch", "step by step", "two levels"


class Purpose(Enum):
    """What a cell is computed for."""

    TRAINING = "training"
    """Whole sequences, with gradients."""
    SCORING = "scoring"
    """Whole sequences, without gradients."""
    ONE_STREAM = "one stream"
    """One step of one row: decoding."""
    MANY_STREAMS = "many streams"
    """One step of several rows."""


@dataclass(frozen=True, kw_only=True)
class KernelPlan:
    """Which kernel computes a cell, and how."""

    kernel: str
    """Its name in the table of kernels."""
    variant: str
    """How it computes, in words."""
    reason: str = ""
    """Why this one."""
    num_parts: int = 1
    """On a CPU: parts of the batch, or of the units; at most one per thread."""
    num_threads: int = 1
    """cpu: threads for products over all steps, in bfloat16."""
    by_units: bool = False
    """cpu: whether threads divide the units instead of the rows, or besides them."""
    row_groups: int = 1
    """cpu: groups of rows in a layer's loop, each computed by num_parts / row_groups threads."""
    in_cache: bool = False
    """cpu: whether W x and the matrices' gradients are computed inside the time loop."""
    products: str = ""
    """cpu: what multiplies inside the loop."""
    tiling: Tiling | None = None
    """triton: how the layer is divided over the GPU."""
    directions: int = 1
    """How many layers of opposite directions run at once."""

    def describe(self) -> str:
        """For people: "cpu: compiled loop, rows over 2 threads"."""
        return f"{self.kernel}: {self.variant}"


@dataclass(frozen=True)
class Refusal:
    """Why a kernel cannot compute something, or should not."""

    why: str
    is_obvious: bool = False
    """Whether it never computes such a cell, or on such a device: no reason to mention it."""


class CellFacts(NamedTuple):
    """What matters about a cell."""

    kind: type[Cell]
    hidden_size: int
    dtype: torch.dtype
    form: str
    """The RNN's nonlinearity, or the GRU's form."""
    projection_size: int
    """0: the cell has no projection."""
    has_extras: bool
    """Whether it has layer normalisation, peepholes, clipping, a capped gate or mogrifiers."""
    is_stepwise: bool
    """Whether `stepwise.py` computes it."""
    is_wave: bool
    """Whether `wave.py` computes it."""
    mogrify_rank: int
    """The rank of its mogrifiers' matrices; 0: no mogrifiers, or full matrices."""
    is_scan: bool
    """Whether it is a `ScanCell` that has kept the common `step`."""
    step_bytes: int
    """Bytes of weights that one step reads."""

    @property
    def is_projected(self) -> bool:
        return self.projection_size > 0

    @property
    def is_plain(self) -> bool:
        return not (self.is_projected or self.has_extras)


class ModelWeights(NamedTuple):
    """The weights of a model whose step can be one compiled call (`model_step.py`)."""

    step_bytes: int
    """Bytes that one step reads."""
    float_bytes: int
    """The same as float32."""

    @property
    def is_int8(self) -> bool:
        """Whether they are read as int8."""
        return self.step_bytes < self.float_bytes


class Workload(NamedTuple):
    """All that a plan depends on; plans are cached by it."""

    cell: CellFacts
    device: torch.device
    dtype: torch.dtype
    """The dtype of the inputs."""
    autocast_dtype: torch.dtype | None
    """What autocast computes in; None if it is off."""
    state_dtype: torch.dtype
    shape: tuple[int, int, int]
    """Rows, steps, inputs."""
    is_step: bool
    has_gradients: bool
    directions: int
    limits: KernelLimits
    num_threads: int
    kernel: str
    model: ModelWeights | None
    is_masked: bool
    """Whether h is multiplied by a mask before each step."""
    is_ragged: bool
    """Whether rows have lengths of their own."""

    @property
    def is_named(self) -> bool:
        return self.kernel != "auto"

    @property
    def is_float32(self) -> bool:
        return self.cell.dtype == self.dtype == self.state_dtype == torch.float32
