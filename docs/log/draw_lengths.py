"""Draw BLEU by length from the JSON of `elman evaluate A SOURCE TARGET --beside B --json`.

python docs/log/draw_lengths.py by-length.json picture.svg NAME..., where the machine that measured
could not draw: `--by-length` of the same command draws the same picture at once. Needs the extra
`plots`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import matplotlib as mpl

from elman.tasks.translation.evaluation import LengthGroup
from elman.tasks.translation.pictures import draw_by_length

found, picture, *names = sys.argv[1:]
models = json.loads(Path(found).read_text(encoding="utf-8"))
groups = {
    name: [LengthGroup(**group) for group in model["by_length"]]
    for name, model in zip(names, models, strict=True)
}
os.environ["SOURCE_DATE_EPOCH"] = "0"  # this and the salt: the same picture from the same figures
with mpl.rc_context({"svg.hashsalt": "elman"}):
    draw_by_length(groups, Path(picture))
