"""Where a run goes, and what it reads, when nobody says; this needs no torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

DEFAULT_CORPUS = "python-docs"
"""What is learnt from where no text is given: it comes with Python."""


def new_run_folder(task: str, data: Sequence[str]) -> Path:
    """A folder under runs/ that is not there yet, named for the task and the text."""
    name = Path(data[0] if data else DEFAULT_CORPUS).name
    stem = re.sub(r"[^\w-]+", "-", name.split(".")[0]).strip("-") or "text"
    folder = Path("runs") / f"{task}-{stem}"
    number = 2
    while folder.exists():
        folder = Path("runs") / f"{task}-{stem}-{number}"
        number += 1
    return folder
