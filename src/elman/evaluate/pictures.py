"""Draw with matplotlib: figures, saving, and the layer weights of embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from elman.base.errors import ElmanError, UsageError
from elman.base.files import explain


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


def new_figure(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ElmanError(
            "pictures need the matplotlib package", "pip install 'elman[plots]'"
        ) from error
    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Any, path: Path) -> None:
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise explain(error, path) from error
    except ValueError as error:  # an unknown suffix
        raise UsageError(f"{path}: {error}", "end the name in .png, .svg or .pdf") from error
