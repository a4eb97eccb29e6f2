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
    "Elman, graphed": ("ours", "log space, graphed"),
    "jax": ("peer", "jax.lax.associative_scan, graphed"),
    "log space, graphed": ("peer", "log space, graphed"),
    "torch, graphed": ("peer", "torch's associative_scan, generic, graphed"),
}
found = {
    (row["name"].removeprefix("scan beside "), row["settings"]["num_steps"]): row
    for row in rows
    if row.get("name", "").startswith("scan beside ")
}
sizes = {row["settings"]["num_steps"]: row["settings"] for row in found.values()}
for number, (label, (side, name)) in enumerate(SCANS.items()):
    for place, num_steps in enumerate(sizes):
        if (name, num_steps) not in found:
            continue
        microseconds = num_steps * found[name, num_steps][side]
        at = place + 0.2 * (number - 1.5)
        shown = label if place == 0 else None
        left.bar(at, microseconds, 0.18, color=f"C{number}", label=shown)
        left.text(at, microseconds * 1.05, f"{microseconds:,.0f}", ha="center", fontsize=8)
left.set_yscale("log")
left.set_ylabel("microseconds, forward and backward")
names = [
    "{num_steps:,} steps, batch {batch_size}, {hidden_size:,} units".format(**size)
    for size in sizes.values()
]
left.set_xticks(range(len(names)), names, fontsize=8)

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
