"""Turning ids into text one at a time, as a model produces them."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence


class StreamDecoder:
    """Text that is certain after each token; bytes of an unfinished character are held back."""

    def __init__(
        self, pieces: Sequence[bytes], glue: Callable[[int, int], bytes], after: int | None = None
    ) -> None:
        self._pieces = pieces
        self._glue = glue
        self._previous = after
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, *ids: int) -> str:
        """The text that `ids` make certain: often one word each, sometimes nothing yet."""
        pieces = []
        for id in ids:
            if self._previous is not None:
                pieces.append(self._glue(self._previous, id))
            pieces.append(self._pieces[id])
            self._previous = id
        return self._decoder.decode(b"".join(pieces))

    def finish(self) -> str:
        """What is left: U+FFFD where a character stays unfinished, otherwise nothing."""
        return self._decoder.decode(b"", final=True)
