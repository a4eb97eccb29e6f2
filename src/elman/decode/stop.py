"""Stop sequences in text that arrives piece by piece.

A stop sequence may begin in one token and end in another, so text that could be the beginning of
one is held back until it turns out not to be. Works on strings alone; the edge puts it behind the
tokenizer's stream decoder.
"""

from __future__ import annotations

from collections.abc import Sequence

from elman.base.errors import UsageError


class StopMatcher:
    """Lets text through up to the first stop sequence, whatever pieces it comes in.

    The first is the one that is complete first; of two that end together, the longer. The stop
    sequence itself is not let through.
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
        """Whether there is anything to look for."""
        return bool(self._stops)

    def push(self, piece: str) -> str:
        """Take the next piece; return the text that certainly comes before any stop sequence."""
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
        """What was held back, once nothing more comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` with which `stop` begins, short of all of it."""
    return next(
        (n for n in range(min(len(text), len(stop) - 1), 0, -1) if stop.startswith(text[-n:])), 0
    )
