"""Draw time and speed by the number of threads: draw_cores.py rows.jsonl picture.svg.

The rows are those of sixteen-cores-counting.jsonl. Needs the extra `plots`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

source, picture = sys.argv[1:]
rows = [json.loads(line) for line in Path(source).read_text(encoding="utf-8").splitlines()]
COLOURS = {"before": "#9aa5b1", "after": "#b5482f"}


def points(what: str, value: str, **where: str) -> list[tuple[int, float]]:
    """Threads and a value of each; the first row where a number of threads was measured twice."""
    found: dict[int, float] = {}
    for row in rows:
        if row["what"] == what and where.items() <= row.items():
            found.setdefault(row["threads"], row[value])
    return sorted(found.items())


plt.rcParams["svg.hashsalt"] = "elman"  # the same picture from the same rows
figure, axes = plt.subplots(1, 3, figsize=(9, 3), layout="constrained")
for version, colour in COLOURS.items():
    for axis, text in zip(axes, ("ten", "hundred"), strict=False):
        for to, style in (("queries", "o-"), ("arpa", "s--")):
            some = points("program", "seconds", version=version, text=text, to=to)
            if some:
                axis.plot(*zip(*some, strict=True), style, color=colour, label=f"{version}, {to}")
    some = [(n, rate / 1e6) for n, rate in points("scoring", "rate_alone", version=version)]
    axes[2].plot(*zip(*some, strict=True), "o-", color=colour, label=version)
some = [(n, n * some[0][1]) for n, _ in some]
axes[2].plot(*zip(*some, strict=True), ":", color="#3b6ea5", label="threads x one")
titles = ("10 million tokens, s", "100 million tokens, s", "scoring, million tokens/s")
for axis, title in zip(axes, titles, strict=True):
    axis.set_title(title, fontsize=10)
    axis.set_xlabel("threads")
    axis.set_xticks([1, 2, 4, 8, 13])
    axis.set_ylim(0)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)
figure.savefig(picture, metadata={"Date": None})
