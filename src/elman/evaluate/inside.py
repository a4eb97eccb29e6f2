"""Look inside a recurrent language model while it reads: units, gates, and gradients.

    inside     reads a text and returns an `Inside`:
      values            a part of one layer after each token, by the cell's own equations
      gradient          how much the prediction of one token, the target, depends on each token
                        before it: the norm of the gradient of its log probability with respect to
                        that token's vector
      state_gradients   the same with respect to the states of every layer after each token: whether
                        gradients vanish or explode on the way back
      surprisal         -log2 P of each token

B batch (1 here), T time steps, E embedding, H hidden, G gates times H.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from elman.base.errors import UsageError
from elman.decode.prefix import device_of
from elman.evaluate.sequences import check_number
from elman.models.interface import reading
from elman.models.recurrent import RecurrentLM
from elman.nn.cells import Cell, GRUCell, LSTMCell, RNNCell
from elman.nn.layer import RecurrentLayer
from elman.nn.state import State

PART_NAMES = {
    "h": "output h",
    "c": "memory c",
    "i": "input gate i",
    "f": "forget gate f",
    "g": "new content g",
    "o": "output gate o",
    "r": "reset gate r",
    "u": "update gate u",
}
"""Names of the letters in the equations."""


MOST_UNITS = 12
"""Units that `alike` returns."""
MOST_PLACES = 12
"""Places that `alike` returns."""
LEAST_SHARE = 0.5
"""A place is alike where at least this share of the units is on."""
Values = NDArray[np.float32]


@dataclass(frozen=True)
class Inside:
    """What happens in a recurrent language model while it reads a text."""

    tokens: list[str]
    """The tokens; the first is the boundary token."""
    num_layers: int
    """Number of recurrent layers."""
    layer: int
    """The layer that `parts` and `values` are of, from 0 at the bottom."""
    parts: list[str]
    """What can be seen in this layer: letters of the cell's equations."""
    part: str
    """What `values` are of."""
    values: NDArray[np.float32] = field(repr=False)
    """(tokens, units) the part after each token."""
    target: int
    """The token whose prediction the gradients are about; 0 if there is none."""
    gradient: list[float]
    """Norm of the gradient of log P(target) for the vector of each token before it."""
    state_gradients: dict[str, list[list[float]]]
    """By part of the state (h, and c of an lstm), for each layer: the norm of the gradient of log
    P(target) for the state after each token before it. All paths count, through time and through
    higher layers."""
    surprisal: list[float | None]
    """-log2 P of each token; None for the boundary token, which is not predicted."""

    def units(self, most: int) -> list[int]:
        """The units of `values` that vary most over the text, those first."""
        order = np.argsort(-self.values.std(axis=0), kind="stable")
        return [int(unit) for unit in order[:most]]


def inside(
    model: RecurrentLM,
    tokens: Sequence[int],
    spellings: Sequence[str],
    *,
    layer: int = 0,
    part: str = "h",
    target: int | None = None,
) -> Inside:
    """Read `tokens`, of which the first is the boundary token, from the initial state.

    `target` is the place of a token, by default the last one.
    """
    known = parts_of(model, layer)
    if part not in known:
        raise UsageError(
            f"layer {layer} has no part '{part}'", f"choose one of: {', '.join(known)}"
        )
    last = len(tokens) - 1
    if target is None:
        target = last
    elif not 1 <= target <= last:
        hint = f"tokens go from 1 to {last}" if last else "give a text"
        raise UsageError(f"the text has no token {target}", hint)
    with reading(model), torch.enable_grad():
        state = model.initial_state(1)
        tokens_1T = torch.tensor([tokens], device=device_of(state))
        embedded_1TE = model.input(tokens_1T).detach().requires_grad_()
        seen: list[list[dict[str, Tensor]]] = []

        def run(layer: Any, entering_1TI: Tensor, before: State) -> tuple[Tensor, State]:
            outputs_1TP, steps, after = _steps(layer.cell, entering_1TI, before)
            seen.append(steps)
            return outputs_1TP, after

        outputs, _ = model.stack.climb(embedded_1TE, state, run)
        contexts_1TO = None
        if model.contexts is not None:
            contexts_1TO, _ = model.contexts.read(tokens_1T, state.tensor("tokens"))
            contexts_1TO = contexts_1TO[:, :-1]
        logprobs_1T = embedded_1TE.new_empty(1, 0)
        if last:
            logprobs_1T = model.head.logprobs(outputs[-1][:, :-1], tokens_1T[:, 1:], contexts_1TO)
        gradient, state_gradients = _gradients(model, logprobs_1T, embedded_1TE, seen, target)
    values_TH = torch.stack([step[part][0] for step in seen[layer]]).detach().float().cpu()
    check_number(float(values_TH.sum()))
    bits = (-logprobs_1T[0].detach().double() / math.log(2)).tolist()
    check_number(math.fsum(bits))
    return Inside(
        tokens=list(spellings),
        num_layers=num_layers(model),
        layer=layer,
        parts=known,
        part=part,
        values=values_TH.numpy(),
        target=target,
        gradient=gradient,
        state_gradients=state_gradients,
        surprisal=[None, *bits],
    )


def layer_steps(model: RecurrentLM, tokens: Sequence[int], layer: int) -> dict[str, Values]:
    """Read `tokens`; return everything that the units of one layer compute, (tokens, units) each.

    The keys are the letters of `parts_of`. A gru has its new content `n` as well, a simple
    recurrent cell the two sums that its activation is of: `x` of the input with the bias, and `s`
    of the state before.
    """
    parts_of(model, layer)
    with reading(model), torch.no_grad():
        state = model.initial_state(1)
        tokens_1T = torch.tensor([tokens], device=device_of(state))
        seen: list[list[dict[str, Tensor]]] = []

        def run(layer: Any, entering_1TI: Tensor, before: State) -> tuple[Tensor, State]:
            outputs_1TP, steps, after = _steps(layer.cell, entering_1TI, before, sums=True)
            seen.append(steps)
            return outputs_1TP, after

        model.stack.climb(model.input(tokens_1T), state, run)
    return {
        name: torch.stack([step[name][0] for step in seen[layer]]).float().cpu().numpy()
        for name in seen[layer][0]
    }


@dataclass(frozen=True)
class Alike:
    """Units that are on all along a span, and the other places where they are on together."""

    units: list[tuple[int, int, float]]
    """Number, sign (1 if on above the threshold, -1 if below its negative) and contrast: the mean
    in the span minus that outside, times the sign. The largest contrast first."""
    places: list[tuple[int, int, float]]
    """First token, last token, and the mean share of the units that are on there; best first."""


def alike(values_TH: Values, first: int, last: int, *, threshold: float = 0.3) -> Alike:
    """Find what a span of tokens has in common with the rest of a text.

    As in LSTMVis (Strobelt and others, 2018): the units that stay on in the span, where "on" is at
    or beyond the threshold, of either sign; then the other stretches in which they are on.
    """
    span_SH = values_TH[first : last + 1]
    outside_OH = np.delete(values_TH, np.s_[first : last + 1], axis=0)
    sign_H = np.where(span_SH.mean(0) >= 0, 1, -1)
    stays_H = (sign_H * span_SH >= threshold).all(0)
    contrast_H = sign_H * (span_SH.mean(0) - (outside_OH.mean(0) if len(outside_OH) else 0.0))
    candidates = np.flatnonzero(stays_H & (contrast_H > 0))
    order = candidates[np.argsort(-contrast_H[candidates], kind="stable")][:MOST_UNITS]
    units = [(int(u), int(sign_H[u]), float(contrast_H[u])) for u in order]
    if not units:
        return Alike([], [])
    share_T = (sign_H[order] * values_TH[:, order] >= threshold).mean(1)
    share_T[first : last + 1] = 0.0
    share_T[0] = 0.0  # the boundary token is no word
    places = []
    begin = None
    for t, share in enumerate([*share_T, 0.0]):
        if share >= LEAST_SHARE and begin is None:
            begin = t
        elif share < LEAST_SHARE and begin is not None:
            places.append((begin, t - 1, float(share_T[begin:t].mean())))
            begin = None
    return Alike(units, sorted(places, key=lambda place: -place[2])[:MOST_PLACES])


def num_layers(model: RecurrentLM) -> int:
    return len(model.stack.layers)


def parts_of(model: RecurrentLM, layer: int) -> list[str]:
    """Return what can be seen in a layer: letters of the cell's equations."""
    number = num_layers(model)
    if not 0 <= layer < number:
        raise UsageError(
            f"the model has no layer {layer}",
            f"layers go from 0 to {number - 1}, from the bottom"
            if number > 1
            else "its only layer is 0",
        )
    cell = cast(RecurrentLayer, model.stack.layers[layer]).cell
    return [*cell.state_sizes, *_gate_letters(cell)]


def _steps(
    cell: Cell, inputs_1TI: Tensor, state: State, *, sums: bool = False
) -> tuple[Tensor, list[dict[str, Tensor]], State]:
    """Run a cell; return its outputs, its state and gates after each step, and the last state.

    With `sums`, a step also has what `_sums` computes.
    """
    outputs, steps = [], []
    for projected_1G in cell.project(inputs_1TI).unbind(1):
        gates = _gates(cell, projected_1G, state)
        if sums:
            gates |= _sums(cell, projected_1G, state, gates)
        output_1P, state = cell.step(projected_1G, state)
        outputs.append(output_1P)
        steps.append(gates | {name: state.tensor(name) for name in cell.state_sizes})
    return torch.stack(outputs, dim=1), steps, state


def _gradients(
    model: RecurrentLM,
    logprobs_1T: Tensor,
    embedded_1TE: Tensor,
    seen: list[list[dict[str, Tensor]]],
    target: int,
) -> tuple[list[float], dict[str, list[list[float]]]]:
    """Return the norms for the tokens' vectors, and by part of the state for each layer."""
    names = list(cast(RecurrentLayer, model.stack.layers[0]).cell.state_sizes)
    layers = range(len(seen))
    places = [(name, layer, t) for name in names for layer in layers for t in range(target)]
    norms: dict[str, list[list[float]]] = {name: [[] for _ in layers] for name in names}
    if not target:
        return [], norms
    states = [seen[layer][t][name] for name, layer, t in places]
    found = torch.autograd.grad(
        logprobs_1T[0, target - 1], [embedded_1TE, *states], allow_unused=True
    )
    # In float64: the squares of small gradients underflow in float32.
    zero = embedded_1TE.new_zeros(1)
    lengths = [(zero if gradient is None else gradient).double() for gradient in found]
    for (name, layer, _), gradient in zip(places, lengths[1:], strict=True):
        norms[name][layer].append(float(gradient.norm()))
    by_token: list[float] = lengths[0][0, :target].norm(dim=-1).tolist()
    return by_token, norms


def _gate_letters(cell: Cell) -> str:
    if getattr(cell, "has_extras", cell.layer_norm):
        return ""  # these gates are more than a sum of two products
    if isinstance(cell, LSTMCell):
        return "ifgo"
    return "ru" if isinstance(cell, GRUCell) else ""


def _gates(cell: Cell, projected_BG: Tensor, state: State) -> dict[str, Tensor]:
    """Compute the gates of the next step."""
    letters = _gate_letters(cell)
    if not letters:
        return {}
    width = len(letters) * cell.hidden_size
    sums = projected_BG[:, :width] + F.linear(state.tensor("h"), cell.recurrent_weight[:width])
    return {
        letter: torch.tanh(part) if letter == "g" else torch.sigmoid(part)
        for letter, part in zip(letters, sums.chunk(len(letters), dim=1), strict=True)
    }


def _sums(
    cell: Cell, projected_BG: Tensor, state: State, gates: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Compute a gru's new content, or the two sums of a simple recurrent cell."""
    if cell.layer_norm:
        return {}
    h_BH = state.tensor("h")
    if isinstance(cell, RNNCell):
        return {"x": projected_BG, "s": F.linear(h_BH, cell.recurrent_weight)}
    if not isinstance(cell, GRUCell):
        return {}
    projected_BH = projected_BG[:, 2 * cell.hidden_size :]
    weight_HH = cell.recurrent_weight[2 * cell.hidden_size :]
    if cell.recurrent_bias is None:
        return {"n": torch.tanh(projected_BH + F.linear(gates["r"] * h_BH, weight_HH))}
    recurrent_BH = F.linear(h_BH, weight_HH) + cell.recurrent_bias
    return {"n": torch.tanh(projected_BH + gates["r"] * recurrent_BH)}
