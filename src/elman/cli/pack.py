"""`elman pack` and `elman unpack`: carry a run to another machine in small files."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Annotated

from elman.base.errors import UsageError
from elman.terminal.console import number, result, result_json, size, table, talk_notes
from elman.terminal.options import Json, argument, option


def pack(
    run: Annotated[Path, argument("RUN", "The folder of a run, finished or not.")],
    out: Annotated[Path, argument("OUT", "A folder for the parts.")],
    part_mib: Annotated[float, option("N", "Largest size of a part in MiB.", min=0.001)] = 16.0,
    exact: Annotated[bool, option(None, "Keep 32 bits per number.", "--exact")] = False,
    small: Annotated[
        bool, option(None, "Round more: about 9 bits per weight, 4 per other number.", "--small")
    ] = False,
    json: Json = False,
) -> None:
    """Pack a run into small files from which it can be resumed.

    A run that goes on is packed as of its last checkpoint. Numbers are rounded to 16 bits, and
    tensors that occur twice are stored once.
    """
    from elman.runs.packing import MEBIBYTE
    from elman.runs.packing import pack as write

    if not isfinite(part_mib):
        raise UsageError(f"--part-mib cannot be {part_mib}", "use a finite number")
    packed = write(run, out, part_bytes=int(part_mib * MEBIBYTE), exact=exact, small=small)
    if packed.going_on is not None:
        note = f"another process has the run: packed as it was after update {packed.going_on:,}"
        talk_notes([f"{note} (--set training.checkpoint_seconds=N: how often it is saved)"])
    if json:
        parts = [str(part) for part in packed.parts]
        found = {"parts": parts, "bytes": packed.num_bytes, "unpacked": packed.num_unpacked}
        result_json(found | {"going_on": packed.going_on})
        return
    rows = [("parts", number(len(packed.parts))), ("size", size(packed.num_bytes))]
    rows += [("unpacked", size(packed.num_unpacked)), ("written to", str(out))]
    result(table(rows))


def unpack(
    parts: Annotated[list[Path], argument("PART...", "The parts, or the folder that has them.")],
    out: Annotated[Path, option("DIR", "The run folder to make.", show_default=False)],
) -> None:
    """Restore a packed run.

    `elman train ... --resume` continues it.
    """
    from elman.runs.packing import unpack as read

    read(parts, out)
    result(str(out))
