"""Cells that train in parallel over time: their gates read only the input, never the state.

Without a recurrent matrix the recurrence is one linear equation per unit,

    c = keep * c + add

whose two coefficients are known for all time steps at once. Linear steps can be composed, so a
whole sequence is a scan (`nn/kernels/scan.py`) instead of a chain of products. The price: what a
layer stores cannot depend on what it holds, which is why such layers are stacked.

Each cell defines how inputs become the two coefficients and how the output is read from c;
`ScanCell.step` is the equation above, for decoding and as the reference. A cell may also read the
input of the step before (`look_back`), which is then a part of its state.

B batch, T time steps, I inputs, H hidden units, G columns computed from the input.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elman.nn.cells import Cell
from elman.nn.shapes import Float, Int
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

    def look_back(
        self,
        projected_TBG: Float[Tensor, "T B G"],
        state: State,
        lengths_B: Int[Tensor, "B"] | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Add what depends on the inputs of earlier steps; also return what the state after the
        last real step has besides h. Here there is nothing of the kind.
        """
        return projected_TBG, {}

    def _with_inputs(self, projected: Tensor, inputs: Tensor) -> Tensor:
        """Append x to W x + b where it is as wide as h; elsewhere a matrix has projected it."""
        if self.input_size != self.hidden_size:
            return projected
        return torch.cat([projected, inputs.to(projected.dtype)], dim=-1)

    def step(
        self,
        projected_BG: Float[Tensor, "B G"],
        state: State,
        recurrent_weight: Float[Tensor, "0 P"] | None = None,
    ) -> tuple[Float[Tensor, "B H"], State]:
        projected_1BG, rest = self.look_back(projected_BG.unsqueeze(0), state)
        projected_BG = projected_1BG.squeeze(0)
        keep_BH, add_BH = self.coefficients(projected_BG)
        h_BH = keep_BH * state.tensor("h") + add_BH
        return self.read(projected_BG, h_BH), State({"h": h_BH, **rest})


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
        return self._with_inputs(super().project(inputs), inputs)

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


class OutputGated(ScanCell):
    """A scan cell whose third column is an output gate: h = sigmoid(o) * c."""

    num_gates = 3

    def read(
        self, projected: Float[Tensor, "*batch G"], states: Float[Tensor, "*batch H"]
    ) -> Float[Tensor, "*batch H"]:
        return torch.sigmoid(projected.chunk(3, dim=-1)[2]).to(states.dtype) * states


class QRNNCell(OutputGated):
    """The quasi-recurrent network (Bradbury, Merity, Xiong and Socher, 2017) with a convolution of
    width 2 and fo-pooling; x' is the input of the step before.

        z =    tanh(W_z x + V_z x' + b_z)        new content
        f = sigmoid(W_f x + V_f x' + b_f)        forget gate
        o = sigmoid(W_o x + V_o x' + b_o)        output gate
        c = f * c + (1 - f) * z
        h = o * c

    The state called h is the memory c; the state called x is x', zeros at first.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.previous_weight = nn.Parameter(torch.empty_like(self.input_weight))
        """V, the weights of the input before."""
        self.reset_parameters()

    @property
    def state_sizes(self) -> dict[str, int]:
        return {"h": self.hidden_size, "x": self.input_size}

    @property
    def memory_sizes(self) -> dict[str, int]:
        return {"h": self.hidden_size}

    def begun(self, memory: State) -> State:
        """x' is zeros: what other layers have read is not this one's input."""
        h_BH = memory.tensor("h")
        return State({"h": h_BH, "x": h_BH.new_zeros(len(h_BH), self.input_size)})

    def project(self, inputs: Float[Tensor, "*batch I"]) -> Float[Tensor, "*batch G"]:
        """W x + b, then x, which the next step reads too."""
        projected = super().project(inputs)
        return torch.cat([projected, inputs.to(projected.dtype)], dim=-1)

    def look_back(
        self,
        projected_TBG: Float[Tensor, "T B G"],
        state: State,
        lengths_B: Int[Tensor, "B"] | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        gates, x_TBI = torch.split(projected_TBG, [len(self.bias), self.input_size], dim=-1)
        first_BI = state.tensor("x")
        seen = torch.cat([first_BI.unsqueeze(0).to(x_TBI.dtype), x_TBI])
        last_BI = seen[-1]
        if lengths_B is not None:
            rows_B = torch.arange(seen.shape[1], device=seen.device)
            last_BI = seen[lengths_B.to(seen.device), rows_B]
        gates = gates + F.linear(seen[:-1], self.previous_weight)
        return gates, {"x": last_BI.to(first_BI.dtype)}

    def coefficients(
        self, projected: Float[Tensor, "*batch G"]
    ) -> tuple[Float[Tensor, "*batch H"], Float[Tensor, "*batch H"]]:
        z, f, _ = projected.chunk(3, dim=-1)
        f = torch.sigmoid(f)
        return f, (1 - f) * torch.tanh(z)


class HGRNCell(OutputGated):
    """The hierarchically gated recurrent network (Qin, Yang and Zhong, 2023), with real numbers.

        n =    silu(W_n x + b_n)                 new content
        f = l + (1 - l) sigmoid(W_f x + b_f)     forget gate, at least l
        o = sigmoid(W_o x + b_o)                 output gate
        c = f * c + (1 - f) * n
        h = o * c

    The bound l is learnt, for each unit, and rises with depth: lower layers can forget at once,
    higher ones keep for long. With the rows of `bound` of the K layers above each other,

        p = softmax(bound_1, ..., bound_K)       for each unit
        l_k = p_2 + ... + p_k                    so l_1 = 0

    Layers of another width count with a row of zeros; a cell that is in no stack has l = 0. The
    state called h is the memory c. The paper's block normalises h and multiplies it by a matrix;
    here the next layer multiplies it by its own.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.bound = nn.Parameter(torch.zeros(hidden_size))
        self._column: tuple[HGRNCell, ...] = (self,)
        """The cells of the stack, from the bottom; a tuple, so that they do not become parts of
        this one."""

    @staticmethod
    def stacked(cells: Sequence[Cell]) -> None:
        column = tuple(cell for cell in cells if isinstance(cell, HGRNCell))
        for cell in column:
            cell._column = column

    def lower_bound(self) -> Float[Tensor, "H"]:
        """l, the least share of its memory that a unit keeps."""
        size, zeros_H = self.hidden_size, torch.zeros_like(self.bound)
        rows = [cell.bound if cell.hidden_size == size else zeros_H for cell in self._column]
        shares_KH = torch.stack(rows).softmax(0)
        return shares_KH[1 : 1 + self._column.index(self)].sum(0)

    def coefficients(
        self, projected: Float[Tensor, "*batch G"]
    ) -> tuple[Float[Tensor, "*batch H"], Float[Tensor, "*batch H"]]:
        n, f, _ = projected.chunk(3, dim=-1)
        left = (1 - self.lower_bound()).to(f.dtype) * torch.sigmoid(-f)  # 1 - f
        return 1 - left, left * F.silu(n)


class RGLRUCell(ScanCell):
    """The real-gated linear recurrent unit of Griffin (De, Smith and others, 2024).

        r = sigmoid(W_r x + b_r)                 recurrence gate
        i = sigmoid(W_i x + b_i)                 input gate
        a = exp(-8 softplus(d) * r)              share that is kept; d is learnt for each unit
        h = a * h + sqrt(1 - a^2) * (i * x)

    If x is not as wide as h, a third matrix projects it. At first exp(-8 softplus(d)) is uniform
    between 0.9 and 0.999, as in the paper.
    """

    RATE: ClassVar[float] = 8.0
    LEAST: ClassVar[float] = 1e-12
    """Limit of 1 - a^2 from below: the slope of the root at 0 is infinite."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        self.num_gates = 2 if input_size == hidden_size else 3
        super().__init__(input_size, hidden_size)
        self.decay = nn.Parameter(torch.empty(hidden_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "decay"):
            with torch.no_grad():
                nn.init.uniform_(self.decay, 0.9, 0.999)
                # The inverse of exp(-8 softplus(d)).
                self.decay.copy_(torch.log(torch.expm1(-torch.log(self.decay) / self.RATE)))

    def project(self, inputs: Float[Tensor, "*batch I"]) -> Float[Tensor, "*batch G"]:
        """W x + b for both gates, then x or its projection."""
        return self._with_inputs(super().project(inputs), inputs)

    def coefficients(
        self, projected: Float[Tensor, "*batch G"]
    ) -> tuple[Float[Tensor, "*batch H"], Float[Tensor, "*batch H"]]:
        r, i, x = projected.chunk(3, dim=-1)
        log_a = -self.RATE * F.softplus(self.decay) * torch.sigmoid(r)
        rest = (-torch.expm1(2 * log_a)).clamp(min=self.LEAST)  # 1 - a^2
        return torch.exp(log_a), torch.sqrt(rest) * torch.sigmoid(i) * x


def _positive(a: Tensor) -> Tensor:
    """The paper's g: a + 0.5 above zero, sigmoid(a) below."""
    return F.relu(a) + torch.sigmoid(a.clamp(max=0.0))
