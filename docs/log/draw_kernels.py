"""Draws gpu-kernels.svg from gpu-kernels.jsonl: time per step of replayed layers, ours and torch's.

python docs/log/draw_kernels.py
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
matplotlib.rcParams["svg.hashsalt"] = "elman"
rows = [json.loads(line) for line in (HERE / "gpu-kernels.jsonl").read_text().splitlines()]

figure, axes = plt.subplots(1, 2, figsize=(11, 4), sharey=True)
for axis, cell in zip(axes, ("lstm", "gru"), strict=True):
    found = [
        row
        for row in rows
        if row["name"] == f"{cell} layer, graphed" and row["settings"]["dtype"] == "bfloat16"
    ]
    places = range(len(found))
    axis.bar([x - 0.2 for x in places], [row["ours"] for row in found], 0.4, label="Elman")
    axis.bar(
        [x + 0.2 for x in places], [row["peer"] for row in found], 0.4, label=f"nn.{cell.upper()}"
    )
    for x, row in zip(places, found, strict=True):
        top = max(row["ours"], row["peer"])
        axis.text(x, top + 0.8, f"{row['ratio']:.2f}x", ha="center", fontsize=8)
    sizes = ("{hidden_size}\n{batch_size}\n{num_steps}".format(**row["settings"]) for row in found)
    axis.set_xticks(list(places), list(sizes), fontsize=8)
    axis.set_xlabel("units, batch, steps")
    axis.legend(frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
axes[0].set_ylabel("microseconds per step, forward and backward")
figure.tight_layout()
figure.savefig(HERE / "gpu-kernels.svg", metadata={"Date": None})
