"""A stack: layers on top of each other, joined in one of four ways, in one direction or both.

    plain      x_l = layer_l(x_{l-1})
    residual   x_l = x_{l-1} + layer_l(x_{l-1})                        (He and others, 2015)
    highway    x_l = t * layer_l(x_{l-1}) + (1 - t) * x_{l-1},         (Srivastava and others, 2015)
               t = sigmoid(W_t x_{l-1} + b_t)
    dense      x_l = layer_l([x_0; x_1; ...; x_{l-1}])                 (Huang and others, 2016)

Where x_{l-1} and x_l differ in width, residual and highway carry x_{l-1} through a matrix (He's
option B). The output of the stack is its last layer's. A bidirectional stack runs two layers
at each level, in opposite directions, and merges their outputs before the next level.

B batch, T time steps, I inputs, P outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from elman.base.config import at_least, between, check_reads, refuse_unread
from elman.base.errors import UsageError
from elman.base.tables import Table, is_outside, look_up
from elman.nn.bidirectional import Bidirectional, Merge
from elman.nn.cells import Cell, GRUForm, Nonlinearity
from elman.nn.dropout import Dropout
from elman.nn.kernels import KernelPlan, plans_by_layer, record_plan, recorded_plans, wave
from elman.nn.layer import RecurrentLayer
from elman.nn.shapes import Float, Int
from elman.nn.state import State

Join = Literal["plain", "residual", "highway", "dense"]
Level = RecurrentLayer | Bidirectional

CELLS: Table = {
    "lstm": "elman.nn.cells:LSTMCell",
    "gru": "elman.nn.cells:GRUCell",
    "rnn": "elman.nn.cells:RNNCell",
    "mingru": "elman.nn.scan_cells:MinGRUCell",
    "minlstm": "elman.nn.scan_cells:MinLSTMCell",
    "sru": "elman.nn.scan_cells:SRUCell",
    "qrnn": "elman.nn.scan_cells:QRNNCell",
    "hgrn": "elman.nn.scan_cells:HGRNCell",
    "rglru": "elman.nn.scan_cells:RGLRUCell",
    "slstm": "elman.nn.cells:SLSTMCell",
}
READS: Mapping[str, tuple[str, ...]] = {
    "lstm": (
        *("layer_norm", "peephole", "projection_size", "forget_bias"),
        *("cap_input", "mogrify_rounds"),
    ),
    "gru": ("layer_norm", "gru_form"),
    "rnn": ("layer_norm", "nonlinearity"),
    "slstm": ("forget_bias", "num_heads"),
}
"""The settings of `StackConfig` that each cell reads; those of the others are refused."""


@dataclass(frozen=True, kw_only=True)
class LayersConfig:
    """Recurrent layers of one size."""

    where: ClassVar[str] = "model"
    """The dotted name of this config, for error messages."""

    num_layers: int = 1
    """Number of layers."""
    hidden_size: int = 256
    """Units per layer (and direction)."""
    projection_size: int = 0
    """The width to which the lstm cell's output is projected; 0 for no projection."""
    forget_bias: float = 1.0
    """Initial forget bias of the lstm and slstm cells; 1 remembers at first."""
    locked: bool = True
    """Whether a dropout mask stays the same over time (variational dropout: Gal and Ghahramani,
    2016), if a text is read in one pass."""
    kernel: str = "auto"
    """What computes a layer: auto, or the name of a kernel."""

    def __post_init__(self) -> None:
        for name in ("num_layers", "hidden_size"):
            at_least(f"{self.where}.{name}", getattr(self, name), 1)
        at_least(f"{self.where}.projection_size", self.projection_size, 0)
        for name in (f.name for f in fields(self)):
            if name.startswith("dropout") or name == "weight_drop":
                between(f"{self.where}.{name}", getattr(self, name), 0, 1, below=True)

    @property
    def output_size(self) -> int:
        """The width of a layer's output."""
        return self.projection_size or self.hidden_size


@dataclass(frozen=True, kw_only=True)
class CellConfig:
    """The choice of a recurrent cell."""

    cell: str = "lstm"
    """The recurrent cell: lstm, gru, rnn or slstm; one that trains in parallel over time: mingru,
    minlstm, sru, qrnn, hgrn or rglru; or `package.module:Class`.
    """
    nonlinearity: Nonlinearity = "tanh"
    """The rnn cell's nonlinearity: sigmoid, tanh or relu."""
    gru_form: GRUForm = "reset_after"
    """Where the gru cell resets: reset_before the product (Cho and others, 2014) or
    reset_after it (cuDNN; faster)."""
    peephole: bool = False
    """Whether the lstm cell's gates read its memory."""
    layer_norm: bool = False
    """Whether cells use layer normalisation."""
    cap_input: bool = False
    """Whether the lstm cell's input gate is at most 1 - f, what its forget gate leaves (Melis, Dyer
    and Blunsom, 2018)."""
    mogrify_rounds: int = 0
    """How often the lstm cell's input and state gate each other before each step (Mogrifier: Melis,
    Kocisky and Blunsom, 2020; 5 in the paper); 0 for a plain lstm."""
    mogrify_rank: int = 0
    """The rank of the matrices of those rounds; 0 for full ones."""
    num_heads: int = 4
    """Groups of units of the slstm cell, each of which reads its own state only (xLSTM: Beck and
    others, 2024)."""

    def check_cell(self, where: str) -> None:
        """Refuse an unknown cell, and settings that the cell does not read."""
        if not is_outside(self.cell):
            look_up(CELLS, self.cell, "cell")
        check_reads(self, where, "cell", READS)
        for name in ("mogrify_rounds", "mogrify_rank"):
            at_least(f"{where}.{name}", getattr(self, name), 0)
        at_least(f"{where}.num_heads", self.num_heads, 1)
        if not self.mogrify_rounds:
            refuse_unread(self, where, ["mogrify_rank"], "mogrify_rounds to 1 or more")


@dataclass(frozen=True, kw_only=True)
class StackConfig(LayersConfig, CellConfig):  # the last base class has the first fields
    """Recurrent layers of any cell on top of each other; the config of a network inherits them."""

    join: Join = "plain"
    """How layers are joined: plain, residual, highway or dense."""
    dropout_hidden: float = 0.0
    """Dropout between layers."""
    weight_drop: float = 0.0
    """Dropout on the recurrent matrices (Merity, Keskar and Socher, 2018)."""
    dropout_state: float = 0.0
    """Dropout on the state h that each step reads, one mask for a sequence (Gal and Ghahramani,
    2016)."""
    sum_layers: bool = False
    """Whether the output is the sum of all layers' outputs, not the last one's (Melis, Dyer and
    Blunsom, 2018); all are of one width then."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_cell(self.where)
        # A cell from outside is not imported here: `Stack` checks it.
        if not (is_outside(self.cell) or look_up(CELLS, self.cell, "cell").reads_state):
            names = ["weight_drop", "dropout_state"]
            refuse_unread(self, self.where, names, "cell to lstm, gru or rnn")

    def check_dropout_hidden(self) -> None:
        """Refuse dropout between layers if there is one layer; for networks that read the setting
        for nothing else.
        """
        if self.num_layers == 1 and self.dropout_hidden:
            refuse_unread(self, self.where, ["dropout_hidden"], "num_layers to 2 or more")


@dataclass(frozen=True, kw_only=True)
class DirectionsConfig:
    """One direction or two; the config of a network that knows its whole input inherits them."""

    bidirectional: bool = True
    """Whether each layer reads in both directions; if not, from left to right."""
    merge: Merge = "concat"
    """How the outputs of the two directions are combined: concat, mean or sum."""

    def check_directions(self) -> None:
        """Refuse to merge the directions if there is one."""
        if not self.bidirectional:
            refuse_unread(self, "model", ["merge"], "bidirectional to true")


class Stack(nn.Module):
    """Layers, or pairs of layers in opposite directions, on top of each other."""

    def __init__(
        self,
        config: StackConfig,
        input_size: int,
        *,
        last_size: int = 0,
        bidirectional: bool = False,
        merge: Merge = "concat",
    ) -> None:
        """`last_size` is the number of units of the last layer, if it differs."""
        super().__init__()
        self.config = config
        self.input_size = input_size
        self.bidirectional = bidirectional
        self.merge = merge
        self.layers = nn.ModuleList()
        self.joins = nn.ModuleList()
        widths = [input_size]
        for level in range(config.num_layers):
            last = level == config.num_layers - 1
            size = last_size if last and last_size else config.hidden_size
            width_in = sum(widths) if config.join == "dense" else widths[-1]
            layer = self._make_level(width_in, size)
            self.layers.append(layer)
            widths.append(layer.output_size)
            if config.join in JOINS:
                self.joins.append(JOINS[config.join](width_in, widths[-1]))
        tell_depths(self.layers)
        if config.sum_layers and len(set(widths[1:])) > 1:
            raise UsageError(
                "layers of different widths cannot be summed: "
                + " and ".join(map(str, dict.fromkeys(widths[1:]))),
                "give all layers the same size: set tied to false, or head.kind to mixture",
            )
        self.widths = widths
        """Numbers per step of the input and of each layer's output."""
        self.output_size = widths[-1]
        self.dropout = Dropout(config.dropout_hidden, locked=config.locked)

    def initial_state(self, batch_size: int) -> State:
        """Return the layers' initial states, named "0", "1", ... from the bottom."""
        return State(
            {
                str(level): layer.initial_state(batch_size)
                for level, layer in enumerate(self._levels)
            }
        )

    def begun(self, memories: State) -> State:
        """Return the states of layers of one direction that begin with these memories."""
        return State(
            {
                level: cast(RecurrentLayer, layer).cell.begun(memories.part(level))
                for level, layer in zip(memories, self._levels, strict=True)
            }
        )

    def forward(
        self,
        inputs_BTI: Float[Tensor, "B T I"],
        state: State | None = None,
        lengths_B: Int[Tensor, "B"] | None = None,
    ) -> tuple[Float[Tensor, "B T P"], State]:
        """Return the last layer's outputs, or the sum of all, and the state after each row's last
        real step."""
        outputs, state = self._run(inputs_BTI, state, lengths_B, only_last=True)
        return outputs[-1], state

    def all_layers(
        self,
        inputs_BTI: Float[Tensor, "B T I"],
        state: State | None = None,
        lengths_B: Int[Tensor, "B"] | None = None,
    ) -> tuple[list[Tensor], State]:
        """Like `forward`, with the outputs of every layer, the lowest first."""
        return self._run(inputs_BTI, state, lengths_B, only_last=False)

    def _run(
        self,
        inputs_BTI: Tensor,
        state: State | None,
        lengths_B: Tensor | None,
        *,
        only_last: bool,
    ) -> tuple[list[Tensor], State]:
        """The outputs of every layer, or of the last one if `only_last` and no others were made."""
        if state is None:
            state = self.initial_state(inputs_BTI.shape[0])
        # Lengths on a GPU are not looked at: that would mean waiting for it.
        num_steps = inputs_BTI.shape[1]
        if lengths_B is not None and not lengths_B.is_cuda and lengths_B.eq(num_steps).all():
            lengths_B = None  # nothing is padded: whole batches run faster
        if lengths_B is None and (plan := self._wave_plan(inputs_BTI, state)) is not None:
            return self._as_wave(inputs_BTI, state, plan, only_last=only_last)
        outputs, state = self.climb(inputs_BTI, state, lambda layer, x, s: layer(x, s, lengths_B))
        if lengths_B is not None and self.joins:  # joins may carry input into the padding
            time_T = torch.arange(inputs_BTI.shape[1], device=inputs_BTI.device)
            real_BT1 = (time_T < lengths_B.to(time_T.device).unsqueeze(1)).unsqueeze(2)
            outputs = [torch.where(real_BT1, output, 0) for output in outputs]
        return outputs, state

    def step(
        self, inputs_BI: Float[Tensor, "B I"], state: State
    ) -> tuple[Float[Tensor, "B P"], State]:
        """Take one step, for decoding; a bidirectional stack cannot."""
        if self.bidirectional:
            raise UsageError(
                "a bidirectional stack reads the whole input at once",
                "use a stack of one direction",
            )
        outputs, state = self.climb(
            inputs_BI, state, lambda layer, x, s: cast(RecurrentLayer, layer).step(x, s)
        )
        return outputs[-1], state

    def climb(
        self,
        inputs: Tensor,
        state: State,
        run: Callable[[Level, Tensor, State], tuple[Tensor, State]],
    ) -> tuple[list[Tensor], State]:
        """Run the layers from the bottom: the one place that knows how they are joined."""
        below, raw = [inputs], []
        states = {}
        for level, layer in enumerate(self._levels):
            entering = torch.cat(below, dim=-1) if self.config.join == "dense" else below[-1]
            outputs, states[str(level)] = run(layer, entering, state.part(str(level)))
            if self.joins:
                outputs = self.joins[level](entering, outputs)
            raw.append(outputs)
            below.append(outputs if level == len(self.layers) - 1 else self.dropout(outputs))
        if self.config.sum_layers:
            below[-1] = torch.stack(raw).sum(dim=0)
        return below[1:], State(states)

    def _wave_plan(self, inputs_BTI: Tensor, state: State) -> KernelPlan | None:
        """Return the plan of layers that can make their steps at the same time, or None."""
        if self.config.join != "plain" or self.bidirectional or len(self.layers) == 1:
            return None
        layers = cast("list[RecurrentLayer]", list(self.layers))
        # Of one shape; and all drop out their states, or none: parts of a model may be frozen.
        alike = {
            (one.cell.input_size, one.cell.hidden_size, one.training and one.dropout_state > 0)
            for one in layers
        }
        if len(alike) > 1:
            return None
        for level, layer in enumerate(layers):
            plan = layer.plan(inputs_BTI, state.part(str(level)))
            if plan.kernel != "wave":
                return None
        return replace(plan, variant=f"{plan.variant}, {len(layers)} layers at once")

    def _as_wave(
        self, inputs_BTI: Tensor, state: State, plan: KernelPlan, *, only_last: bool
    ) -> tuple[list[Tensor], State]:
        """Run layers that are joined plain as one wave: what `climb` would return."""
        layers = cast("list[RecurrentLayer]", list(self.layers))
        states = [state.part(str(level)) for level in range(len(layers))]
        masks = [layer.state_mask(part) for layer, part in zip(layers, states, strict=True)]
        between = [self.dropout.mask(inputs_BTI) for _ in layers[1:]]
        found = wave.run_layers(
            [layer.cell for layer in layers],
            inputs_BTI,
            states,
            [layer.recurrent_weight() for layer in layers],
            [mask for mask in masks if mask is not None],
            [mask for mask in between if mask is not None],
        )
        for layer in layers:
            record_plan(layer, plan)
        raw = [outputs_BTP for outputs_BTP, _ in found]
        last = torch.stack(raw).sum(dim=0) if self.config.sum_layers else raw[-1]
        lower = [] if only_last else raw[:-1]
        if lower and between[0] is not None:  # in the numbers of the outputs, as `climb` has them
            lower = [x * cast(Tensor, m).to(x.dtype) for x, m in zip(lower, between, strict=True)]
        return [*lower, last], State({str(level): part for level, (_, part) in enumerate(found)})

    def _make_level(self, input_size: int, hidden_size: int) -> Level:
        config = self.config

        def layer(reverse: bool) -> RecurrentLayer:
            cell = make_cell(config, input_size, hidden_size)
            for name in ("weight_drop", "dropout_state") if not cell.reads_state else ():
                if getattr(config, name):
                    raise UsageError(
                        f"a {config.cell} cell has no recurrent matrix, which {name} is for",
                        f"leave {name} out, or set cell to lstm, gru or rnn",
                    )
            return RecurrentLayer(
                cell,
                kernel=config.kernel,
                reverse=reverse,
                weight_drop=config.weight_drop,
                dropout_state=config.dropout_state,
            )

        if not self.bidirectional:
            return layer(reverse=False)
        return Bidirectional(layer(reverse=False), layer(reverse=True), self.merge)

    @property
    def _levels(self) -> list[Level]:
        return cast("list[Level]", list(self.layers))


class Residual(nn.Module):
    """x + layer(x), with x through a matrix where the widths differ."""

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        same = input_size == output_size
        self.carry = nn.Identity() if same else nn.Linear(input_size, output_size, bias=False)

    def forward(
        self, inputs: Float[Tensor, "*batch I"], outputs: Float[Tensor, "*batch P"]
    ) -> Float[Tensor, "*batch P"]:
        return cast(Tensor, self.carry(inputs) + outputs)


class Highway(Residual):
    """t * layer(x) + (1 - t) * x, the gate t computed from x.

    The gate's bias starts at -1, as Srivastava and others (2015) advise: layers carry at first.
    """

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__(input_size, output_size)
        self.gate = nn.Linear(input_size, output_size)
        nn.init.constant_(self.gate.bias, -1.0)

    def forward(
        self, inputs: Float[Tensor, "*batch I"], outputs: Float[Tensor, "*batch P"]
    ) -> Float[Tensor, "*batch P"]:
        gate = torch.sigmoid(self.gate(inputs))
        return cast(Tensor, gate * outputs + (1 - gate) * self.carry(inputs))


JOINS: dict[str, type[Residual]] = {"residual": Residual, "highway": Highway}
"""The joins that need a module of their own."""


def tell_depths(layers: nn.ModuleList) -> None:
    """Tell the cells of layers, or of pairs of layers, which of them are on top of each other."""
    cells = [[m for m in level.modules() if isinstance(m, Cell)] for level in layers]
    for column in zip(*cells, strict=True):
        column[0].stacked(column)


@torch.no_grad()
def executed_plans(model: nn.Module, batch_size: int, num_steps: int) -> dict[str, str]:
    """Run the recurrent layers of `model` once on zeros, those of a stack together, as in use;
    return what each executed, by name."""
    done: set[nn.Module] = set()
    with recorded_plans() as record:
        for module in model.modules():  # a stack comes before its layers
            if isinstance(module, Stack | RecurrentLayer) and module not in done:
                done.update(module.modules())
                cell = next(part for part in module.modules() if isinstance(part, Cell))
                width = module.input_size if isinstance(module, Stack) else cell.input_size
                module(cell.bias.new_zeros(batch_size, num_steps, width))
    return plans_by_layer(model, record)


def make_cell(config: CellConfig, input_size: int, hidden_size: int, **more: Any) -> Cell:
    """Make the cell that a config names; one from outside takes its two sizes alone. `more` are
    arguments of the cell that are no settings of every network.
    """
    kind = look_up(CELLS, config.cell, "cell")
    if not (isinstance(kind, type) and issubclass(kind, Cell)):
        raise UsageError(f"{config.cell} is not a cell", "derive it from elman.nn.cells.Cell")
    # The gru cell calls its setting `form`.
    options = {
        name.removeprefix("gru_"): getattr(config, name) for name in READS.get(config.cell, ())
    }
    if config.mogrify_rounds:
        options["mogrify_rank"] = config.mogrify_rank
    make: Callable[..., Cell] = kind
    return make(input_size, hidden_size, **options, **more)
