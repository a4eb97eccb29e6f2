"""Draw a run's curves: python docs/log/draw.py metrics.jsonl picture.svg TITLE.

Needs the extra `plots`.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

metrics, picture, title = sys.argv[1:]
rows = [json.loads(line) for line in Path(metrics).read_text().splitlines()]
train = [(r["tokens"] / 1e6, math.exp(r["loss"])) for r in rows if r["kind"] == "step"]
valid = [(r["tokens"] / 1e6, r["valid_perplexity"]) for r in rows if r["kind"] == "valid"]
rates = [(r["tokens"] / 1e6, r["learning_rate"]) for r in rows if "learning_rate" in r]

plt.rcParams["svg.hashsalt"] = "elman"  # the same picture from the same metrics
figure, (top, bottom) = plt.subplots(
    2, 1, figsize=(7, 5), sharex=True, height_ratios=[3, 1], layout="constrained"
)
top.plot(*zip(*train, strict=True), color="#9aa5b1", linewidth=1, label="training (with dropout)")
top.plot(*zip(*valid, strict=True), color="#b5482f", linewidth=1.5, label="validation")
top.set_yscale("log")
top.set_yticks([50, 60, 80, 100, 150, 200, 300], ["50", "60", "80", "100", "150", "200", "300"])
top.minorticks_off()
top.set_ylabel("perplexity")
top.set_title(title, fontsize=11)
top.legend(frameon=False)
bottom.plot(*zip(*rates, strict=True), color="#3b6ea5", linewidth=1.5)
bottom.set_yscale("log")
bottom.set_ylabel("learning rate")
bottom.set_xlabel("million tokens read")
for axis in (top, bottom):
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", alpha=0.2)
figure.savefig(picture, metadata={"Date": None})
