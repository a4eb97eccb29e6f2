"""What a server serves, and to whom: the options of `elman serve`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from elman.base.threads import usable_cores
from elman.serve.limits import Limits

OnStart = Callable[[str, Iterable[str], Iterable[str]], None]
"""Called with the address, the models' names and notes when a server listens."""


@dataclass(frozen=True, kw_only=True)
class Serving:
    models: Sequence[str]
    host: str = "127.0.0.1"
    """Where to listen; it also decides which names are the server's own."""
    port: int = 8000
    limits: Limits = field(default_factory=Limits)
    api_key: str | None = field(default=None, repr=False)
    allow_hosts: Sequence[str] = ()
    cors: Sequence[str] = ()
    runs: Path | None = None
    """A folder of runs whose curves the studio shows."""
    lab: bool = False
    """Whether clients may run experiments."""
    threads: int = 0
    """0: half the cores. The event loop needs a core too; with more threads than cores, threads
    wait for each other."""
    device: str = "auto"
    quantise: str | None = None
    ways: Mapping[str, Any] = field(default_factory=dict)
    """Ways in which requests may ask a model to adapt, with settings."""

    @property
    def num_threads(self) -> int:
        return self.threads or max(1, usable_cores() // 2)

    def of_each(self, num_workers: int) -> Serving:
        """The options of each of several processes, which together keep to the limits."""
        threads = self.threads or max(1, self.num_threads // num_workers)
        return replace(self, threads=threads, limits=self.limits.divided(num_workers))
