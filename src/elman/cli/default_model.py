"""What commands do without MODEL: use a small model that comes with Elman, and say so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from elman.runs.packaged import first
from elman.terminal.console import talk_notes
from elman.terminal.options import argument
from elman.text.records import SHEETS
from elman.text.tables import suffix_of

MaybeModel = Annotated[
    str | None,
    argument("[MODEL]", "A run folder, an ARPA file, a mixture, or a name of `elman models`."),
]


def model_or_default(
    model: str | None, text: str | None, defaults: Sequence[str], *, reads_tables: bool = False
) -> tuple[str, str | None]:
    """Return MODEL and the argument after it; a sole argument with spaces, or -, is no MODEL, and
    for a command that `reads_tables`, the name of a table is none.
    """
    if model is not None:
        is_text = model == "-" or (" " in model and not {"*", "+"} & set(model))
        is_text = is_text and not Path(model).exists()
        is_table = reads_tables and suffix_of(Path(model)) in SHEETS
        if text is not None or not (is_text or is_table):
            return model, text
        text = model
    default = first(defaults)
    talk_notes([f"no MODEL given: using {default}, which comes with Elman (`elman models`)"])
    return default, text
