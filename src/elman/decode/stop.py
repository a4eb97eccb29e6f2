"""Find stop sequences in text that arrives in pieces.

A stop sequence may span several tokens, so text that could be the beginning of one is held back.
"""

from __future__ import annotations

from collections.abc import Sequence

from elman.base.errors import UsageError


class StopMatcher:
    """Pass text on up to, not including, the first stop sequence.

    First is the one that ends first; of two that end together, the longer.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if any(not stop for stop in stops):
            raise UsageError(
                "a stop sequence cannot be empty", "leave it out, or write at least one character"
            )
        self.stopped = False
        self._stops = tuple(stops)
        self._held = ""

    @property
    def has_stops(self) -> bool:
        return bool(self._stops)

    def push(self, piece: str) -> str:
        """Add a piece; return the text that is certain to precede any stop sequence."""
        if self.stopped:
            return ""
        if not self._stops:
            return piece
        text = self._held + piece
        found = [
            (text.find(stop) + len(stop), text.find(stop)) for stop in self._stops if stop in text
        ]
        if found:
            self.stopped = True
            self._held = ""
            return text[: min(found)[1]]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """Return the text held back, when no more pieces come."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of `stop`."""
    return next(
        (n for n in range(min(len(text), len(stop) - 1), 0, -1) if stop.startswith(text[-n:])), 0
    )
