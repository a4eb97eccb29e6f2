"""Draws h200.svg from h200.jsonl: scans beside public ones, and two layers in turn or together.

python docs/log/draw_h200.py
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
matplotlib.rcParams["svg.hashsalt"] = "elman"
rows = [json.loads(line) for line in (HERE / "h200.jsonl").read_text().splitlines()]
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))

SCANS = {
    "Elman, graphed": "ours, graphed",
    "jax": "jax.lax.associative_scan",
    "log space, graphed": "log space, graphed",
    "torch, graphed": "torch associative_scan {mode}, graphed",
}
found = [row for row in rows if row.get("part") == "scan"]
for number, (label, key) in enumerate(SCANS.items()):
    for place, row in enumerate(found):
        mode = "pointwise" if key.format(mode="pointwise") in row["us"] else "generic"
        microseconds = row["us"][key.format(mode=mode)]
        at = place + 0.2 * (number - 1.5)
        shown = label if place == 0 else None
        left.bar(at, microseconds, 0.18, color=f"C{number}", label=shown)
        left.text(at, microseconds * 1.05, f"{microseconds:,.0f}", ha="center", fontsize=8)
left.set_yscale("log")
left.set_ylabel("microseconds, forward and backward")
sizes = ["{steps} steps, batch {batch}, {units} units".format(**row) for row in found]
left.set_xticks(range(len(found)), sizes, fontsize=8)

sides = [row for row in rows if row.get("part") == "side by side" and row["batch"] == 20]
units = [row["units"] for row in sides]
for label, key in (
    ("in turn", "in_turn_us"),
    ("together", "together_us"),
    ("one alone", "alone_us"),
):
    right.plot(units, [row[key] for row in sides], marker="o", label=label)
right.set_xticks(units)
right.set_xlabel("units of each of two LSTM layers, batch 20")
right.set_ylabel("microseconds per step, forward")
right.set_ylim(bottom=0)
for axis in (left, right):
    axis.legend(frameon=False, fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
figure.tight_layout()
figure.savefig(HERE / "h200.svg", metadata={"Date": None})
