"""Cells that train in parallel over time: their gates read the input alone, never the past.

Without a recurrent matrix, all that is left of the recurrence is one line per unit,

    c = keep * c + add

whose two coefficients are known for all time steps at once. A line can be composed with the next,
so a whole sequence is a scan (`nn/kernels/scan.py`) and not a chain of products. The price: a
layer can no longer make what it stores depend on what it holds, which is why such layers are
stacked.

Each cell here says how inputs become the two coefficients and how the output is read from c;
`ScanCell.step` is the line above, for decoding and as the reference.

B batch, I inputs, H hidden units, G columns of what is computed from the input.
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
    """A cell whose state is a line in the state before it."""

    reads_state: ClassVar[bool] = False

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size, hidden_size, layer_norm=False)
        self.reset_parameters()

    @abstractmethod
    def coefficients(
        self, projected: Float[Tensor, "*batch G"]
    ) -> tuple[Float[Tensor, "*batch H"], Float[Tensor, "*batch H"]]:
        """`keep`, between 0 and 1, and `add`, from W x + b."""

    def read(
        self, projected: Float[Tensor, "*batch G"], states: Float[Tensor, "*batch H"]
    ) -> Float[Tensor, "*batch H"]:
        """The output, from W x + b and the new state: here the state itself."""
        return states

    def step(
        self,
        projected_BG: Float[Tensor, "B G"],
        state: State,
        recurrent_weight: Float[Tensor, "0 P"] | None = None,
    ) -> tuple[Float[Tensor, "B H"], State]:
        """h = keep * h + add."""
        keep_BH, add_BH = self.coefficients(projected_BG)
        h_BH = keep_BH * state.tensor("h") + add_BH
        return self.read(projected_BG, h_BH), State({"h": h_BH})


class MinGRUCell(ScanCell):
    """The GRU without its past in the gates (Feng, Tung, Ahmed, Bengio and Hajimirsadeghi, 2024).

        u = sigmoid(W_u x + b_u)                 update gate (the paper's z)
        n = g(W_n x + b_n)                       new content
        h = (1 - u) * h + u * n

    g(a) = a + 0.5 for a >= 0, sigmoid(a) below, as in the paper's log-space form: positive, smooth
    enough, without a ceiling.
    """

    num_gates = 2

    def coefficients(
        self, projected: Float[Tensor, "*batch G"]
    ) -> tuple[Float[Tensor, "*batch H"], Float[Tensor, "*batch H"]]:
        """1 - u and u * n."""
        u, n = projected.chunk(2, dim=-1)
        u = torch.sigmoid(u)
        return 1 - u, u * _positive(n)


class MinLSTMCell(ScanCell):
    """The LSTM without its past in the gates (Feng and others, 2024).

        i = sigmoid(W_i x + b_i)                 input gate
        f = sigmoid(W_f x + b_f)                 forget gate
        n = g(W_n x + b_n)                       new content, g as in the minGRU
        h = f / (f + i) * h + i / (f + i) * n

    The gates share one unit between them, so that the state keeps its size over time.
    """

    num_gates = 3

    def coefficients(
        self, projected: Float[Tensor, "*batch G"]
    ) -> tuple[Float[Tensor, "*batch H"], Float[Tensor, "*batch H"]]:
        """f / (f + i) and i / (f + i) * n.

        f / (f + i) = sigmoid(log f - log i), which holds where f and i both underflow.
        """
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

    The state called h is c, the memory. Where x is not as wide as h, a fourth matrix carries it.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        self.num_gates = 3 if input_size == hidden_size else 4
        super().__init__(input_size, hidden_size)

    def project(self, inputs: Float[Tensor, "*batch I"]) -> Float[Tensor, "*batch G"]:
        """W x + b for the content and both gates, then x or what carries it."""
        projected = super().project(inputs)
        if self.num_gates == 4:
            return projected
        return torch.cat([projected, inputs.to(projected.dtype)], dim=-1)

    def coefficients(
        self, projected: Float[Tensor, "*batch G"]
    ) -> tuple[Float[Tensor, "*batch H"], Float[Tensor, "*batch H"]]:
        """f and (1 - f) * n."""
        n, f, _, _ = projected.chunk(4, dim=-1)
        f = torch.sigmoid(f)
        return f, (1 - f) * n

    def read(
        self, projected: Float[Tensor, "*batch G"], states: Float[Tensor, "*batch H"]
    ) -> Float[Tensor, "*batch H"]:
        """r * tanh(c) + (1 - r) * x."""
        _, _, r, carried = projected.chunk(4, dim=-1)
        return torch.lerp(carried.to(states.dtype), torch.tanh(states), torch.sigmoid(r).to(states))


def _positive(a: Tensor) -> Tensor:
    """The paper's g: a + 0.5 above zero, sigmoid(a) below."""
    return F.relu(a) + torch.sigmoid(a.clamp(max=0.0))
