"""A layer: a cell run over a sequence, with lengths, direction, initial state and weight drop.
`nn/kernels/planning.py` decides which kernel computes it.

B batch, T time steps, I inputs, P outputs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elman.nn.cells import Cell
from elman.nn.dropout import drop_weights
from elman.nn.kernels import (
    KernelPlan,
    Purpose,
    halves_are_faster,
    kernel_of,
    plan,
    record_plan,
)
from elman.nn.shapes import Float, Int
from elman.nn.state import State


class RecurrentLayer(nn.Module):
    """One cell along time, left to right or (`reverse`) right to left."""

    def __init__(
        self,
        cell: Cell,
        *,
        kernel: str = "auto",
        reverse: bool = False,
        weight_drop: float = 0.0,
        dropout_state: float = 0.0,
    ) -> None:
        super().__init__()
        self.cell = cell
        self.kernel = kernel
        self.reverse = reverse
        self.weight_drop = weight_drop
        self.dropout_state = dropout_state
        self.output_size = cell.output_size

    def initial_state(self, batch_size: int) -> State:
        return self.cell.initial_state(batch_size)

    def plan(
        self, inputs: Tensor, state: State, *, directions: int = 1, ragged: bool = False
    ) -> KernelPlan:
        """Decide what computes these `inputs`, (B, T, I) or, for one step, (B, I)."""
        if inputs.dim() == 3:
            batch_size, num_steps, input_size = inputs.shape
            purpose = Purpose.TRAINING if torch.is_grad_enabled() else Purpose.SCORING
        else:
            (batch_size, input_size), num_steps = inputs.shape, 1
            purpose = Purpose.ONE_STREAM if batch_size == 1 else Purpose.MANY_STREAMS
        return plan(
            self.cell,
            device=inputs.device,
            dtype=inputs.dtype,
            shape=(batch_size, num_steps, input_size),
            purpose=purpose,
            kernel=self.kernel,
            state_dtype=next(iter(state.values())).dtype,
            directions=directions,
            masked=inputs.dim() == 3 and self.training and self.dropout_state > 0,
            ragged=ragged,
        )

    def forward(
        self,
        inputs_BTI: Float[Tensor, "B T I"],
        state: State | None = None,
        lengths_B: Int[Tensor, "B"] | None = None,
    ) -> tuple[Float[Tensor, "B T P"], State]:
        """Return outputs, zeros beyond a row's length, and the state after its last real step.

        In reverse, "last" is the first token: each row is read from its own end to its beginning.
        """
        if state is None:
            state = self.initial_state(inputs_BTI.shape[0])
        plan = self.plan(inputs_BTI, state, ragged=lengths_B is not None)
        mask_BP = self.state_mask(state)
        masks = () if mask_BP is None else (mask_BP,)
        outputs_BTP, state = kernel_of(plan).run(
            self.cell,
            self.turned(inputs_BTI, lengths_B),
            state,
            lengths_B,
            self.recurrent_weight(),
            plan,
            *masks,
        )
        record_plan(self, plan)
        return self.turned(outputs_BTP, lengths_B), state

    def state_mask(self, state: State) -> Tensor | None:
        """Return what h is multiplied by before each step reads it, if the state is dropped out."""
        if not (self.training and self.dropout_state):
            return None
        return F.dropout(torch.ones_like(state.tensor("h")), self.dropout_state)

    def recurrent_weight(self) -> Tensor:
        """Return the matrix U to use: in training, with dropped entries if there is weight drop."""
        if self.training and self.weight_drop:
            return drop_weights(self.cell.recurrent_weight, self.weight_drop)
        return self.cell.recurrent_weight

    def turned(self, tensor_BTX: Tensor, lengths_B: Tensor | None) -> Tensor:
        """Put time into the order of this layer's steps, or back."""
        return _reversed(tensor_BTX, lengths_B) if self.reverse else tensor_BTX

    def step(
        self, inputs_BI: Float[Tensor, "B I"], state: State
    ) -> tuple[Float[Tensor, "B P"], State]:
        """Take one step, without the cost of setting up a whole sequence."""
        if self.training and (self.weight_drop or self.dropout_state):
            outputs_B1P, state = self(inputs_BI.unsqueeze(1), state)
            return outputs_B1P.squeeze(1), state
        plan = self.plan(inputs_BI, state)
        output_BP, state = kernel_of(plan).step(self.cell, inputs_BI, state, plan)
        record_plan(self, plan)
        return output_BP, state


def halves_pay(model: nn.Module, batch_size: int, num_steps: int) -> bool:
    """Whether all recurrent layers of `model` train faster on this CPU with products in bfloat16.

    By timing each layer in both precisions (`nn/kernels/timing.py`); small layers do not gain.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, RecurrentLayer)]
    return bool(layers) and all(
        layer.kernel in ("auto", "cpu")
        and not layer.dropout_state
        and halves_are_faster(layer.cell, (batch_size, num_steps, layer.cell.input_size))
        for layer in layers
    )


def _reversed(tensor_BTX: Tensor, lengths_B: Tensor | None) -> Tensor:
    """Reverse each row's real part; padding stays where it is."""
    if lengths_B is None:
        return tensor_BTX.flip(1)
    time_1T = torch.arange(tensor_BTX.shape[1], device=tensor_BTX.device).unsqueeze(0)
    lengths_B1 = lengths_B.to(tensor_BTX.device).unsqueeze(1)
    source_BT = torch.where(time_1T < lengths_B1, lengths_B1 - 1 - time_1T, time_1T)
    return tensor_BTX.gather(1, source_BT.unsqueeze(2).expand_as(tensor_BTX))
