"""What makes programs start faster: fewer calls for memory, fewer searches for garbage.

This module imports little: it is among the first that the program runs.
"""

from __future__ import annotations

import gc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_STACK_SIZE = 1 << 15
"""Places on the stack, of 8 bytes, that are more than a chunk has: the next size has room."""
_NEW_OBJECTS = 10_000
"""With 100,000 the start-up takes as long. Models in reference cycles would stay in memory."""


def with_room(function: Callable[[], None]) -> Callable[[], None]:
    """Have CPython take memory for the calls inside `function` at once.

    Calls have their variables in chunks of 16 KiB, and a chunk goes back to the system when the
    call that began it returns. Where a loop calls across the end of a chunk, each call maps and
    unmaps memory: 24,000 times while numba was imported, about a twentieth of the start-up.
    Which loop that is depends on how deep the calls are. A function that claims a large stack
    begins a large chunk.
    """
    code = getattr(function, "__code__", None)
    if code is not None:
        function.__code__ = code.replace(co_stacksize=_STACK_SIZE)
    return function


def collect_rarely() -> None:
    """Search for garbage less often than after every 700 new objects.

    Importing makes hundreds of thousands that stay: searching took about a twentieth of the
    start-up.
    """
    gc.set_threshold(_NEW_OBJECTS, *gc.get_threshold()[1:])
