"""Generated tokens on their way to becoming text: decoding piece by piece, up to a stop sequence.

Strings begin here: models and the decoding schemes deal in ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elman.decode.stop import StopMatcher
from elman.tokens.stream import StreamDecoder


@dataclass
class Speaker:
    """One continuation. `push` takes its tokens in order and gives text as soon as it is
    certain."""

    decoder: StreamDecoder
    matcher: StopMatcher
    tokens: int = 0
    """How many tokens were taken, those of a stop sequence included."""
    piece: str = ""
    """What was pushed last, decoded, whether it is certain to be said or not."""
    finish_reason: str = ""
    """Empty while more may come; `stop` once a stop sequence was met, else what `push` was told."""

    @property
    def finished(self) -> bool:
        """Whether nothing more comes."""
        return bool(self.finish_reason)

    def push(self, token: int, finish_reason: str | None = None) -> str:
        """Take one token, the last where there is a `finish_reason`; the text that is certain."""
        self.tokens += 1
        self.piece = self.decoder.push(token)
        text = self.matcher.push(self.piece)
        if self.matcher.stopped:
            self.finish_reason = "stop"
        elif finish_reason:
            text += self.finish(finish_reason)
        return text

    def push_all(self, tokens: Sequence[int], finish_reason: str | None = None) -> str:
        """Take tokens up to the end of a stop sequence, all of them where there is none: as `push`
        takes them one by one, and quicker where there is nothing to look for."""
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
        """No more tokens come; the text that was held back."""
        text = self.matcher.push(self.decoder.finish())
        self.finish_reason = "stop" if self.matcher.stopped else reason
        return text + self.matcher.finish()
