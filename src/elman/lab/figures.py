"""Figures as values: panels of series with intervals, drawn by matplotlib and by the studio."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from elman.base.files import explain
from elman.evaluate.pictures import new_figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
"""Told apart by people who do not see all colours (Okabe and Ito)."""
DASHES = ("solid", "dashed", "dotted", "dashdot")
MARKERS = "osD^vPX"
MOST_TICKS = 8
"""On an axis with a logarithmic scale, where each point has its tick."""
INK = {"light": "#1b1f24", "dark": "#e6e9ee"}
PAPER = {"light": "#ffffff", "dark": "#14181d"}


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points of one name; whiskers or a band from `low` to `high`."""

    name: str
    x: list[float | str]
    """Numbers, or names of groups of bars."""
    y: list[float]
    low: list[float] | None = None
    high: list[float] | None = None
    is_reference: bool = False
    """Whether it is not measured: a prediction, drawn as a thin dashed line."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes."""

    title: str = ""
    x_label: str
    y_label: str
    """With the unit."""
    series: list[Series]
    kind: Literal["lines", "points", "bars"] = "lines"
    x_log: bool = False
    y_log: bool = False
    levels: dict[str, float] = field(default_factory=dict)
    """Horizontal lines by name: a prediction, a baseline."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Panels side by side, and the sentence below them."""

    panels: list[Panel]
    caption: str
    """What is drawn, and what bands and whiskers are."""


def over_seeds(
    rows: Iterable[dict[str, Any]], *, x: str, y: str, by: str | None = None, name: str = ""
) -> list[Series]:
    """A series for each value of `by`: the mean of `y` at each `x`, with its 95 % interval.

    Rows that lack one of them are left out. Without `by`, one series with this name.
    """
    from elman.lab.verdicts import interval  # verdicts know experiments, which know figures

    groups: dict[str, dict[Any, list[float]]] = {}
    for row in rows:
        if row.get(x) is None or row.get(y) is None or (by and row.get(by) is None):
            continue
        points = groups.setdefault(str(row[by]) if by else name, {})
        points.setdefault(row[x], []).append(float(row[y]))
    series = []
    for group, points in groups.items():
        places = list(points) if any(isinstance(p, str) for p in points) else sorted(points)
        found = [_bounds(interval(points[place])) for place in places]
        mean, low, high = ([each[i] for each in found] for i in range(3))
        series.append(Series(name=group, x=places, y=mean, low=low, high=high))
    return series


def accuracies(
    rows: Iterable[dict[str, Any]], tasks: Mapping[str, str], *, by: str
) -> list[Series]:
    """Bars of the accuracy in each task, in percent; `tasks` has their names in the figure."""
    found = [
        {**row, "name": tasks[row["task"]], "percent": 100 * row["accuracy"]}
        for row in rows
        if "task" in row
    ]
    return over_seeds(found, x="name", y="percent", by=by)


def _bounds(found: tuple[float, float, float]) -> tuple[float, float, float]:
    """The interval of one value alone, which is infinite, is not drawn."""
    mean, low, high = found
    return found if math.isfinite(low) and math.isfinite(high) else (mean, mean, mean)


def draw(figure: Figure, path: Path, theme: Literal["light", "dark"] = "light") -> None:
    """Write a file; its suffix is the format."""
    data = picture(figure, path.suffix.removeprefix("."), theme)
    try:
        path.write_bytes(data)
    except OSError as error:
        raise explain(error, path) from error


def picture(figure: Figure, format: str, theme: Literal["light", "dark"] = "light") -> bytes:
    """Draw a figure: svg, png or pdf; the same bytes for the same figure."""
    made = new_figure(max(4.8, 4.2 * len(figure.panels)), 3.6)
    import matplotlib

    style: Any = {
        "text.color": INK[theme], "axes.edgecolor": INK[theme], "axes.labelcolor": INK[theme],
        "xtick.color": INK[theme], "ytick.color": INK[theme], "axes.facecolor": PAPER[theme],
        "svg.fonttype": "none", "svg.hashsalt": "elman", "font.size": 9, "axes.titlesize": 10,
        "legend.labelcolor": INK[theme],
    }  # fmt: skip
    with matplotlib.rc_context(style):
        made.set_facecolor(PAPER[theme])
        all_axes = made.subplots(1, len(figure.panels), squeeze=False)[0]
        for axes, panel in zip(all_axes, figure.panels, strict=True):
            _draw_panel(axes, panel, theme)
        written = io.BytesIO()
        # Without dates and versions, a figure drawn again is the same file.
        metadata = {"Date": None, "Creator": None} if format == "svg" else {}
        made.savefig(written, format=format, dpi=130, metadata=metadata or None)
    return written.getvalue()


def _draw_panel(axes: Any, panel: Panel, theme: str) -> None:
    axes.set_title(panel.title)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.2)
    if panel.x_log:
        axes.set_xscale("log")
        places = sorted({float(x) for series in panel.series for x in series.x if x != 0})
        if len(places) <= MOST_TICKS:
            ticks = _apart(places)
            axes.set_xticks(ticks, [f"{place:g}" for place in ticks])
            axes.minorticks_off()
    if panel.y_log:
        axes.set_yscale("log")
    if panel.kind == "bars":
        _draw_bars(axes, panel.series, theme)
    else:
        num_references = 0
        for number, series in enumerate(panel.series):
            if series.is_reference:
                num_references += 1
                style = {"linewidth": 1, "linestyle": DASHES[num_references % 4]}
                axes.plot(series.x, series.y, label=series.name, color=INK[theme], **style)
            else:
                _draw_line(axes, series, number, joined=panel.kind == "lines")
    for number, (name, level) in enumerate(panel.levels.items()):
        dash = DASHES[1 + number % 3]
        axes.axhline(level, color=INK[theme], linewidth=1, linestyle=dash, label=name)
    if len(panel.series) + len(panel.levels) > 1:
        style = {"facecolor": PAPER[theme], "edgecolor": "none", "framealpha": 0.85, "fontsize": 8}
        if panel.kind == "bars":  # above them
            axes.margins(y=0.15 + 0.06 * (len(panel.series) + len(panel.levels)))
            style |= {"loc": "upper center", "ncols": 2}
        axes.legend(**style)


def _apart(places: Sequence[float]) -> list[float]:
    """Leave out ticks whose labels would touch on a logarithmic axis; short labels stay."""
    least = 0.08 * math.log(places[-1] / places[0])
    kept: list[float] = []
    for place in sorted(places, key=lambda place: len(f"{place:g}")):
        if all(abs(math.log(place / other)) >= least for other in kept):
            kept.append(place)
    return sorted(kept)


def _draw_line(axes: Any, series: Series, number: int, *, joined: bool) -> None:
    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    many = len(series.x) > 30
    style = {"color": colour, "label": series.name, "linewidth": 1.4}
    style |= {"marker": "" if many and joined else marker, "markersize": 4}
    style |= {"linestyle": DASHES[number // len(COLOURS) % 4] if joined else ""}
    axes.plot(series.x, series.y, **style)
    if series.low is None or series.high is None:
        return
    if many or joined:
        axes.fill_between(series.x, series.low, series.high, color=colour, alpha=0.18, linewidth=0)
    else:
        axes.errorbar(series.x, series.y, _whiskers(series), color=colour, fmt="none", capsize=3)


def _draw_bars(axes: Any, all_series: Sequence[Series], theme: str) -> None:
    names = list(dict.fromkeys(str(x) for series in all_series for x in series.x))
    width = 0.8 / len(all_series)
    for number, series in enumerate(all_series):
        shift = (number - (len(all_series) - 1) / 2) * width
        places = [names.index(str(x)) + shift for x in series.x]
        whiskers = _whiskers(series) if series.low is not None else None
        colour = COLOURS[number % len(COLOURS)]
        axes.bar(places, series.y, width, color=colour, label=series.name)
        if whiskers is not None:
            axes.errorbar(
                *(places, series.y, whiskers), color=INK[theme], fmt="none", capsize=3, linewidth=1
            )
    axes.set_xticks(range(len(names)), names, rotation=20 if len(names) > 5 else 0)


def _whiskers(series: Series) -> list[list[float]]:
    assert series.low is not None
    assert series.high is not None
    down = [y - low for y, low in zip(series.y, series.low, strict=True)]
    up = [high - y for y, high in zip(series.y, series.high, strict=True)]
    return [down, up]
