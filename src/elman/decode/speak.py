"""Turn generated tokens into text piece by piece, up to a stop sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elman.decode.stop import StopMatcher
from elman.tokens.stream import StreamDecoder


@dataclass
class Speaker:
    """Decode one continuation: push tokens in order, get text as soon as it is certain."""

    decoder: StreamDecoder
    matcher: StopMatcher
    tokens: int = 0
    """Number of tokens pushed, those of a stop sequence included."""
    piece: str = ""
    """The last push, decoded, certain or not."""
    finish_reason: str = ""
    """Empty while unfinished; `stop` after a stop sequence, else what `push` was given."""

    @property
    def finished(self) -> bool:
        return bool(self.finish_reason)

    def push(self, token: int, finish_reason: str | None = None) -> str:
        """Add a token, the last one if there is a `finish_reason`; return the text now certain."""
        self.tokens += 1
        self.piece = self.decoder.push(token)
        text = self.matcher.push(self.piece)
        if self.matcher.stopped:
            self.finish_reason = "stop"
        elif finish_reason:
            text += self.finish(finish_reason)
        return text

    def push_all(self, tokens: Sequence[int], finish_reason: str | None = None) -> str:
        """Push tokens up to the end of a stop sequence; fast if there are no stop sequences."""
        if self.matcher.has_stops:
            text = ""
            for i, token in enumerate(tokens, 1):
                text += self.push(token, finish_reason if i == len(tokens) else None)
                if self.finished:
                    break
            return text
        self.tokens += len(tokens)
        self.piece = self.decoder.push(*tokens)
        return self.piece + (self.finish(finish_reason) if finish_reason else "")

    def finish(self, reason: str) -> str:
        """End the continuation; return the text held back."""
        text = self.matcher.push(self.decoder.finish())
        self.finish_reason = "stop" if self.matcher.stopped else reason
        return text + self.matcher.finish()
