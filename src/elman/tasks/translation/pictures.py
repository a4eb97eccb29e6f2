"""Draw attention, and translation quality by the length of the source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from elman.evaluate.pictures import new_figure, save
from elman.tasks.translation.evaluation import Alignment, LengthGroup, TranslationEvaluation


def draw_alignment(alignment: Alignment, path: Path) -> None:
    """Draw attention as a heat map: the source along the top, the translation down the side."""
    width = max(4.0, 0.35 * len(alignment.source) + 1.5)
    height = max(3.0, 0.3 * len(alignment.target) + 1.5)
    figure = new_figure(min(width, 40.0), min(height, 40.0))
    axes = figure.add_subplot()
    picture = axes.imshow(alignment.weights, cmap="Greys", vmin=0.0, vmax=1.0, aspect="auto")
    source, target = (
        [token.replace("\n", "\\n") for token in tokens]
        for tokens in (alignment.source, alignment.target)
    )
    axes.set_xticks(range(len(source)), source, rotation=60, ha="left", rotation_mode="anchor")
    axes.xaxis.tick_top()
    axes.set_yticks(range(len(target)), target)
    figure.colorbar(picture, ax=axes, label="attention")
    save(figure, path)


def draw_evaluations(evaluations: Mapping[str, TranslationEvaluation], path: Path) -> None:
    """Draw BLEU by the length of the source, a line for each model name."""
    draw_by_length({name: found.by_length for name, found in evaluations.items()}, path)


def draw_by_length(groups: Mapping[str, Sequence[LengthGroup]], path: Path) -> None:
    """Draw BLEU by the length of the source, a line for each name."""
    figure = new_figure(7.0, 4.5)
    axes = figure.add_subplot()
    for name, found in groups.items():
        middles = [(group.shortest + group.longest) / 2 for group in found]
        axes.plot(middles, [group.bleu for group in found], marker="o", label=name)
    spans = sorted(
        {(group.shortest, group.longest) for found in groups.values() for group in found}
    )
    axes.set_xticks([sum(span) / 2 for span in spans], [f"{low} to {high}" for low, high in spans])
    axes.set_xlabel("words in the source sentence")
    axes.set_ylabel("BLEU")
    axes.set_ylim(bottom=0)
    axes.legend()
    save(figure, path)


def length_rows(
    evaluation: TranslationEvaluation,
) -> tuple[list[tuple[str, int, float]], tuple[str, str, str]]:
    """BLEU by the length of the source, as rows and header of a table."""
    rows = [
        (f"{group.shortest} to {group.longest}", group.sentences, round(group.bleu, 2))
        for group in evaluation.by_length
    ]
    return rows, ("source words", "sentences", "BLEU")
