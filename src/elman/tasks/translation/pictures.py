"""Pictures of attention and of quality by source length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from elman.evaluate.pictures import new_figure, save
from elman.tasks.translation.evaluation import Alignment, LengthGroup


def draw_alignment(alignment: Alignment, path: Path) -> None:
    """Draw attention as a heat map: source along the top, translation down the side."""
    width = max(4.0, 0.35 * len(alignment.source) + 1.5)
    height = max(3.0, 0.3 * len(alignment.target) + 1.5)
    figure = new_figure(min(width, 40.0), min(height, 40.0))
    axes = figure.add_subplot()
    picture = axes.imshow(alignment.weights, cmap="Greys", vmin=0.0, vmax=1.0, aspect="auto")
    labels = [token.replace("\n", "\\n") for token in alignment.source]
    axes.set_xticks(range(len(labels)), labels, rotation=60, ha="left", rotation_mode="anchor")
    axes.xaxis.tick_top()
    labels = [token.replace("\n", "\\n") for token in alignment.target]
    axes.set_yticks(range(len(labels)), labels)
    figure.colorbar(picture, ax=axes, label="attention")
    save(figure, path)


def draw_by_length(groups: Mapping[str, Sequence[LengthGroup]], path: Path) -> None:
    """Plot BLEU against source length, one line per model."""
    figure = new_figure(7.0, 4.5)
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
    save(figure, path)
