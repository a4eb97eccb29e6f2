"""How much memory requests may take: estimated before they start, one by one and all together.

A request takes its share in steps: the body, then what its numbers ask for, such as continuations
times tokens times log probabilities. Estimates of tokens, log probabilities, surprisal and bodies
are above what was measured with a small word model; the others are computed from sizes of objects.
"""

from __future__ import annotations

from collections.abc import Callable

from elman.base.errors import UsageError
from elman.serve.limits import Limits
from elman.serve.refusals import Overloaded

TOKEN_BYTES = 112
"""A generated token with its log probability, and its text."""
CELL_BYTES = 304
"""A log probability of an answer with its token: as numbers, and then as JSON."""
ROW_BYTES = 1536
"""The surprisal of a token or word: its row, and then its JSON."""
NUMBER_BYTES = 112
"""A number of a vector: as such, and then as JSON."""
BASE64_BYTES = 16
"""A number of a vector: as such, in base64, and then in the JSON."""
CHARACTER_BYTES = 10
"""A character that is sent back: as such, and then as JSON, in which it may take six bytes."""
BODY_FACTOR = 16
"""Bytes for a byte of a body once it is parsed; texts take less, lists of numbers all of it."""
BRACKET_BYTES = 256
"""A list or object in a body, beside its content."""
LARGE_BYTES = 16 << 20
"""Requests from this size on leave free memory behind that is worth returning to the system."""


class Memory:
    """The estimated bytes of all open requests. The event loop's thread alone uses it."""

    def __init__(self, limits: Limits, on_large_end: Callable[[], None] = lambda: None) -> None:
        """`on_large_end` is called when a large request has ended, `on_full` when all is taken."""
        self.max_request = min(limits.max_request_memory, limits.max_memory)
        self.max_all = limits.max_memory
        self.used = 0
        self.on_large_end = on_large_end
        self.on_full: Callable[[], None] = lambda: None

    def open(self) -> Share:
        return Share(self)


class Share:
    """The memory of one request; released when everyone who holds it has closed it."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._holders = 1
        self.num_bytes = 0

    def take(self, num_bytes: int, advice: str = "send less text") -> None:
        """Add bytes to the request; `advice` says which numbers to lower if they are too many."""
        memory, total = self._memory, self.num_bytes + num_bytes
        if total > memory.max_request:
            limit = f"(limit {_megabytes(memory.max_request)}, --max-request-memory)"
            raise UsageError(
                f"the request would take about {_megabytes(total)} of memory {limit}", advice
            )
        if memory.used + num_bytes > memory.max_all:
            memory.on_full()
            raise Overloaded("other requests take all the memory there is", "try again in a moment")
        memory.used += num_bytes
        self.num_bytes = total

    def hold(self) -> Share:
        self._holders += 1
        return self

    def close(self) -> None:
        self._holders -= 1
        if self._holders == 0:
            self._memory.used -= self.num_bytes
            if self.num_bytes >= LARGE_BYTES:
                self._memory.on_large_end()


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.0f} MB"
