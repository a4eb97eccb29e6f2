"""Draw what `elman bench counting --json` printed: draw_counting.py rows.jsonl picture.svg.

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
rows = [json.loads(line)["settings"] for line in Path(source).read_text().splitlines()]
panels = {
    "CPU time, μs per token": lambda row: row["cpu_seconds"] / row["tokens"] * 1e6,
    "peak memory, GB": lambda row: row["peak_bytes"] / 1e9,
    "peak disk, bytes per token": lambda row: row["peak_disk"] / row["tokens"],
}

plt.rcParams["svg.hashsalt"] = "elman"  # the same picture from the same rows
figure, axes = plt.subplots(1, 3, figsize=(9, 3), layout="constrained")
for axis, (name, value) in zip(axes, panels.items(), strict=True):
    for order, colour in ((5, "#b5482f"), (4, "#2f6fb5")):
        some = sorted((row for row in rows if row["order"] == order), key=lambda row: row["tokens"])
        tokens = [row["tokens"] for row in some]
        axis.plot(tokens, list(map(value, some)), "o-", color=colour, label=f"order {order}")
    axis.set_xscale("log")
    axis.set_ylim(0)
    axis.set_title(name, fontsize=10)
    axis.set_xlabel("tokens of text")
    axis.spines[["top", "right"]].set_visible(False)
axes[1].axhline(4 * 1024**3 / 1e9, ls="--", color="#9aa5b1", label="--memory 4G")
axes[1].set_ylim(0, 4.7)
for axis in axes[:2]:
    axis.legend(frameon=False)
figure.savefig(picture, metadata={"Date": None})
