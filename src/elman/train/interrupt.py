"""Let Ctrl-C and SIGTERM end the loop after its current update, so that it can save."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupt:
    """While entered, store the first SIGINT or SIGTERM in `requested`; a second one acts as usual.

    Only the main thread can handle signals: in another one this does nothing.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.requested: signal.Signals | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._previous = {s: signal.signal(s, self._remember) for s in self.SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._restore()

    @property
    def what(self) -> str:
        """What happened, for messages."""
        return "Stopped by SIGTERM" if self.requested is signal.SIGTERM else "Interrupted"

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.requested = signal.Signals(number)
        self._restore()

    def _restore(self) -> None:
        # An abandoned generator may be closed in another thread, which cannot set handlers.
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._previous.items():
                signal.signal(number, handler)
            self._previous = {}
