"""Decode ids one at a time, as a model produces them."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Collection, Sequence


class StreamDecoder:
    """Decode ids incrementally, holding back the bytes of an unfinished character."""

    def __init__(
        self,
        pieces: Sequence[bytes],
        glue: Callable[[int, int], bytes],
        after: int | None = None,
        begins: Collection[int | None] = (),
    ) -> None:
        """`begins` are the tokens after which a space is dropped; None: that of a new text."""
        self._pieces = pieces
        self._begins = begins
        self._glue = glue
        self._previous = after
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, *ids: int) -> str:
        """Return the text that `ids` complete: often one word each, sometimes nothing yet."""
        pieces = []
        for id in ids:
            if self._previous is not None:
                pieces.append(self._glue(self._previous, id))
            dropped = b" " if self._previous in self._begins else b""
            pieces.append(self._pieces[id].removeprefix(dropped))
            self._previous = id
        return self._decoder.decode(b"".join(pieces))

    def finish(self) -> str:
        """Return the rest: U+FFFD if a character is unfinished, else nothing."""
        return self._decoder.decode(b"", final=True)
