"""The place of this process among those that torchrun started for one training run.

torchrun, and other launchers, number processes in environment variables. Without these variables a
process is on its own.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The number of a process, and how many there are."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """The number among the processes of this machine."""
    local_size: int = 1
    job: str | None = None
    """Names the command that started the processes, also when it starts them again; None: there is
    none."""


def launch() -> Launch:
    """Read the variables of torchrun."""
    if not all(os.environ.get(name) for name in VARIABLES):
        return Launch()
    return Launch(
        rank=_number("RANK", 0),
        size=_number("WORLD_SIZE", 1),
        local_rank=_number("LOCAL_RANK", 0),
        local_size=_number("LOCAL_WORLD_SIZE", 1),
        job=_job(),
    )


def host() -> str:
    return socket.gethostname()


def _number(name: str, default: int) -> int:
    return int(os.environ.get(name) or default)


def _job() -> str:
    """torchrun's --rdzv-id or, without one, the process that started this one."""
    named = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    if named != "none":
        return named
    parent, began = os.getppid(), ""
    with suppress(OSError, IndexError):  # without /proc, the number alone
        # The name of the program, in brackets, may have spaces; the 22nd field is its start.
        began = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]
    return f"{host()} {parent} {began}".strip()
