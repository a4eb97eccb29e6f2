"""Turn a stream's ids into the text and log probabilities of a choice, piece by piece."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from elman.base.errors import ElmanError
from elman.decode.speak import Speaker
from elman.decode.stop import StopMatcher
from elman.serve.http.prompts import Prompt, start_of
from elman.serve.http.schema import Logprobs
from elman.serve.streams import Alternatives, Stream
from elman.tokens.tokenizer import Tokenizer

NEVER = -9999.0
"""Replaces log probabilities of minus infinity, which JSON does not have."""


@dataclass(frozen=True)
class Piece:
    """New text of a choice."""

    text: str
    logprobs: Logprobs | None
    finish_reason: str | None


@dataclass
class _Detail:
    token: int
    logprob: float | None
    alternatives: Alternatives | None
    offset: int


class ChoiceText:
    """One choice of an answer, made from a stream of tokens."""

    def __init__(
        self,
        stream: Stream,
        prompt: Prompt,
        tokenizer: Tokenizer,
        *,
        stops: Sequence[str] = (),
        echo: bool = False,
        details: bool = False,
    ) -> None:
        self.stream = stream
        self.finish_reason: str | None = None
        self._prompt = prompt
        self._tokenizer = tokenizer
        self._echo = echo
        self._details: deque[_Detail] | None = deque() if details else None
        after = prompt.ids[-1] if prompt.ids else None
        self._speaker = Speaker(tokenizer.stream(after=after), StopMatcher(tuple(stops)))
        self._decoded = self._sent = len(prompt.text) if echo else 0

    @property
    def num_tokens(self) -> int:
        """Tokens of the stream that were read here."""
        return self._speaker.tokens

    @property
    def mean_logprob(self) -> float:
        return math.fsum(self.stream.logprobs[: self.num_tokens]) / max(1, self.num_tokens)

    def take(self) -> Piece | None:
        """Text and log probabilities since the last call, or None."""
        if self.finish_reason is not None:
            return None
        # Read in this order: a stream's end is set after its last token.
        ended = self.stream.finish_reason
        if ended == "error":
            assert self.stream.error is not None
            raise self.stream.error
        seen, now = self._speaker.tokens, len(self.stream.tokens)
        first = self._echo
        if now == seen and ended is None:
            return None
        text = ""
        if self._details is None:
            text = self._speaker.push_all(self.stream.tokens[seen:now], ended)
        else:
            for i in range(seen, now):
                text += self._push(i, ended if i == now - 1 else None, self._details)
                if self._speaker.finished:
                    break
        if ended and not self._speaker.finished:
            text += self._speaker.finish(ended)
        self._sent += len(text)
        if self._speaker.finished:
            self.finish_reason = self._speaker.finish_reason
        details = self._release()
        if first:  # the prompt comes with the first piece; its scores are known by then
            text = self._prompt.text + text
            details = self._prompt_details() + details
            self._echo = False
        if not text and not details and self.finish_reason is None:
            return None
        logprobs = None if self._details is None else self._logprobs(details)
        return Piece(text, logprobs, self.finish_reason)

    def _push(self, i: int, ended: str | None, details: deque[_Detail]) -> str:
        token = self.stream.tokens[i]
        text = self._speaker.push(token, ended)
        if ended != "stop":
            alternatives = self.stream.alternatives[i] if self.stream.alternatives else None
            start = start_of(self._decoded, self._speaker.piece, self._tokenizer.token(token))
            details.append(_Detail(token, self.stream.logprobs[i], alternatives, start))
            if alternatives:
                self.stream.alternatives[i] = ()  # they are not kept twice
        self._decoded += len(self._speaker.piece)
        return text

    def _release(self) -> list[_Detail]:
        """Details of tokens whose text was sent; those after a stop sequence never are."""
        if self._details is None:
            return []
        details = []
        while self._details and (
            self._details[0].offset < self._sent or self.finish_reason == "length"
        ):
            details.append(self._details.popleft())
        return details

    def _prompt_details(self) -> list[_Detail]:
        if self._details is None:
            return []
        logprobs: list[float | None] = [*self.stream.prompt_logprobs]
        alternatives: list[Alternatives | None] = [*self.stream.prompt_alternatives]
        self.stream.prompt_alternatives.clear()  # they are not kept twice
        if self._prompt.has_boundary:  # it has no prediction
            logprobs.insert(0, None)
            alternatives.insert(0, None)
        return [
            _Detail(token, logprob, alternatives[i] if alternatives else None, offset)
            for i, (token, logprob, offset) in enumerate(
                zip(self._prompt.ids, logprobs, self._prompt.offsets, strict=True)
            )
        ]

    def _logprobs(self, details: list[_Detail]) -> Logprobs:
        spell = self._tokenizer.token
        wants_alternatives = self.stream.continuation.num_alternatives > 0
        top: list[dict[str, float] | None] = []
        for detail in details if wants_alternatives else ():
            found, detail.alternatives = detail.alternatives, None
            if found is None or detail.logprob is None:
                top.append(None)
                continue
            others: dict[str, float] = {}
            for token, logprob in (*found, (detail.token, detail.logprob)):
                others.setdefault(spell(token), finite(logprob))
            top.append(others)
        return Logprobs.model_construct(  # without copies
            tokens=[spell(detail.token) for detail in details],
            token_logprobs=[
                None if detail.logprob is None else finite(detail.logprob) for detail in details
            ],
            top_logprobs=top if wants_alternatives else None,
            text_offset=[detail.offset for detail in details],
        )


def finite(logprob: float) -> float:
    """A log probability that JSON can represent."""
    if not logprob < math.inf:
        raise not_a_number()
    return logprob if logprob > NEVER else NEVER


def not_a_number() -> ElmanError:
    """The error for a model whose figures are NaN or infinite."""
    return ElmanError(
        "the model gives figures that are not numbers", "check it with `elman info --verify`"
    )
