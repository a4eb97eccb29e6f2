"""Cells that train in parallel over time: their gates read only the input, never the state.

Without a recurrent matrix the recurrence is one linear equation per unit,

    c = keep * c + add

whose two coefficients are known for all time steps at once. Linear steps can be composed, so a
whole sequence is a scan (`nn/kernels/scan.py`) instead of a chain of products. The price: what a
layer stores cannot depend on what it holds, which is why such layers are stacked.

Each cell defines how inputs become the two coefficients and how the output is read from c;
`ScanCell.step` is the equation above, for decoding and as the reference.

B batch, I inputs, H hidden units, G columns computed from the input.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from elman.nn.cells import Cell
from elman.nn.shapes import Float
from elman.nn.state import State


class ScanCell(Cell):
    """A cell whose new state is a linear function of the old one."""

    reads_state: ClassVar[bool] = False

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size, hidden_size, layer_norm=False)
        self.reset_parameters()

    @abstractmethod
    def coefficients(
        self, projected: Float[Tensor, "*batch G"]
    ) -> tuple[Float[Tensor, "*batch H"], Float[Tensor, "*batch H"]]:
        """Compute `keep`, between 0 and 1, and `add` from W x + b."""

    def read(
        self, projected: Float[Tensor, "*batch G"], states: Float[Tensor, "*batch H"]
    ) -> Float[Tensor, "*batch H"]:
        """Compute the output from W x + b and the new state; here the state itself."""
        return states

    def step(
        self,
        projected_BG: Float[Tensor, "B G"],
        state: State,
        recurrent_weight: Float[Tensor, "0 P"] | None = None,
    ) -> tuple[Float[Tensor, "B H"], State]:
        keep_BH, add_BH = self.coefficients(projected_BG)
        h_BH = keep_BH * state.tensor("h") + add_BH
        return self.read(projected_BG, h_BH), State({"h": h_BH})


class MinGRUCell(ScanCell):
    """The GRU without the state in its gates (Feng, Tung, Ahmed, Bengio and Hajimirsadeghi, 2024).

        u = sigmoid(W_u x + b_u)                 update gate (the paper's z)
        n = g(W_n x + b_n)                       new content
        h = (1 - u) * h + u * n

    g(a) = a + 0.5 for a >= 0, sigmoid(a) below, as in the paper's log-space form: positive,
    continuous, unbounded.
    """

    num_gates = 2

    def coefficients(
        self, projected: Float[Tensor, "*batch G"]
    ) -> tuple[Float[Tensor, "*batch H"], Float[Tensor, "*batch H"]]:
        u, n = projected.chunk(2, dim=-1)
        u = torch.sigmoid(u)
        return 1 - u, u * _positive(n)


class MinLSTMCell(ScanCell):
    """The LSTM without the state in its gates (Feng and others, 2024).

        i = sigmoid(W_i x + b_i)                 input gate
        f = sigmoid(W_f x + b_f)                 forget gate
        n = g(W_n x + b_n)                       new content, g as in the minGRU
        h = f / (f + i) * h + i / (f + i) * n

    The two gates are normalised to sum to one, so that the state keeps its scale over time.
    """

    num_gates = 3

    def coefficients(
        self, projected: Float[Tensor, "*batch G"]
    ) -> tuple[Float[Tensor, "*batch H"], Float[Tensor, "*batch H"]]:
        """f / (f + i) = sigmoid(log f - log i), which also holds when both underflow."""
        i, f, n = projected.chunk(3, dim=-1)
        odds = F.logsigmoid(f) - F.logsigmoid(i)
        return torch.sigmoid(odds), torch.sigmoid(-odds) * _positive(n)


class SRUCell(ScanCell):
    """The simple recurrent unit (Lei, Zhang and Artzi, 2017: the form whose gates read only x).

        n = W_n x + b_n                          new content
        f = sigmoid(W_f x + b_f)                 forget gate
        r = sigmoid(W_r x + b_r)                 reset gate
        c = f * c + (1 - f) * n
        h = r * tanh(c) + (1 - r) * x

    The state called h is the memory c. If x is not as wide as h, a fourth matrix projects it.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        self.num_gates = 3 if input_size == hidden_size else 4
        super().__init__(input_size, hidden_size)

    def project(self, inputs: Float[Tensor, "*batch I"]) -> Float[Tensor, "*batch G"]:
        """W x + b for the content and both gates, then x or its projection."""
        projected = super().project(inputs)
        if self.num_gates == 4:
            return projected
        return torch.cat([projected, inputs.to(projected.dtype)], dim=-1)

    def coefficients(
        self, projected: Float[Tensor, "*batch G"]
    ) -> tuple[Float[Tensor, "*batch H"], Float[Tensor, "*batch H"]]:
        n, f, _, _ = projected.chunk(4, dim=-1)
        f = torch.sigmoid(f)
        return f, (1 - f) * n

    def read(
        self, projected: Float[Tensor, "*batch G"], states: Float[Tensor, "*batch H"]
    ) -> Float[Tensor, "*batch H"]:
        _, _, r, carried = projected.chunk(4, dim=-1)
        return torch.lerp(carried.to(states.dtype), torch.tanh(states), torch.sigmoid(r).to(states))


def _positive(a: Tensor) -> Tensor:
    """The paper's g: a + 0.5 above zero, sigmoid(a) below."""
    return F.relu(a) + torch.sigmoid(a.clamp(max=0.0))
