"""Cells: worked by hand, checked against finite differences, and the lecture's claims about
gates."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from elman.base.errors import UsageError
from elman.nn.cells import Cell, GRUCell, LSTMCell, RNNCell, SLSTMCell, run
from elman.nn.scan_cells import (
    HGRNCell,
    MinGRUCell,
    MinLSTMCell,
    QRNNCell,
    RGLRUCell,
    SRUCell,
)
from elman.nn.stack import Stack, StackConfig
from elman.nn.state import State

CELLS = {
    "rnn sigmoid": lambda: RNNCell(3, 4, nonlinearity="sigmoid"),
    "rnn tanh": lambda: RNNCell(3, 4, nonlinearity="tanh"),
    "rnn relu": lambda: RNNCell(3, 4, nonlinearity="relu"),
    "rnn norm": lambda: RNNCell(3, 4, layer_norm=True),
    "lstm": lambda: LSTMCell(3, 4),
    "lstm peephole": lambda: LSTMCell(3, 4, peephole=True),
    "lstm projected": lambda: LSTMCell(3, 4, projection_size=2),
    "lstm clipped": lambda: LSTMCell(3, 4, projection_size=2, cell_clip=0.3, projection_clip=0.2),
    "lstm norm": lambda: LSTMCell(3, 4, layer_norm=True),
    "lstm everything": lambda: LSTMCell(3, 4, peephole=True, projection_size=2, layer_norm=True),
    "lstm capped": lambda: LSTMCell(3, 4, cap_input=True),
    "lstm mogrified": lambda: LSTMCell(3, 4, mogrify_rounds=5),
    "lstm mogrified low": lambda: LSTMCell(3, 4, mogrify_rounds=4, mogrify_rank=2),
    "lstm mogrified norm": lambda: LSTMCell(3, 4, mogrify_rounds=1, layer_norm=True),
    "gru before": lambda: GRUCell(3, 4, form="reset_before"),
    "gru after": lambda: GRUCell(3, 4, form="reset_after"),
    "gru before norm": lambda: GRUCell(3, 4, form="reset_before", layer_norm=True),
    "gru after norm": lambda: GRUCell(3, 4, form="reset_after", layer_norm=True),
    "mingru": lambda: MinGRUCell(3, 4),
    "minlstm": lambda: MinLSTMCell(3, 4),
    "sru": lambda: SRUCell(3, 4),
    "qrnn": lambda: QRNNCell(3, 4),
    "hgrn": lambda: HGRNCell(3, 4),
    "rglru": lambda: RGLRUCell(3, 4),
    "rglru of one width": lambda: RGLRUCell(3, 3),
    "slstm": lambda: SLSTMCell(3, 4, num_heads=2),
}


@pytest.fixture(params=CELLS)
def cell(request: pytest.FixtureRequest) -> Cell:
    torch.manual_seed(0)
    made = CELLS[request.param]().double()
    for parameter in made.parameters():  # biases, peepholes and gains away from 0 and 1
        torch.nn.init.normal_(parameter)
    return made


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def one_unit(cell: Cell, **weights: list[float]) -> Cell:
    """A cell of one unit with the given numbers, everything else zero."""
    with torch.no_grad():
        for name, parameter in cell.named_parameters():
            parameter.copy_(
                torch.tensor(weights.get(name, 0.0))
                .reshape(-1)
                .expand(parameter.numel())
                .view_as(parameter)
            )
    return cell


@torch.no_grad()
def step(cell: Cell, x: float, **state: float) -> dict[str, float]:
    _, after = cell(torch.tensor([[x]]), State({k: torch.tensor([[v]]) for k, v in state.items()}))
    return {key: float(tensor) for key, tensor in after.flatten().items()}


@pytest.mark.parametrize(
    ("nonlinearity", "function"),
    [("sigmoid", sigmoid), ("tanh", math.tanh), ("relu", lambda x: max(x, 0.0))],
)
def test_rnn_by_hand(nonlinearity: str, function: object) -> None:
    cell = one_unit(
        RNNCell(1, 1, nonlinearity=nonlinearity),  # type: ignore[arg-type]
        input_weight=[2.0],
        recurrent_weight=[-3.0],
        bias=[0.5],
    )
    for x, h in ((0.7, 0.1), (-0.4, 0.3)):
        expected = function(2 * x - 3 * h + 0.5)  # type: ignore[operator]
        assert step(cell, x, h=h)["h"] == pytest.approx(expected)


def test_lstm_by_hand() -> None:
    """Gates in the order i, f, g, o."""
    cell = one_unit(
        LSTMCell(1, 1),
        input_weight=[0.1, 0.2, 0.3, 0.4],
        recurrent_weight=[0.5, 0.6, 0.7, 0.8],
        bias=[0.01, 0.02, 0.03, 0.04],
    )
    x, h, c = 1.5, -0.5, 2.0
    i = sigmoid(0.1 * x + 0.5 * h + 0.01)
    f = sigmoid(0.2 * x + 0.6 * h + 0.02)
    g = math.tanh(0.3 * x + 0.7 * h + 0.03)
    o = sigmoid(0.4 * x + 0.8 * h + 0.04)
    new_c = f * c + i * g
    after = step(cell, x, h=h, c=c)
    assert after == pytest.approx({"c": new_c, "h": o * math.tanh(new_c)})


def test_lstm_peephole_and_projection_by_hand() -> None:
    """i and f see the old cell, o the new one; the output is R (o * tanh(c))."""
    cell = one_unit(
        LSTMCell(1, 1, peephole=True, projection_size=1),
        input_weight=[0.1, 0.2, 0.3, 0.4],
        peephole_weight=[0.5, -0.6, 0.7],
        projection_weight=[3.0],
    )
    x, c = 1.5, 2.0
    i = sigmoid(0.1 * x + 0.5 * c)
    f = sigmoid(0.2 * x - 0.6 * c)
    new_c = f * c + i * math.tanh(0.3 * x)
    o = sigmoid(0.4 * x + 0.7 * new_c)
    after = step(cell, x, h=0.9, c=c)
    assert after == pytest.approx({"c": new_c, "h": 3 * o * math.tanh(new_c)})


@pytest.mark.parametrize("form", ["reset_before", "reset_after"])
def test_gru_by_hand(form: str) -> None:
    """Gates in the order r, u, n; u says how much is renewed, as on the slide."""
    cell = one_unit(
        GRUCell(1, 1, form=form),  # type: ignore[arg-type]
        input_weight=[0.1, 0.2, 0.3],
        recurrent_weight=[0.4, 0.5, 0.6],
        bias=[0.01, 0.02, 0.03],
        recurrent_bias=[0.7],
    )
    x, h = 1.5, -0.5
    r = sigmoid(0.1 * x + 0.4 * h + 0.01)
    u = sigmoid(0.2 * x + 0.5 * h + 0.02)
    inner = 0.6 * (r * h) if form == "reset_before" else r * (0.6 * h + 0.7)
    n = math.tanh(0.3 * x + inner + 0.03)
    assert step(cell, x, h=h)["h"] == pytest.approx((1 - u) * h + u * n)


def test_forms_of_the_gru_differ() -> None:
    torch.manual_seed(0)
    before, after = GRUCell(3, 4, form="reset_before"), GRUCell(3, 4, form="reset_after")
    after.load_state_dict(before.state_dict(), strict=False)
    inputs_BI, state = torch.randn(2, 3), State({"h": torch.randn(2, 4)})
    assert not torch.allclose(before(inputs_BI, state)[0], after(inputs_BI, state)[0], atol=1e-3)


def test_gradients_by_finite_differences(cell: Cell) -> None:
    """Of outputs and states, by inputs, states and every parameter."""
    names = [name for name, _ in cell.named_parameters()]
    state = cell.initial_state(2).map(torch.randn_like)

    def function(inputs_BI: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        tensors, parameters = rest[: len(state)], rest[len(state) :]
        output, after = torch.func.functional_call(
            cell,
            dict(zip(names, parameters, strict=True)),
            (inputs_BI, State(dict(zip(state, tensors, strict=True)))),
        )
        return output, *after.flatten().values()

    given = [torch.randn(2, 3).double(), *state.flatten().values(), *cell.parameters()]
    given = [tensor.detach().requires_grad_() for tensor in given]
    assert torch.autograd.gradcheck(function, given)


def test_twice_differentiable(cell: Cell) -> None:
    state = cell.initial_state(2).map(torch.randn_like)

    def function(inputs_BI: Tensor) -> Tensor:
        return cell(inputs_BI, state)[0]  # type: ignore[no-any-return]

    given = torch.randn(2, 3).double().requires_grad_()
    assert torch.autograd.gradgradcheck(function, (given,))


def test_projecting_all_steps_at_once_changes_nothing(cell: Cell) -> None:
    inputs_BTI = torch.randn(2, 5, 3).double()
    torch.testing.assert_close(cell.project(inputs_BTI)[:, 3], cell.project(inputs_BTI[:, 3]))


def test_layer_normalisation_ignores_the_scale_of_what_it_normalises() -> None:
    """norm(a W x) = norm(W x): ten times the input, the same gates."""
    torch.manual_seed(0)
    for cell in (LSTMCell(3, 4, layer_norm=True), GRUCell(3, 4, layer_norm=True)):
        inputs_BI = torch.randn(2, 3)
        torch.testing.assert_close(
            cell.project(100 * inputs_BI), cell.project(1000 * inputs_BI), rtol=1e-3, atol=1e-4
        )


def test_layer_normalisation_by_hand() -> None:
    """The LSTM of Ba and others: norm(W x) + norm(U h) + b, and tanh of norm(c)."""
    torch.manual_seed(1)
    cell = LSTMCell(3, 4, layer_norm=True)
    torch.nn.init.normal_(cell.bias)
    x, h, c = torch.randn(2, 3), torch.randn(2, 4), torch.randn(2, 4)

    def norm(a: Tensor) -> Tensor:
        centred = a - a.mean(1, keepdim=True)
        return centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()

    gates = norm(x @ cell.input_weight.T) + norm(h @ cell.recurrent_weight.T) + cell.bias
    i, f, g, o = gates.chunk(4, dim=1)
    new_c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    output, after = cell(x, State({"h": h, "c": c}))
    torch.testing.assert_close(after.tensor("c"), new_c)
    torch.testing.assert_close(output, o.sigmoid() * norm(new_c).tanh())


def test_forget_gate_open_and_input_gate_shut_preserve_a_cell() -> None:
    """The lecture's claim: f = 1 and i = 0 keep the memory whatever comes in."""
    torch.manual_seed(0)
    cell = LSTMCell(3, 4)
    with torch.no_grad():
        cell.bias[0:4] = -1000.0
        cell.bias[4:8] = 1000.0
    memory = torch.randn(2, 4)
    state = State({"h": torch.zeros(2, 4), "c": memory})
    for _ in range(200):
        _, state = cell(torch.randn(2, 3), state)
    torch.testing.assert_close(state.tensor("c"), memory, rtol=0, atol=0)


@pytest.mark.parametrize("form", ["reset_before", "reset_after"])
def test_update_gate_shut_preserves_a_gru(form: str) -> None:
    torch.manual_seed(0)
    cell = GRUCell(3, 4, form=form)  # type: ignore[arg-type]
    with torch.no_grad():
        cell.bias[4:8] = -1000.0
    memory = torch.randn(2, 4)
    state = State({"h": memory})
    for _ in range(200):
        _, state = cell(torch.randn(2, 3), state)
    torch.testing.assert_close(state.tensor("h"), memory, rtol=0, atol=0)


def test_numbers_of_parameters() -> None:
    """One bias per gate: 4 (H I + H H + H) for an LSTM; a GRU has three quarters of it."""

    def count(cell: Cell) -> int:
        return sum(parameter.numel() for parameter in cell.parameters())

    assert count(RNNCell(3, 5)) == 5 * 3 + 5 * 5 + 5
    assert count(LSTMCell(3, 5)) == 4 * (5 * 3 + 5 * 5 + 5)
    assert count(GRUCell(3, 5)) == 3 * (5 * 3 + 5 * 5 + 5)
    assert count(LSTMCell(3, 5, peephole=True)) == count(LSTMCell(3, 5)) + 3 * 5
    assert count(LSTMCell(3, 5, projection_size=2)) == 4 * (5 * 3 + 5 * 2 + 5) + 2 * 5


def test_how_cells_start() -> None:
    torch.manual_seed(0)
    cell = LSTMCell(30, 16, forget_bias=1.5)
    bias = cell.bias.detach()
    assert set(bias[16:32].tolist()) == {1.5}
    assert bias[:16].eq(0).all()
    assert bias[32:].eq(0).all()
    bound = 1 / math.sqrt(16)
    assert 0.9 * bound < float(cell.recurrent_weight.detach().abs().max()) <= bound


def g(a: float) -> float:
    """The new content of minGRU and minLSTM, as the paper's appendix has it."""
    return a + 0.5 if a >= 0 else sigmoid(a)


@pytest.mark.parametrize(("x", "h"), [(0.7, 0.1), (-0.4, 3.0)])
def test_mingru_by_hand(x: float, h: float) -> None:
    cell = one_unit(MinGRUCell(1, 1), input_weight=[2.0, 3.0], bias=[0.5, -0.2])
    u = sigmoid(2 * x + 0.5)
    assert step(cell, x, h=h)["h"] == pytest.approx((1 - u) * h + u * g(3 * x - 0.2))


@pytest.mark.parametrize(("x", "h"), [(0.7, 0.1), (-0.4, 3.0)])
def test_minlstm_by_hand(x: float, h: float) -> None:
    cell = one_unit(MinLSTMCell(1, 1), input_weight=[2.0, -1.0, 3.0], bias=[0.5, 0.3, -0.2])
    i, f = sigmoid(2 * x + 0.5), sigmoid(-x + 0.3)
    expected = f / (f + i) * h + i / (f + i) * g(3 * x - 0.2)
    assert step(cell, x, h=h)["h"] == pytest.approx(expected)


def test_minlstm_where_both_gates_underflow() -> None:
    cell = one_unit(MinLSTMCell(1, 1), bias=[-500.0, -501.0, 0.0])
    share = 1 / (1 + math.e)  # exp(-501) / (exp(-501) + exp(-500))
    assert step(cell, 0.0, h=2.0)["h"] == pytest.approx(share * 2.0 + (1 - share) * 0.5)


def test_sru_by_hand() -> None:
    x, c = 0.7, -0.3
    cell = one_unit(SRUCell(1, 1), input_weight=[2.0, -1.0, 0.5], bias=[0.1, 0.3, -0.2])
    n, f, r = 2 * x + 0.1, sigmoid(-x + 0.3), sigmoid(0.5 * x - 0.2)
    new = f * c + (1 - f) * n
    assert step(cell, x, h=c)["h"] == pytest.approx(new)
    with torch.no_grad():
        output, _ = cell(torch.tensor([[x]]), State({"h": torch.tensor([[c]])}))
    assert float(output) == pytest.approx(r * math.tanh(new) + (1 - r) * x)


def test_scan_cells_have_no_recurrent_matrix() -> None:
    cell = MinGRUCell(3, 5)
    assert {name for name, _ in cell.named_parameters()} == {"input_weight", "bias"}
    assert set(cell.state_dict()) == {"input_weight", "bias"}
    assert sum(p.numel() for p in SRUCell(5, 5).parameters()) == 3 * (5 * 5 + 5)
    assert sum(p.numel() for p in SRUCell(3, 5).parameters()) == 4 * (5 * 3 + 5)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_mogrifier_by_its_equations(rank: int) -> None:
    """Melis, Kocisky and Blunsom (2020), equations 1 to 4, in a loop over time."""
    torch.manual_seed(4)
    cell = LSTMCell(3, 5, mogrify_rounds=5, mogrify_rank=rank, cap_input=True).double()
    for parameter in cell.parameters():
        torch.nn.init.normal_(parameter)
    inputs_BTI = torch.randn(2, 6, 3, dtype=torch.double)
    mask_BP = torch.tensor([[2.0, 0, 2, 2, 0], [0, 2, 2, 0, 0]]).double()

    def matrix(number: int) -> Tensor:
        module = cell.mogrifiers[number - 1]
        return module[1].weight @ module[0].weight if rank else module.weight

    h_BH = c_BH = torch.zeros(2, 5, dtype=torch.double)
    expected = []
    for t in range(6):
        x, h = inputs_BTI[:, t], h_BH * mask_BP
        x = 2 * torch.sigmoid(h @ matrix(1).T) * x
        h = 2 * torch.sigmoid(x @ matrix(2).T) * h
        x = 2 * torch.sigmoid(h @ matrix(3).T) * x
        h = 2 * torch.sigmoid(x @ matrix(4).T) * h
        x = 2 * torch.sigmoid(h @ matrix(5).T) * x
        gates = x @ cell.input_weight.T + h @ cell.recurrent_weight.T + cell.bias
        i, f, g, o = gates.chunk(4, dim=1)
        f = torch.sigmoid(f)
        i = torch.minimum(torch.sigmoid(i), 1 - f)
        c_BH = f * c_BH + i * torch.tanh(g)
        h_BH = torch.sigmoid(o) * torch.tanh(c_BH)
        expected.append(h_BH)
    weight = cell.recurrent_weight
    outputs, state = run(cell, inputs_BTI, cell.initial_state(2), None, weight, None, mask_BP)
    torch.testing.assert_close(outputs, torch.stack(expected, dim=1))
    torch.testing.assert_close(state.tensor("c"), c_BH)


def filled(cell: Cell) -> Cell:
    """The cell in float64 with all of its numbers drawn at random."""
    cell = cell.double()
    for parameter in cell.parameters():
        torch.nn.init.normal_(parameter)
    return cell


def ran(cell: Cell, inputs_BTI: Tensor) -> tuple[Tensor, State]:
    with torch.no_grad():
        state = cell.initial_state(len(inputs_BTI))
        return run(cell, inputs_BTI, state, None, cell.recurrent_weight)


def test_qrnn_by_its_equations() -> None:
    """Bradbury and others (2017): a masked convolution over time, then fo-pooling (equation 4)."""
    torch.manual_seed(5)
    cell, inputs_BTI = filled(QRNNCell(3, 5)), torch.randn(2, 7, 3, dtype=torch.double)
    assert isinstance(cell, QRNNCell)
    outputs_BTP, state = ran(cell, inputs_BTI)
    kernel = torch.stack([cell.previous_weight, cell.input_weight], dim=2).detach()
    padded = torch.nn.functional.pad(inputs_BTI.transpose(1, 2), (1, 0))
    found = torch.nn.functional.conv1d(padded, kernel, cell.bias.detach()).transpose(1, 2)
    z, f, o = found.chunk(3, dim=2)
    z, f, o = torch.tanh(z), torch.sigmoid(f), torch.sigmoid(o)
    c = torch.zeros(2, 5, dtype=torch.double)
    for t in range(7):
        c = f[:, t] * c + (1 - f[:, t]) * z[:, t]
        torch.testing.assert_close(outputs_BTP[:, t], o[:, t] * c)
    torch.testing.assert_close(state.tensor("h"), c)
    torch.testing.assert_close(state.tensor("x"), inputs_BTI[:, -1])


def test_hgrn_by_its_equations() -> None:
    """Qin, Yang and Zhong (2023): bounds of the forget gates by a cumulative softmax over layers,
    without the first layer's share."""
    torch.manual_seed(6)
    stack = Stack(StackConfig(cell="hgrn", hidden_size=4, num_layers=3), 3).double()
    for parameter in stack.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(2, 6, 3, dtype=torch.double)
    with torch.no_grad():
        found, state = stack(x)
        cells = [layer.cell for layer in stack.layers]
        shares = torch.stack([cell.bound for cell in cells]).exp()
        shares = shares / shares.sum(0)
        for level, cell in enumerate(cells):
            bound = shares.cumsum(0)[level] - shares[0]
            n, f, o = (x @ cell.input_weight.T + cell.bias).chunk(3, dim=2)
            f = bound + (1 - bound) * torch.sigmoid(f)
            n = n * torch.sigmoid(n)
            c, outputs = torch.zeros(2, 4, dtype=torch.double), []
            for t in range(6):
                c = f[:, t] * c + (1 - f[:, t]) * n[:, t]
                outputs.append(torch.sigmoid(o[:, t]) * c)
            x = torch.stack(outputs, dim=1)
            torch.testing.assert_close(state.part(str(level)).tensor("h"), c)
    torch.testing.assert_close(found, x)


def test_the_bounds_of_hgrn_rise_in_each_direction_and_width() -> None:
    config = StackConfig(cell="hgrn", hidden_size=4, num_layers=3)
    both = Stack(config, 3, bidirectional=True)
    cells = [module for module in both.modules() if isinstance(module, HGRNCell)]
    assert sum(parameter.numel() for parameter in cells[0].parameters()) == 3 * (4 * 3 + 4) + 4
    forward, backward = cells[::2], cells[1::2]
    for column in (forward, backward):
        bounds = [float(cell.lower_bound().detach()[0]) for cell in column]
        assert bounds == pytest.approx([0, 1 / 3, 2 / 3])
    with torch.no_grad():
        forward[2].bound += 1.0
    assert float(forward[1].lower_bound().detach()[0]) < 1 / 3
    assert float(backward[1].lower_bound().detach()[0]) == pytest.approx(1 / 3)
    narrow = Stack(config, 3, last_size=2).layers[2].cell
    assert narrow.lower_bound().tolist() == pytest.approx([2 / 3, 2 / 3])
    assert not HGRNCell(3, 4).lower_bound().any()


@pytest.mark.parametrize("input_size", [3, 5])
def test_rglru_by_its_equations(input_size: int) -> None:
    """De and others (2024), equations 1 to 4: a = sigmoid(-d), raised to the power 8 r."""
    torch.manual_seed(7)
    cell = filled(RGLRUCell(input_size, 5))
    assert isinstance(cell, RGLRUCell)
    inputs_BTI = torch.randn(2, 7, input_size, dtype=torch.double)
    outputs_BTP, _ = ran(cell, inputs_BTI)
    W = cell.input_weight.detach().split(5)
    b = cell.bias.detach().split(5)
    h = torch.zeros(2, 5, dtype=torch.double)
    for t in range(7):
        x = inputs_BTI[:, t]
        r, i = (torch.sigmoid(x @ W[k].T + b[k]) for k in range(2))
        entering = x if input_size == 5 else x @ W[2].T + b[2]
        a = torch.sigmoid(-cell.decay.detach()) ** (8 * r)
        h = a * h + torch.sqrt(1 - a**2) * (i * entering)
        torch.testing.assert_close(outputs_BTP[:, t], h)


def test_how_rglru_starts_and_that_it_has_gradients_where_it_keeps_all() -> None:
    torch.manual_seed(0)
    cell = RGLRUCell(3, 500)
    kept = torch.sigmoid(-cell.decay.detach()) ** 8
    assert 0.9 <= float(kept.min()) < 0.905
    assert 0.994 < float(kept.max()) <= 0.9991
    with torch.no_grad():
        cell.bias[:500] = -200.0  # r underflows: a is 1
    _, state = cell(torch.randn(2, 3), cell.initial_state(2))
    state.tensor("h").sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in cell.parameters() if p.grad is not None)


@pytest.mark.parametrize("num_heads", [1, 2])
def test_slstm_by_its_equations(num_heads: int) -> None:
    """Beck and others (2024), equations 8 to 14, in float64 without the stabiliser m."""
    torch.manual_seed(8)
    cell = filled(SLSTMCell(3, 6, num_heads=num_heads))
    inputs_BTI = torch.randn(2, 7, 3, dtype=torch.double)
    outputs_BTP, state = ran(cell, inputs_BTI)
    U = cell.recurrent_weight.detach()
    size = 6 // num_heads
    wide = torch.stack(
        [torch.block_diag(*gate.split(size)) for gate in U.split(6)]
    )  # each gate's blocks on the diagonal
    W, b = cell.input_weight.detach(), cell.bias.detach()
    h, c, n = torch.zeros(3, 2, 6, dtype=torch.double)
    for t in range(7):
        i, f, z, o = (inputs_BTI[:, t] @ W.T + b + h @ wide.flatten(0, 1).T).chunk(4, dim=1)
        i, f = torch.exp(i), torch.sigmoid(f)
        c, n = f * c + i * torch.tanh(z), f * n + i
        h = torch.sigmoid(o) * c / n
        torch.testing.assert_close(outputs_BTP[:, t], h)
    scale = torch.exp(state.tensor("m"))
    torch.testing.assert_close(state.tensor("n") * scale, n)
    torch.testing.assert_close(state.tensor("c") * scale, c)


def test_slstm_survives_what_exponentials_do_not() -> None:
    cell = one_unit(SLSTMCell(1, 1, num_heads=1), input_weight=[1.0, 0.0, 1.0, 0.0])
    inputs_BTI = torch.tensor([-300.0, 400.0, -200.0, 0.5]).reshape(1, 4, 1)
    outputs_BTP, state = ran(cell, inputs_BTI)
    # The second input weighs exp(400): it stays in memory. Output gates are 1/2.
    expected = [-0.5, 0.5, 0.5, 0.5]
    torch.testing.assert_close(outputs_BTP.flatten(), torch.tensor(expected))
    assert all(bool(tensor.isfinite().all()) for tensor in state.flatten().values())


def test_slstm_refuses_units_that_are_no_heads() -> None:
    with pytest.raises(UsageError, match="10 units of an slstm cell cannot be divided into 4"):
        SLSTMCell(3, 10)
