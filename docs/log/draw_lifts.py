"""Draw the layers' weights that `elman bench lifts --json` printed: draw_lifts.py rows.jsonl
picture.svg.

`elman bench lifts --out DIR --plot` draws the same where the runs are. Needs the extra `plots`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from elman.evaluate.pictures import draw_layer_weights

source, picture = sys.argv[1:]
rows = [json.loads(line) for line in Path(source).read_text(encoding="utf-8").splitlines()]
draw_layer_weights({row["name"]: row["layer_weights"]["input"] for row in rows}, Path(picture))
