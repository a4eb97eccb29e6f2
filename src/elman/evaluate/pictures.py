"""Pictures of results, by matplotlib: where a decoder looked, quality by length of the source,
which label is taken for which, which layers of embeddings count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from elman.base.errors import ElmanError, UsageError
from elman.base.files import explain
from elman.tasks.translation.evaluation import Alignment, LengthGroup


def draw_alignment(alignment: Alignment, path: Path) -> None:
    """A heat map: the source along the top, the translation down the side, dark where looked at."""
    width = max(4.0, 0.35 * len(alignment.source) + 1.5)
    height = max(3.0, 0.3 * len(alignment.target) + 1.5)
    figure = _figure(min(width, 40.0), min(height, 40.0))
    axes = figure.add_subplot()
    picture = axes.imshow(alignment.weights, cmap="Greys", vmin=0.0, vmax=1.0, aspect="auto")
    labels = [token.replace("\n", "\\n") for token in alignment.source]
    axes.set_xticks(range(len(labels)), labels, rotation=60, ha="left", rotation_mode="anchor")
    axes.xaxis.tick_top()
    labels = [token.replace("\n", "\\n") for token in alignment.target]
    axes.set_yticks(range(len(labels)), labels)
    figure.colorbar(picture, ax=axes, label="attention")
    _save(figure, path)


def draw_by_length(groups: Mapping[str, Sequence[LengthGroup]], path: Path) -> None:
    """BLEU against the length of the source, a line for each model."""
    figure = _figure(7.0, 4.5)
    axes = figure.add_subplot()
    for name, found in groups.items():
        middles = [(group.shortest + group.longest) / 2 for group in found]
        axes.plot(middles, [group.bleu for group in found], marker="o", label=name)
    every = [group for found in groups.values() for group in found]
    spans = sorted({(group.shortest, group.longest) for group in every})
    axes.set_xticks([sum(span) / 2 for span in spans], [f"{low} to {high}" for low, high in spans])
    axes.set_xlabel("words in the source sentence")
    axes.set_ylabel("BLEU")
    axes.set_ylim(bottom=0)
    axes.legend()
    _save(figure, path)


def draw_confusion(confusion: Mapping[str, Mapping[str, int]], path: Path) -> None:
    """True labels down the side, those found along the top: shares of each row, counts written in
    where there is room.
    """
    labels = list(confusion)
    side = min(40.0, max(4.0, 0.45 * len(labels) + 2.0))
    figure = _figure(side + 1.0, side)
    axes = figure.add_subplot()
    counts = [[confusion[true].get(found, 0) for found in labels] for true in labels]
    shares = [[count / max(1, sum(row)) for count in row] for row in counts]
    picture = axes.imshow(shares, cmap="Greys", vmin=0.0, vmax=1.0)
    axes.set_xticks(range(len(labels)), labels, rotation=60, ha="left", rotation_mode="anchor")
    axes.xaxis.tick_top()
    axes.set_yticks(range(len(labels)), labels)
    axes.set_xlabel("found")
    axes.xaxis.set_label_position("top")
    axes.set_ylabel("true")
    for row, values in enumerate(counts):
        for column, count in enumerate(values):
            if count and len(labels) <= 30:
                dark = shares[row][column] > 0.5
                colour = "white" if dark else "black"
                axes.text(column, row, str(count), ha="center", va="center", color=colour, size=7)
    figure.colorbar(picture, ax=axes, label="share of the true label")
    _save(figure, path)


def draw_layer_weights(weights: Mapping[str, Sequence[Sequence[float]]], path: Path) -> None:
    """Bars: how much each layer of pre-trained embeddings counts, bottom first, by task or place.

    Each name has the weights of one run or several; bars are their means, whiskers the deviation.
    """
    figure = _figure(max(4.0, 1.8 * len(weights) + 1.0), 3.6)
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
    _save(figure, path)


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ElmanError(
            "pictures are drawn by matplotlib, which is not installed",
            "pip install 'elman[plots]'",
        ) from error
    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: Any, path: Path) -> None:
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise explain(error, path) from error
    except ValueError as error:  # an ending that stands for no kind of picture
        raise UsageError(f"{path}: {error}", "end the name in .png, .svg or .pdf") from error
