"""The plot of a search: how much each setting mattered, and the results by its values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from elman.recipes.search_space import Dimension, Tried

WIDTH, PANEL, LABELS, MARGIN = 740, 96, 170, 14
INK, BAR, POINT, BEST = "#333", "#7a9cc6", "#4a78b0", "#d1495b"


def plot(
    space: Sequence[Dimension],
    trials: Sequence[Tried],
    importance: Mapping[str, float],
) -> str:
    """SVG: a row for each setting, the most important first: its share, and a point for each trial
    (lower is better; red: the best; hollow: pruned, its result is an estimate). Heights are ranks:
    one trial that diverged would press the others together."""
    ranked = sorted(space, key=lambda one: -importance.get(one.name, 0.0))
    height = PANEL * len(ranked) + 3 * MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="12" fill="{INK}">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{MARGIN}" y="{MARGIN + 4}">setting, its share of what mattered, and the '
        f"rank of {len(trials)} trials by its value (lower is better, hollow: pruned)</text>",
    ]
    for row, dimension in enumerate(ranked):
        top = 2 * MARGIN + row * PANEL
        lines += _row(dimension, trials, importance.get(dimension.name), top)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _row(
    dimension: Dimension,
    trials: Sequence[Tried],
    share: float | None,
    top: float,
) -> Iterator[str]:
    middle, left, right = top + PANEL / 2, LABELS + 120, WIDTH - MARGIN
    yield f'<text x="{MARGIN}" y="{middle:.0f}">{escape(dimension.name)}</text>'
    if share is not None:
        yield (
            f'<rect x="{LABELS - 30}" y="{middle - 12:.0f}" width="{100 * share:.1f}" height="12" '
            f'fill="{BAR}"/><text x="{LABELS - 30}" y="{middle + 14:.0f}">{share:.0%}</text>'
        )
    yield f'<path d="M{left} {top + 8}V{top + PANEL - 20}H{right}" fill="none" stroke="{INK}"/>'
    for place, text in _ticks(dimension):
        x = left + 10 + place * (right - left - 20)
        anchor, y = "end" if place == 1 else "middle", top + PANEL - 6
        yield f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'
    ranked = sorted(trials, key=lambda one: -one.result)
    low = min((tried.result for tried in trials), default=0.0)
    for place, tried in enumerate(ranked):
        value = tried.values[dimension.name]
        x = left + 10 + dimension.place(value) * (right - left - 20)
        height = 1 - place / max(1, len(ranked) - 1)
        y = top + PANEL - 28 - height * (PANEL - 44)
        is_best = tried.finished and tried.result == low
        colour = BEST if is_best else POINT
        yield (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{5 if is_best else 3.5}" stroke="{colour}" '
            f'fill="{colour if tried.finished else "none"}"><title>{value}: {tried.result:.4f}'
            "</title></circle>"
        )


def _ticks(dimension: Dimension) -> list[tuple[float, str]]:
    values = dimension.choices or (dimension.low, dimension.start, dimension.high)
    found = {dimension.place(v): v if isinstance(v, str) else f"{v:.4g}" for v in values}
    return list(found.items())
