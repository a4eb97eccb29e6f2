"""Draw what `elman bench ngram --curve --json` printed: draw_curve.py rows.jsonl picture.svg.

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

source, picture = sys.argv[1:]
rows = [json.loads(line) for line in Path(source).read_text(encoding="utf-8").splitlines()]
tokens = [row["settings"]["tokens"] for row in rows]
costs = [row["ours"] for row in rows]
# The law goes through the middle of the points: at the small end the start of the program counts.
middle = len(rows) // 2
law = [costs[middle] * math.log(n) / math.log(tokens[middle]) for n in tokens]

plt.rcParams["svg.hashsalt"] = "elman"  # the same picture from the same rows
figure, axis = plt.subplots(figsize=(6, 3.5), layout="constrained")
axis.plot(tokens, costs, "o-", color="#b5482f", label="text to queries")
axis.plot(tokens, law, "--", color="#9aa5b1", label="n log n")
axis.set_xscale("log")
axis.set_ylim(0)
axis.set_xlabel("tokens of text")
axis.set_ylabel("μs per token")
axis.legend(frameon=False)
axis.spines[["top", "right"]].set_visible(False)
figure.savefig(picture, metadata={"Date": None})
