"""Decode ids one at a time, as a model produces them."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence


class StreamDecoder:
    """Decode ids incrementally, holding back the bytes of an unfinished character."""

    def __init__(
        self, pieces: Sequence[bytes], glue: Callable[[int, int], bytes], after: int | None = None
    ) -> None:
        self._pieces = pieces
        self._glue = glue
        self._previous = after
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, *ids: int) -> str:
        """Return the text that `ids` complete: often one word each, sometimes nothing yet."""
        pieces = []
        for id in ids:
            if self._previous is not None:
                pieces.append(self._glue(self._previous, id))
            pieces.append(self._pieces[id])
            self._previous = id
        return self._decoder.decode(b"".join(pieces))

    def finish(self) -> str:
        """Return the rest: U+FFFD if a character is unfinished, else nothing."""
        return self._decoder.decode(b"", final=True)
