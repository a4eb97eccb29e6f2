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

    def push(self, id: int) -> str:
        """The text that `id` makes certain: often one word, sometimes nothing yet."""
        glue = b"" if self._previous is None else self._glue(self._previous, id)
        self._previous = id
        return self._decoder.decode(glue + self._pieces[id])

    def finish(self) -> str:
        """What is left: U+FFFD where a character stays unfinished, otherwise nothing."""
        return self._decoder.decode(b"", final=True)
