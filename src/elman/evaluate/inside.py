"""Look inside a recurrent language model while it reads: units, gates, and input sensitivity.

    watch        a part of one layer after each token, computed with the cell's own equations
    sensitivity  how much the prediction of a token depends on each word before it: the norm of the
                 gradient of its log probability with respect to that word's vector

B batch (1 here), T time steps, E embedding, H hidden, G gates times H.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from elman.base.errors import UsageError
from elman.decode.prefix import device_of
from elman.models.interface import reading
from elman.models.recurrent import RecurrentLM
from elman.nn.cells import Cell, GRUCell, LSTMCell
from elman.nn.layer import RecurrentLayer
from elman.nn.shapes import Float
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


def num_layers(model: RecurrentLM) -> int:
    return len(model.stack.layers)


def parts_of(model: RecurrentLM, layer: int) -> list[str]:
    """Return what can be watched in a layer: letters of the cell's equations."""
    cell = _layer(model, layer).cell
    return [*cell.state_sizes, *_gate_letters(cell)]


def watch(
    model: RecurrentLM, tokens: Sequence[int], *, layer: int, part: str
) -> Float[Tensor, "T H"]:
    """Return one part of one layer after each token, from the initial state."""
    chosen = _layer(model, layer)
    known = parts_of(model, layer)
    if part not in known:
        raise UsageError(
            f"layer {layer} has no part '{part}'", f"choose one of: {', '.join(known)}"
        )
    entered: list[Tensor] = []

    def note(module: Any, arguments: tuple[Any, ...]) -> None:
        entered.append(arguments[0])

    with reading(model):
        state = model.initial_state(1)
        tokens_1T = torch.tensor([tokens], device=device_of(state))
        hook = chosen.register_forward_pre_hook(note)
        try:
            model.stack(model.input(tokens_1T), state)
        finally:
            hook.remove()
        cell, inside = chosen.cell, state.part(str(layer))
        rows = []
        for projected_1G in cell.project(entered[0]).unbind(1):
            seen = _gates(cell, projected_1G, inside)
            _, inside = cell.step(projected_1G, inside)
            seen |= {name: inside.tensor(name) for name in cell.state_sizes}
            rows.append(seen[part][0].float().cpu())
        return torch.stack(rows)


def sensitivity(model: RecurrentLM, tokens: Sequence[int]) -> list[float]:
    """Return the gradient norm of the last token's log probability for each token before it."""
    if len(tokens) < 2:
        return []
    with torch.enable_grad():
        state = model.initial_state(1)
        tokens_1T = torch.tensor([tokens], device=device_of(state))
        embedded_1TE = model.input(tokens_1T[:, :-1]).detach().requires_grad_()
        hidden_1TH, _ = model.stack(embedded_1TE, state)
        # Without direct n-gram connections: they read ids, which have no gradient.
        logprob = model.head.logprobs(hidden_1TH[:, -1:], tokens_1T[:, -1:])
        (gradient_1TE,) = torch.autograd.grad(logprob.sum(), embedded_1TE)
    lengths: list[float] = gradient_1TE[0].norm(dim=-1).tolist()
    return lengths


def _layer(model: RecurrentLM, layer: int) -> RecurrentLayer:
    number = num_layers(model)
    if not 0 <= layer < number:
        raise UsageError(
            f"the model has no layer {layer}", f"layers go from 0 to {number - 1}, from the bottom"
        )
    return cast(RecurrentLayer, model.stack.layers[layer])


def _gate_letters(cell: Cell) -> str:
    if cell.layer_norm or getattr(cell, "peephole_weight", None) is not None:
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
