"""Draw a confusion matrix."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from elman.base.errors import UsageError
from elman.evaluate.pictures import new_figure, save
from elman.tasks.classification.evaluation import ClassificationEvaluation

MOST_COUNTED = 30
"""Labels up to which counts are written into the cells."""


def draw_evaluations(evaluations: Mapping[str, ClassificationEvaluation], path: Path) -> None:
    """Draw true labels against predicted ones: shares of each row as grey, counts as numbers.

    `evaluations` has one evaluation, by the name of its model.
    """
    if len(evaluations) != 1:
        raise UsageError(
            "a confusion matrix is of one classifier", "name one model with --confusion"
        )
    confusion = next(iter(evaluations.values())).confusion
    labels = list(confusion)
    side = min(40.0, max(4.0, 0.45 * len(labels) + 2.0))
    figure = new_figure(side + 1.0, side)
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
            if count and len(labels) <= MOST_COUNTED:
                colour = "white" if shares[row][column] > 0.5 else "black"
                axes.text(column, row, str(count), ha="center", va="center", color=colour, size=7)
    figure.colorbar(picture, ax=axes, label="share of the true label")
    save(figure, path)
