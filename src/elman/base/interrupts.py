"""Ctrl-C ends the program with exit code 130 and one line, whatever it is doing.

KeyboardInterrupt is raised as usual, so that temporary files are removed, but not everywhere: an
import can swallow it or abort, and half a cleanup leaves files. During an import, the process ends
at once if it has nothing to remove; else, and during a cleanup, the exception waits. If other code
swallows it, it is raised again.

This module imports little: it is the first that the program runs.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

INTERRUPTED = 130
"""Exit code."""
_PAUSE = 0.02  # seconds between two attempts to raise
_CLEANUP = ("elman.base.files", "elman.runs.lock", "elman.runs.new_folder")
# Timers are missing on Windows: there, KeyboardInterrupt is raised at once.
_TIMER = getattr(signal, "setitimer", None)


def guarded(program: Callable[[], None]) -> Callable[[], None]:
    """Make a function that runs a program and ends the process on Ctrl-C."""

    def run() -> None:
        try:
            # A shell starts background jobs with SIGINT ignored; leave it so.
            if _TIMER and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                signal.signal(signal.SIGALRM, _raise_when_safe)
                signal.signal(signal.SIGINT, _interrupt)
            program()
        except KeyboardInterrupt:
            _end()
        except SystemExit as ended:
            if ended.code == INTERRUPTED:
                _end()
            raise
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # while the interpreter shuts down

    return run


def handled() -> None:
    """Stop raising KeyboardInterrupt."""
    if _TIMER and signal.getsignal(signal.SIGALRM) is _raise_when_safe:
        _TIMER(signal.ITIMER_REAL, 0)


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))  # the next one ends at once
    _try(lambda: os.write(2, b"interrupted\n"))  # stderr may be closed
    _raise_when_safe(number, frame)


def _raise_when_safe(number: int, frame: FrameType | None) -> None:
    assert _TIMER is not None
    _TIMER(signal.ITIMER_REAL, _PAUSE)
    error, importing = sys.exc_info()[1], False
    while error is not None:
        if isinstance(error, KeyboardInterrupt):  # it is being handled
            return
        error = error.__context__
    while frame is not None:
        if frame.f_globals.get("__name__") in _CLEANUP:
            return
        importing |= frame.f_code.co_filename.startswith("<frozen importlib")
        frame = frame.f_back
    if not importing:
        raise KeyboardInterrupt
    files = sys.modules.get("elman.base.files")
    if not getattr(files, "is_writing", bool)():
        _end()


def _end() -> None:
    """End the process without waiting for threads or unloading libraries, which may abort."""
    import atexit

    handled()
    _try(lambda: sys.stdout.flush())
    _try(atexit._run_exitfuncs)
    # The exception may have been raised before a `with` could take note of its folder.
    _try(lambda: sys.modules["elman.base.files"].remove_own())
    os._exit(INTERRUPTED)


def _try(act: Callable[[], object]) -> None:
    # Not contextlib.suppress: contextlib may be half imported.
    try:
        act()
    except BaseException:
        return
