"""`elman inside`: states, gates and gradients of a recurrent model while it reads."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from elman.terminal.console import result, result_json, table, talk, visible
from elman.terminal.options import Device, Json, Model, argument, option, picture
from elman.terminal.stdin import read_stdin

TABLE_UNITS, DRAWN_UNITS = 5, 24
"""Units that are shown by default."""


def inside(
    model: Model,
    text: Annotated[str, argument("TEXT|-", "The text to read; - reads it from stdin.")],
    layer: Annotated[int, option("N", "The layer, from 0 at the bottom.", min=0)] = 0,
    part: Annotated[
        str, option("h|c|i|f|g|o|r|u", "What to show: a letter of the cell's equations.")
    ] = "h",
    target: Annotated[
        int | None,
        option("N", "The token whose prediction is examined, from 1. [default: the last]", min=1),
    ] = None,
    units: Annotated[
        int | None,
        option(
            "N",
            "How many units to show, those that vary most first. [default: "
            f"{TABLE_UNITS}, in a picture {DRAWN_UNITS}]",
            min=1,
        ),
    ] = None,
    plot: Annotated[Path | None, picture("Draw it")] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Show states, gates and gradients while a model reads a text.

    One row per token: its surprisal in bits; the value of some units after it; and the norm of the
    gradient of one token's prediction, the target's, for the vector of each token before it and for
    the states h (and c) of each layer. With --json, all units.
    """
    from elman.api import LM, load

    lm = load(model, device=device, kind=LM)
    text = read_stdin() if text == "-" else text
    found = lm.inside(text, layer=layer, part=part, target=target)
    if plot is not None:
        from elman.evaluate.pictures import draw_inside

        labels = [visible(token) for token in found.tokens]
        draw_inside(found, labels, plot, units=units or DRAWN_UNITS)
        talk(f"wrote {plot}")
    if json:
        result_json(asdict(found) | {"values": found.values.tolist()})
        return
    result(_table(found, units or TABLE_UNITS))


def _table(found: Any, units: int) -> str:
    chosen = found.units(units)
    columns: dict[str, list[Any]] = {
        "place": list(range(len(found.tokens))),
        "token": [visible(token) for token in found.tokens],
        "bits": [None if bits is None else f"{bits:.3f}" for bits in found.surprisal],
        **{f"{found.part}[{unit}]": [f"{x:.3f}" for x in found.values[:, unit]] for unit in chosen},
        "d token": found.gradient,
    }
    for part, layers in found.state_gradients.items():
        columns |= {f"d {part}, layer {layer}": norms for layer, norms in enumerate(layers)}
    rows = []
    for place in range(len(found.tokens)):
        cells = [values[place] if place < len(values) else None for values in columns.values()]
        rows.append([f"{x:.3g}" if isinstance(x, float) else x for x in cells])
    return table(rows, header=tuple(columns))
