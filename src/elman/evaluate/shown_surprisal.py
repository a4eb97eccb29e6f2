"""Surprisal as notebooks show it: the text shaded by surprisal, and a bar chart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import pairwise
from typing import Any

from elman.base.result_rows import Rows
from elman.evaluate.pictures import new_figure
from elman.evaluate.surprisal import Row

DARKEST = 0.75
"""Opacity of the shade of the most surprising row."""
MOST_BARS = 300
LINE_END, SPACE = "\u23ce", "\u2423"
"""Signs for tokens that cannot be seen."""


class Surprisals(Rows[Row]):
    """The surprisal of each token, word or line: a list; shaded text in a notebook."""

    def __init__(self, rows: Iterable[Row], unit: str) -> None:
        super().__init__(rows)
        self.unit = unit
        """What the surprisal is measured in: bits, nats or bans."""

    def _repr_html_(self) -> str:
        highest = max((row.surprisal or 0.0 for row in self), default=0.0) or 1.0
        unknown = sum(row.unknown for row in self)
        lines: dict[int, list[str]] = {}
        ends: dict[int, int] = {}
        for row in self:
            gap = " " * max(0, row.start - ends.get(row.line, 0))
            lines.setdefault(row.line, []).append(gap + _shaded(row, highest, self.unit))
            ends[row.line] = row.end
        total = sum(row.surprisal or 0.0 for row in self)
        about = f"{total:.1f} {self.unit} in all; darkest: {highest:.1f} {self.unit}"
        if unknown:
            about += f"; {unknown:,} of {len(self):,} unknown (underlined)"
        text = "\n".join("".join(parts) for parts in lines.values())
        return f'<div><small>{about}</small><pre style="white-space:pre-wrap">{text}</pre></div>'


def _shaded(row: Row, highest: float, unit: str) -> str:
    share = DARKEST * (row.surprisal or 0.0) / highest
    style = f"background:rgba(220,90,20,{share:.2f})"
    if row.unknown:
        style += ";text-decoration:underline dotted"
    text = row.text.replace("\n", LINE_END)
    value = "none" if row.surprisal is None else f"{row.surprisal:.2f} {unit}"
    return f'<span style="{style}" title="{value}">{escape(text)}</span>'


def draw_surprisal(rows: Sequence[Row], unit: str) -> Any:
    """A bar for each row, in order; a matplotlib figure. Unknown words are hatched."""
    rows = rows[:MOST_BARS]
    figure = new_figure(min(30.0, max(5.0, 1.5 + 0.35 * len(rows))), 3.5)
    axes = figure.add_subplot()
    places = range(len(rows))
    bars = axes.bar(places, [row.surprisal or 0.0 for row in rows], color="0.45")
    for bar, row in zip(bars, rows, strict=True):
        if row.unknown:
            bar.set_hatch("///")
            bar.set_facecolor("white")
            bar.set_edgecolor("0.45")
    for place, (row, following) in enumerate(pairwise(rows)):
        if row.line != following.line:
            axes.axvline(place + 0.5, color="0.8", linewidth=0.8)
    shown = [row.text.strip().replace("\n", LINE_END) or SPACE for row in rows]
    labels = [text.replace("$", r"\$") for text in shown]  # $ begins a formula
    axes.set_xticks(places, labels, rotation=90)
    axes.set_ylabel(f"surprisal ({unit})")
    axes.margins(x=0.01)
    return figure
