"""Draw the curves that `elman bench equal-time --out DIR` keeps: draw_cells.py cells.jsonl picture.svg.

Needs the extra `plots`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

source, picture = sys.argv[1:]
rows = [json.loads(line) for line in Path(source).read_text().splitlines()]
rows.sort(key=lambda row: row["perplexity"])

plt.rcParams["svg.hashsalt"] = "elman"  # the same picture from the same rows
figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
colours = plt.get_cmap("tab10")
for number, row in enumerate(rows):
    steps, perplexities = zip(*row["curve"], strict=True)
    seconds = [60 * row["plan"]["minutes"] * step / row["steps"] for step in steps]
    label = f"{row['cell']} {row['perplexity']:.2f}"
    axis.plot(seconds, perplexities, "o-", ms=3, color=colours(number), label=label)
axis.set_yscale("log")
ticks = [4, 5, 6, 7, 8, 10, 12]
axis.set_yticks(ticks, list(map(str, ticks)))
axis.minorticks_off()
axis.set_xlabel("seconds of training on one idle core")
axis.set_ylabel("validation perplexity per character")
axis.spines[["top", "right"]].set_visible(False)
axis.grid(axis="y", alpha=0.2)
axis.legend(frameon=False, ncols=2)
figure.savefig(picture, metadata={"Date": None})
