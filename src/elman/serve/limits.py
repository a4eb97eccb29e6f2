"""Limits on requests. The options of `elman serve` are made from the fields with metadata."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any


def _limit(default: Any, metavar: str = "N", least: float = 1, flag: str | None = None) -> Any:
    return field(default=default, metadata={"metavar": metavar, "min": least, "flag": flag})


@dataclass(frozen=True, kw_only=True)
class Limits:
    """A request over a limit is refused with a 4xx answer."""

    max_body_bytes: int = _limit(4 << 20, "BYTES", flag="--max-body")
    """Largest request body."""
    max_body_seconds: float = 20.0
    """Time for a body to arrive."""
    max_depth: int = 16
    """Nesting of lists and objects in a body."""
    max_prompt_tokens: int = _limit(1 << 16, flag="--max-prompt")
    """Longest prompt in tokens."""
    max_tokens: int = _limit(8192)
    """Longest continuation in tokens."""
    max_choices: int = _limit(256)
    """Limit on continuations per request."""
    max_streams: int = _limit(256)
    """Limit on concurrent continuations; others wait."""
    max_waiting: int = _limit(1024)
    """Limit on waiting continuations."""
    max_seconds: float = _limit(300.0, "S", 0.1)
    """Time limit of a request in seconds."""
    max_request_memory: int = _limit(256 << 20, "BYTES")
    """Memory limit of a request."""
    max_memory: int = _limit(1 << 30, "BYTES")
    """Memory limit of all requests together."""

    def divided(self, number: int) -> Limits:
        """The limits of each of `number` processes: together they allow as much as one would.

        A request that one process would take is not refused: no limit falls below its size.
        """
        return replace(
            self,
            max_streams=-(-self.max_streams // number),
            max_waiting=min(self.max_waiting, max(self.max_waiting // number, self.max_choices)),
            max_memory=min(
                self.max_memory, max(self.max_memory // number, self.max_request_memory)
            ),
        )
