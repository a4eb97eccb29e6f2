"""Draw with matplotlib: figures, saving, and the layer weights of embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from elman.base.errors import ElmanError, UsageError
from elman.base.files import replacing

if TYPE_CHECKING:  # it imports torch, which other pictures do not need
    from elman.evaluate.inside import Inside


def draw_layer_weights(weights: Mapping[str, Sequence[Sequence[float]]], path: Path) -> None:
    """Draw bars for the weight of each layer of pre-trained embeddings, bottom first, by name.

    Each name has the weights of one or more runs: bars are means, whiskers standard deviations.
    """
    figure = new_figure(max(4.0, 1.8 * len(weights) + 1.0), 3.6)
    axes = figure.add_subplot()
    num_layers = max(len(run) for runs in weights.values() for run in runs)
    width = 0.8 / num_layers
    for layer in range(num_layers):
        places, heights, spreads = [], [], []
        for number, runs in enumerate(weights.values()):
            values = [run[layer] for run in runs if layer < len(run)]
            if values:
                places.append(number + (layer - (num_layers - 1) / 2) * width)
                heights.append(mean(values))
                spreads.append(stdev(values) if len(values) > 1 else 0.0)
        shade = str(0.85 - 0.7 * layer / max(1, num_layers - 1))
        label = f"layer {layer}" + (" (bottom)" if layer == 0 else "")
        axes.bar(
            *(places, heights, width), yerr=spreads, color=shade, edgecolor="black", label=label
        )
    axes.set_xticks(range(len(weights)), list(weights))
    axes.set_ylabel("weight in the mix")
    axes.set_ylim(0, 1)
    axes.legend(frameon=False)
    save(figure, path)


def draw_inside(found: Inside, labels: Sequence[str], path: Path, *, units: int) -> None:
    """Draw units over the text, and the gradients of the prediction of the target.

    `labels` are the tokens as the axis shows them; `units` is the most units to draw.
    """
    from elman.evaluate.inside import PART_NAMES

    labels = [label.replace("$", r"\$") for label in labels]  # $ begins a formula
    chosen, num_tokens = found.units(units), len(labels)
    width = min(30.0, max(7.0, 2.0 + 0.3 * num_tokens))
    figure = new_figure(width, 8.5)
    top, middle, bottom = figure.subplots(3, 1, height_ratios=(2.2, 1, 1.4))
    bound = float(abs(found.values[:, chosen]).max()) or 1.0
    shown = top.imshow(
        *(found.values[:, chosen].T,), aspect="auto", cmap="RdBu_r", vmin=-bound, vmax=bound
    )
    top.set_ylabel("unit")
    name = PART_NAMES.get(found.part, found.part)
    last = found.num_layers - 1
    among = f" (of 0 to {last}, from the bottom)" if last else ""
    top.set_title(f"{name}, layer {found.layer}{among}")
    top.set_yticks(range(len(chosen)), [str(unit) for unit in chosen], fontsize="x-small")
    figure.colorbar(shown, ax=top, label=f"value of {found.part}", pad=0.01)
    before = range(len(found.gradient))
    predicted = f"log P({labels[found.target]}), token {found.target}" if before else "nothing"
    middle.bar(before, found.gradient, color="0.35")
    middle.axvline(found.target, color="C3", linestyle=":")
    middle.set_ylabel("norm of gradient")
    middle.set_title(f"gradient of {predicted}, for the vector of each token")
    for axes in (top, middle):
        axes.set_xticks(range(num_tokens), labels, rotation=90, fontsize="small")
        axes.set_xlim(-0.5, num_tokens - 0.5)
        axes.set_xlabel("token")
    for part, layers in found.state_gradients.items():
        for layer, norms in enumerate(layers):
            distances = [found.target - place for place in before]
            style = "-" if part == "h" else "--"
            label = f"{part}, layer {layer}"
            bottom.plot(distances, norms, f"C{layer}{style}", marker=".", label=label)
    if any(norm > 0 for layers in found.state_gradients.values() for one in layers for norm in one):
        bottom.set_yscale("log")
    bottom.xaxis.get_major_locator().set_params(integer=True)
    bottom.set_xlabel(f"distance to token {found.target}, in tokens")
    bottom.set_ylabel("norm of gradient")
    bottom.set_title(f"gradient of {predicted}, for the state after each token")
    if before:
        bottom.legend(frameon=False)
    save(figure, path)


def new_figure(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ElmanError(
            "pictures need the matplotlib package", "pip install 'elman[plots]'"
        ) from error
    return Figure(figsize=(width, height), layout="constrained")


FORMATS = {
    *(".png", ".svg", ".pdf"),
    *(".eps", ".jpeg", ".jpg", ".pgf", ".ps", ".svgz", ".tif", ".tiff", ".webp"),
}
"""Suffixes of pictures."""


def check_suffix(path: Path) -> None:
    """Refuse a name whose suffix names no format of pictures."""
    if path.suffix.lower() in FORMATS:
        return
    problem = f"'{path.suffix}' is no format of pictures" if path.suffix else "it has no suffix"
    raise UsageError(f"cannot draw to {path}: {problem}", "end the name in .png, .svg or .pdf")


def save(figure: Any, path: Path) -> None:
    """Write a figure in the format of the name's suffix; make the folder."""
    check_suffix(path)
    with replacing(path, durable=False) as temporary:
        figure.savefig(temporary, dpi=150)
