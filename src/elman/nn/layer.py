"""A layer: a cell carried along time. Lengths, direction, initial state, weight drop, and the
choice of a kernel.

B batch, T time steps, I inputs, P outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from elman.nn.cells import Cell
from elman.nn.dropout import drop_weights
from elman.nn.kernels import KERNELS, choose
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
    ) -> None:
        super().__init__()
        self.cell = cell
        self.kernel = kernel
        self.reverse = reverse
        self.weight_drop = weight_drop
        self.output_size = cell.output_size

    def initial_state(self, batch_size: int) -> State:
        """The cell's."""
        return self.cell.initial_state(batch_size)

    def kernel_for(self, device: torch.device) -> str:
        """The name of the kernel that this layer runs on `device`."""
        return choose(self.cell, device, self.kernel)

    def forward(
        self,
        inputs_BTI: Float[Tensor, "B T I"],
        state: State | None = None,
        lengths_B: Int[Tensor, "B"] | None = None,
    ) -> tuple[Float[Tensor, "B T P"], State]:
        """Outputs (zeros beyond a row's length) and the state after each row's last real step.

        In reverse, "last" is the first token: each row is read from its own end to its beginning.
        """
        if state is None:
            state = self.initial_state(inputs_BTI.shape[0])
        kernel = KERNELS[self.kernel_for(inputs_BTI.device)]
        outputs_BTP, state = kernel.run(
            self.cell,
            self.turned(inputs_BTI, lengths_B),
            state,
            lengths_B,
            self.recurrent_weight(),
        )
        return self.turned(outputs_BTP, lengths_B), state

    def recurrent_weight(self) -> Tensor:
        """The matrix U to use: the cell's, thinned in training where there is weight drop."""
        if self.training and self.weight_drop:
            return drop_weights(self.cell.recurrent_weight, self.weight_drop)
        return self.cell.recurrent_weight

    def turned(self, tensor_BTX: Tensor, lengths_B: Tensor | None) -> Tensor:
        """What is read or written in the order of this layer's steps; the way back is the same."""
        return _reversed(tensor_BTX, lengths_B) if self.reverse else tensor_BTX

    def step(
        self, inputs_BI: Float[Tensor, "B I"], state: State
    ) -> tuple[Float[Tensor, "B P"], State]:
        """One step of time, without the cost of setting up a whole sequence."""
        if self.training and self.weight_drop:
            outputs_B1P, state = self(inputs_BI.unsqueeze(1), state)
            return outputs_B1P.squeeze(1), state
        kernel = KERNELS[self.kernel_for(inputs_BI.device)]
        output_BP, state = kernel.step(self.cell, inputs_BI, state)
        return output_BP, state


def _reversed(tensor_BTX: Tensor, lengths_B: Tensor | None) -> Tensor:
    """Each row's real part back to front; what lies beyond stays where it is."""
    if lengths_B is None:
        return tensor_BTX.flip(1)
    time_1T = torch.arange(tensor_BTX.shape[1], device=tensor_BTX.device).unsqueeze(0)
    lengths_B1 = lengths_B.to(tensor_BTX.device).unsqueeze(1)
    source_BT = torch.where(time_1T < lengths_B1, lengths_B1 - 1 - time_1T, time_1T)
    return tensor_BTX.gather(1, source_BT.unsqueeze(2).expand_as(tensor_BTX))
