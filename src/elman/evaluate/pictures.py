"""Pictures of results, by matplotlib: where a decoder looked, quality by length of the source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from elman.base.errors import ElmanError, UsageError
from elman.base.files import explain
from elman.evaluate.translation import Alignment, LengthGroup


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
    axes.set_xlabel("words in the source sentence")
    axes.set_ylabel("BLEU")
    axes.set_ylim(bottom=0)
    axes.legend()
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
