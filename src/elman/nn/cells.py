"""The recurrent cells, one step each, with their equations as papers and slides write them.

Every cell computes pre-activations W x + U h + b for its gates (W input matrix, U recurrent matrix,
b one bias per gate) and turns them into a new state. W x + b does not depend on the past, so
`project` computes it for all time steps in one product and `step` takes the result; `forward` does
both, one step of a slide.

These are the reference: correct for any dtype, twice differentiable, slow. Layers use faster
kernels where possible (`nn/kernels`), and every kernel is tested against the cells here. Matrices
stack the gates in torch's order, so that weights can be copied both ways (`nn/torch_weights.py`).

B batch, I inputs, H hidden units, P outputs (H unless projected), G gates times H, R outputs that a
unit reads (P unless U is block-diagonal).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elman.base.errors import UsageError
from elman.nn.shapes import Float, Int
from elman.nn.state import State

Nonlinearity = Literal["sigmoid", "tanh", "relu"]
GRUForm = Literal["reset_before", "reset_after"]


class Cell(nn.Module, ABC):
    """The interface of a cell: matrices W and U, a bias, and a state."""

    num_gates: int
    reads_state: ClassVar[bool] = True
    """Whether the gates read the state; if not, U has no rows (`nn/scan_cells.py`)."""

    recurrent_weight: Tensor

    def __init__(
        self, input_size: int, hidden_size: int, output_size: int, layer_norm: bool
    ) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.output_size = output_size
        self.layer_norm = layer_norm
        stacked = self.num_gates * hidden_size
        self.input_weight = nn.Parameter(torch.empty(stacked, input_size))
        if self.reads_state:
            self.recurrent_weight = nn.Parameter(torch.empty(stacked, output_size))
        else:
            self.register_buffer("recurrent_weight", torch.empty(0, output_size), persistent=False)
        self.bias = nn.Parameter(torch.empty(stacked))
        self.int8: tuple[Any, Any] | None = None
        """W and U quantised to one byte per weight (`nn/quantise.py`)."""

    @property
    def state_sizes(self) -> dict[str, int]:
        """The width of each part of the state."""
        return {"h": self.output_size}

    @property
    def memory_sizes(self) -> dict[str, int]:
        """The width of each part of the state that `begun` needs."""
        return self.state_sizes

    def begun(self, memory: State) -> State:
        """Return a state to begin with that has this memory, computed by other layers."""
        return memory

    @staticmethod
    def stacked(cells: Sequence[Cell]) -> None:
        """Tell cells that they are on top of each other, the lowest first; for those that depend on
        their depth.
        """

    def initial_state(self, batch_size: int) -> State:
        return State(
            {name: self.bias.new_zeros(batch_size, size) for name, size in self.state_sizes.items()}
        )

    def project(self, inputs: Float[Tensor, "*batch I"]) -> Float[Tensor, "*batch G"]:
        """W x + b, the part of the gates that does not depend on the past."""
        return F.linear(inputs, self.input_weight, self.bias)

    @abstractmethod
    def step(
        self,
        projected_BG: Float[Tensor, "B G"],
        state: State,
        recurrent_weight: Float[Tensor, "G R"] | None = None,
    ) -> tuple[Float[Tensor, "B P"], State]:
        """Take one time step; `recurrent_weight` replaces U (weight drop)."""

    def forward(
        self, inputs_BI: Float[Tensor, "B I"], state: State
    ) -> tuple[Float[Tensor, "B P"], State]:
        """Take one time step from the inputs."""
        return self.step(self.project(inputs_BI), state)

    def reset_parameters(self) -> None:
        """Draw matrices uniformly within 1 / sqrt(H), like torch; biases and shifts 0, gains 1."""
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.uniform_(parameter, -bound, bound)
        nn.init.zeros_(self.bias)


class RNNCell(Cell):
    """The vanilla RNN (Elman, 1990): h = f(W x + U h + b), f a sigmoid, tanh or ReLU.

    Layer normalisation (Ba, Kiros and Hinton, 2016, equation 4) normalises the sum W x + U h before
    the bias.
    """

    num_gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        nonlinearity: Nonlinearity = "tanh",
        layer_norm: bool = False,
    ) -> None:
        super().__init__(input_size, hidden_size, hidden_size, layer_norm)
        self.nonlinearity = nonlinearity
        self.norm = nn.LayerNorm(hidden_size, bias=False) if layer_norm else None
        self.reset_parameters()

    def project(self, inputs: Float[Tensor, "*batch I"]) -> Float[Tensor, "*batch G"]:
        """W x + b, or W x alone with layer normalisation, where b is added after it."""
        return F.linear(inputs, self.input_weight, self.bias if self.norm is None else None)

    def step(
        self,
        projected_BG: Float[Tensor, "B G"],
        state: State,
        recurrent_weight: Float[Tensor, "G P"] | None = None,
    ) -> tuple[Float[Tensor, "B P"], State]:
        U = self.recurrent_weight if recurrent_weight is None else recurrent_weight
        total_BH = projected_BG + F.linear(state.tensor("h"), U)
        if self.norm is not None:
            total_BH = self.norm(total_BH) + self.bias
        h_BH = getattr(torch, self.nonlinearity)(total_BH)
        return h_BH, State({"h": h_BH})


class LSTMCell(Cell):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997; forget gate of Gers and others,
    2000).

        i = sigmoid(W_i x + U_i h + b_i)        input gate
        f = sigmoid(W_f x + U_f h + b_f)        forget gate
        g =    tanh(W_g x + U_g h + b_g)        new content
        o = sigmoid(W_o x + U_o h + b_o)        output gate
        c = f * c + i * g
        h = o * tanh(c)

    `peephole` (Gers and Schmidhuber, 2000) lets the gates read the cell: i and f the old one, o the
    new one, elementwise. `projection_size` (LSTMP; Sak, Senior and Beaufays, 2014) makes the output
    and the recurrent input a smaller vector h = R (o * tanh(c)); 0 for none. `cell_clip` and
    `projection_clip` clamp c and the projected h (as in ELMo; Peters and others, 2018); 0 for no
    limit. Layer normalisation as Ba, Kiros and Hinton (2016, supplement): W x and U h over all
    gates together, and c before the tanh.

    `cap_input` limits the input gate to what the forget gate leaves, c = f * c + min(i, 1 - f) * g,
    so that c stays within -1 and 1 (Melis, Dyer and Blunsom, 2018). `mogrify_rounds` let x and h
    gate each other before the equations above (Mogrifier: Melis, Kocisky and Blunsom, 2020): in
    turns x = 2 sigmoid(Q_k h) * x, for odd rounds k, and h = 2 sigmoid(R_k x) * h, for even ones;
    with `mogrify_rank`, each matrix is a product of two of that rank.
    """

    num_gates = 4

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        peephole: bool = False,
        projection_size: int = 0,
        layer_norm: bool = False,
        forget_bias: float = 1.0,
        cell_clip: float = 0.0,
        projection_clip: float = 0.0,
        cap_input: bool = False,
        mogrify_rounds: int = 0,
        mogrify_rank: int = 0,
    ) -> None:
        super().__init__(input_size, hidden_size, projection_size or hidden_size, layer_norm)
        self.cap_input = cap_input
        self.mogrifiers = nn.ModuleList(
            _mogrifier(self.output_size, input_size, mogrify_rank)
            if number % 2
            else _mogrifier(input_size, self.output_size, mogrify_rank)
            for number in range(1, mogrify_rounds + 1)
        )
        """Q_1, R_2, Q_3 and so on."""
        self.forget_bias = forget_bias
        self.cell_clip = cell_clip
        self.projection_clip = projection_clip
        self.peephole_weight = nn.Parameter(torch.zeros(3, hidden_size)) if peephole else None
        self.projection_weight = (
            nn.Parameter(torch.empty(projection_size, hidden_size)) if projection_size else None
        )
        stacked = 4 * hidden_size
        self.input_norm = nn.LayerNorm(stacked, bias=False) if layer_norm else None
        self.recurrent_norm = nn.LayerNorm(stacked, bias=False) if layer_norm else None
        self.cell_norm = nn.LayerNorm(hidden_size) if layer_norm else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.constant_(self.bias[self.hidden_size : 2 * self.hidden_size], self.forget_bias)
        if self.peephole_weight is not None:
            nn.init.zeros_(self.peephole_weight)

    @property
    def has_extras(self) -> bool:
        """Whether it has layer normalisation, peepholes, clipping, a capped gate or mogrifiers."""
        is_changed = bool(
            self.cell_clip or self.projection_clip or self.cap_input or self.mogrifiers
        )
        return self.layer_norm or is_changed or self.peephole_weight is not None

    @property
    def state_sizes(self) -> dict[str, int]:
        return {"h": self.output_size, "c": self.hidden_size}

    def project(self, inputs: Float[Tensor, "*batch I"]) -> Float[Tensor, "*batch G"]:
        """W x + b, or norm(W x) + b; x itself with mogrifiers, where it depends on the past."""
        return inputs if self.mogrifiers else self._weighed(inputs)

    def _weighed(self, inputs: Float[Tensor, "*batch I"]) -> Float[Tensor, "*batch G"]:
        if self.input_norm is None:
            return F.linear(inputs, self.input_weight, self.bias)
        return cast(Tensor, self.input_norm(F.linear(inputs, self.input_weight)) + self.bias)

    def step(
        self,
        projected_BX: Float[Tensor, "B X"],
        state: State,
        recurrent_weight: Float[Tensor, "G P"] | None = None,
    ) -> tuple[Float[Tensor, "B P"], State]:
        U = self.recurrent_weight if recurrent_weight is None else recurrent_weight
        h_BP, c_BH = state.tensor("h"), state.tensor("c")
        projected_BG = projected_BX
        if self.mogrifiers:
            x_BI = projected_BX
            for number, mogrifier in enumerate(self.mogrifiers, start=1):
                if number % 2:
                    x_BI = 2 * torch.sigmoid(mogrifier(h_BP)) * x_BI
                else:
                    h_BP = 2 * torch.sigmoid(mogrifier(x_BI)) * h_BP
            projected_BG = self._weighed(x_BI)
        recurrent_BG = F.linear(h_BP, U)
        if self.recurrent_norm is not None:
            recurrent_BG = self.recurrent_norm(recurrent_BG)
        i_BH, f_BH, g_BH, o_BH = (projected_BG + recurrent_BG).chunk(4, dim=1)
        if self.peephole_weight is not None:
            i_BH = i_BH + self.peephole_weight[0] * c_BH
            f_BH = f_BH + self.peephole_weight[1] * c_BH
        i_BH, f_BH = torch.sigmoid(i_BH), torch.sigmoid(f_BH)
        if self.cap_input:
            i_BH = torch.minimum(i_BH, 1 - f_BH)
        c_BH = f_BH * c_BH + i_BH * torch.tanh(g_BH)
        if self.cell_clip:
            c_BH = c_BH.clamp(-self.cell_clip, self.cell_clip)
        if self.peephole_weight is not None:
            o_BH = o_BH + self.peephole_weight[2] * c_BH
        shown_BH = c_BH if self.cell_norm is None else self.cell_norm(c_BH)
        h_BP = torch.sigmoid(o_BH) * torch.tanh(shown_BH)
        if self.projection_weight is not None:
            h_BP = F.linear(h_BP, self.projection_weight)
            if self.projection_clip:
                h_BP = h_BP.clamp(-self.projection_clip, self.projection_clip)
        return h_BP, State({"h": h_BP, "c": c_BH})


def _mogrifier(input_size: int, output_size: int, rank: int) -> nn.Module:
    """A matrix, or two whose product has this rank."""
    if not rank:
        return nn.Linear(input_size, output_size, bias=False)
    return nn.Sequential(
        nn.Linear(input_size, rank, bias=False), nn.Linear(rank, output_size, bias=False)
    )


class GRUCell(Cell):
    """Gated recurrent unit (Cho and others, 2014), in two forms that differ in where the reset
    acts.

        r = sigmoid(W_r x + U_r h + b_r)                 reset gate
        u = sigmoid(W_u x + U_u h + b_u)                 update gate
        n =    tanh(W_n x + U_n (r * h) + b_n)           "reset_before": the paper's
        n =    tanh(W_n x + b_n + r * (U_n h + d_n))     "reset_after": cuDNN's and torch's
        h = (1 - u) * h + u * n

    The update gate u is the fraction that is renewed; torch's z = 1 - u is the fraction
    that is kept. Flipping the sign of its rows turns one into the other; copying weights and the
    torch kernel do that. Layer normalisation as Ba, Kiros and Hinton (2016, supplement): the gates
    r and u together, the new content separately.
    """

    num_gates = 3

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        form: GRUForm = "reset_before",
        layer_norm: bool = False,
    ) -> None:
        super().__init__(input_size, hidden_size, hidden_size, layer_norm)
        self.form = form
        self.recurrent_bias = (
            nn.Parameter(torch.zeros(hidden_size)) if form == "reset_after" else None
        )
        sizes = (2 * hidden_size, hidden_size)
        self.input_norms = _norms(sizes) if layer_norm else None
        self.recurrent_norms = _norms(sizes) if layer_norm else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.recurrent_bias is not None:
            nn.init.zeros_(self.recurrent_bias)

    def project(self, inputs: Float[Tensor, "*batch I"]) -> Float[Tensor, "*batch G"]:
        """W x + b, or norm(W x) + b."""
        if self.input_norms is None:
            return F.linear(inputs, self.input_weight, self.bias)
        gates, content = torch.split(F.linear(inputs, self.input_weight), self._sizes, dim=-1)
        normed = torch.cat([self.input_norms[0](gates), self.input_norms[1](content)], dim=-1)
        return normed + self.bias

    def step(
        self,
        projected_BG: Float[Tensor, "B G"],
        state: State,
        recurrent_weight: Float[Tensor, "G P"] | None = None,
    ) -> tuple[Float[Tensor, "B P"], State]:
        U = self.recurrent_weight if recurrent_weight is None else recurrent_weight
        U_ru, U_n = torch.split(U, self._sizes)
        projected_ru, projected_n = torch.split(projected_BG, self._sizes, dim=1)
        h_BH = state.tensor("h")
        recurrent_ru = self._normed(0, F.linear(h_BH, U_ru))
        r_BH, u_BH = torch.sigmoid(projected_ru + recurrent_ru).chunk(2, dim=1)
        if self.recurrent_bias is None:
            n_BH = torch.tanh(projected_n + self._normed(1, F.linear(r_BH * h_BH, U_n)))
        else:
            recurrent_n = self._normed(1, F.linear(h_BH, U_n)) + self.recurrent_bias
            n_BH = torch.tanh(projected_n + r_BH * recurrent_n)
        h_BH = (1 - u_BH) * h_BH + u_BH * n_BH
        return h_BH, State({"h": h_BH})

    @property
    def _sizes(self) -> list[int]:
        return [2 * self.hidden_size, self.hidden_size]

    def _normed(self, group: int, recurrent: Tensor) -> Tensor:
        if self.recurrent_norms is None:
            return recurrent
        return cast(Tensor, self.recurrent_norms[group](recurrent))


class SLSTMCell(Cell):
    """The LSTM with exponential gates of the xLSTM (Beck, Poeppel and others, 2024).

        i =     exp(W_i x + U_i h + b_i)         input gate
        f = sigmoid(W_f x + U_f h + b_f)         forget gate
        z =    tanh(W_z x + U_z h + b_z)         new content
        o = sigmoid(W_o x + U_o h + b_o)         output gate
        c = f * c + i * z
        n = f * n + i                            normaliser
        h = o * c / n

    Each U is block-diagonal: `num_heads` groups of units, each of which reads its own group only;
    `recurrent_weight` has the blocks' rows. So that exponentials do not overflow, c and n are
    stored divided by exp(m), where m = max(log f + m, log i) is a part of the state, as in the
    paper; h does not depend on m.
    """

    num_gates = 4

    def __init__(
        self, input_size: int, hidden_size: int, *, num_heads: int = 4, forget_bias: float = 1.0
    ) -> None:
        if hidden_size % num_heads:
            raise UsageError(
                f"{hidden_size} units of an slstm cell cannot be divided into {num_heads} heads",
                "choose a size that num_heads divides, or set num_heads to 1",
            )
        super().__init__(input_size, hidden_size, hidden_size, layer_norm=False)
        self.num_heads = num_heads
        self.forget_bias = forget_bias
        self.recurrent_weight = nn.Parameter(torch.empty(4 * hidden_size, hidden_size // num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.constant_(self.bias[self.hidden_size : 2 * self.hidden_size], self.forget_bias)

    @property
    def state_sizes(self) -> dict[str, int]:
        return dict.fromkeys(("h", "c", "n", "m"), self.hidden_size)

    @property
    def memory_sizes(self) -> dict[str, int]:
        return dict.fromkeys(("h", "c"), self.hidden_size)

    def begun(self, memory: State) -> State:
        """n is 1 and m is 0 if c is given without them."""
        c_BH = memory.tensor("c")
        return State({"n": torch.ones_like(c_BH), "m": torch.zeros_like(c_BH), **memory})

    def step(
        self,
        projected_BG: Float[Tensor, "B G"],
        state: State,
        recurrent_weight: Float[Tensor, "G R"] | None = None,
    ) -> tuple[Float[Tensor, "B P"], State]:
        U = self.recurrent_weight if recurrent_weight is None else recurrent_weight
        h_BH, c_BH, n_BH, m_BH = (state.tensor(name) for name in ("h", "c", "n", "m"))
        # Gates, heads, units of a head, and what they read of it.
        blocks = U.reshape(4, self.num_heads, -1, U.shape[1])
        heads = h_BH.reshape(-1, self.num_heads, U.shape[1])
        recurrent_BG = torch.einsum("ghur,bhr->bghu", blocks, heads).flatten(1)
        i_BH, f_BH, z_BH, o_BH = (projected_BG + recurrent_BG).to(c_BH.dtype).chunk(4, dim=1)
        kept_BH = F.logsigmoid(f_BH) + m_BH
        # Nothing has been read yet where n is 0; then m is free, and i = exp(0) is the safest.
        new_m_BH = torch.where(n_BH == 0, i_BH, torch.maximum(kept_BH, i_BH))
        f_BH, i_BH = torch.exp(kept_BH - new_m_BH), torch.exp(i_BH - new_m_BH)
        f_BH = torch.where(n_BH == 0, 0, f_BH)
        c_BH = f_BH * c_BH + i_BH * torch.tanh(z_BH)
        n_BH = f_BH * n_BH + i_BH
        h_BH = torch.sigmoid(o_BH) * c_BH / n_BH
        return h_BH, State({"h": h_BH, "c": c_BH, "n": n_BH, "m": new_m_BH})


def _norms(sizes: tuple[int, ...]) -> nn.ModuleList:
    return nn.ModuleList([nn.LayerNorm(size, bias=False) for size in sizes])


def run(
    cell: Cell,
    inputs_BTI: Float[Tensor, "B T I"],
    state: State,
    lengths_B: Int[Tensor, "B"] | None,
    recurrent_weight: Float[Tensor, "G R"],
    plan: object = None,
    mask_BP: Float[Tensor, "B P"] | None = None,
) -> tuple[Float[Tensor, "B T P"], State]:
    """Carry a cell along time: W x + b for all steps in one product, then one step after the other.

    Any cell, any device, twice differentiable: the `reference` kernel, which the others are tested
    against. The interface is that of every kernel (`nn/kernels`); `mask_BP` multiplies h before
    each step reads it (state dropout).
    """
    projected_TBG = cell.project(inputs_BTI.transpose(0, 1))
    if lengths_B is not None:
        lengths_B = lengths_B.to(inputs_BTI.device)
    outputs = []
    for time, projected_BG in enumerate(projected_TBG):
        read = state
        if mask_BP is not None:
            read = State({**state, "h": state.tensor("h") * mask_BP})
        output_BP, new_state = cell.step(projected_BG, read, recurrent_weight)
        if lengths_B is None:
            state = new_state
        else:
            real_B1 = (time < lengths_B).unsqueeze(1)
            output_BP = torch.where(real_B1, output_BP, 0)
            state = State(
                {
                    key: torch.where(real_B1, new_state.tensor(key), state.tensor(key))
                    for key in new_state
                }
            )
        outputs.append(output_BP)
    return torch.stack(outputs).transpose(0, 1), state


def step(
    cell: Cell, inputs_BI: Float[Tensor, "B I"], state: State, plan: object = None
) -> tuple[Float[Tensor, "B P"], State]:
    """One step of the cell's equations, for decoding."""
    output_BP, state = cell(inputs_BI, state)
    return output_BP, state
