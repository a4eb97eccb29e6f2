"""Prompts as they are given on the wire: texts, token ids or lists of either, read and checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from elman.decode.speak import Speaker
from elman.decode.stop import StopMatcher
from elman.serve.http.errors import ApiError
from elman.serve.http.served import Limits
from elman.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class Prompt:
    """A prompt as it was given."""

    ids: tuple[int, ...]
    """With the boundary token where the client sent it."""
    text: str
    offsets: tuple[int, ...]
    """Where each token begins in the text, if that was asked for."""
    has_boundary: bool
    """Whether the first id is the boundary token, which is then not put in front again."""

    @property
    def unread(self) -> tuple[int, ...]:
        """The ids that follow the boundary token."""
        return self.ids[1:] if self.has_boundary else self.ids

    @staticmethod
    def of(
        given: str | Sequence[int], tokenizer: Tokenizer, *, with_offsets: bool = False
    ) -> Prompt:
        """A prompt from text, or from ids, whose text is what they decode to."""
        if isinstance(given, str):
            if not with_offsets:
                return Prompt(tuple(tokenizer.encode(given).tolist()), given, (), False)
            ids, spans = tokenizer.encode_spans(given)
            return Prompt(tuple(ids.tolist()), given, tuple(start for start, _ in spans), False)
        tokens = tuple(given)
        speaker = Speaker(tokenizer.stream(), StopMatcher(()))
        text, offsets = "", []
        for token in tokens:
            before = len(text)
            text += speaker.push(token)
            offsets.append(start_of(before, speaker.piece, tokenizer.token(token)))
        text += speaker.finish("length")
        first_is_boundary = bool(tokens) and tokens[0] == tokenizer.boundary_id
        return Prompt(tokens, text, tuple(offsets), first_is_boundary)


def prompts_of(
    given: Any, tokenizer: Tokenizer, limits: Limits, param: str, *, with_offsets: bool = False
) -> list[Prompt]:
    """One prompt or several, each within the vocabulary and the limit of length."""
    is_one = isinstance(given, str) or (given and isinstance(given[0], int))
    prompts = []
    for one in [given] if is_one else given:
        # Lengths come first: finding out where tokens begin takes ten times as long.
        check_length(one, tokenizer, limits, param)
        if not isinstance(one, str):
            check_ids(one, tokenizer, param)
        prompts.append(Prompt.of(one, tokenizer, with_offsets=with_offsets))
    return prompts


def check_ids(tokens: Iterable[int], tokenizer: Tokenizer, param: str) -> None:
    """Refuse ids that the vocabulary does not have."""
    for token in tokens:
        if token >= tokenizer.vocab_size:
            message = f"token {token} is not in the vocabulary; ids go from 0 to "
            raise ApiError(400, f"{message}{tokenizer.vocab_size - 1}", param=param)


def check_length(
    given: str | Sequence[int], tokenizer: Tokenizer, limits: Limits, param: str
) -> None:
    """Refuse what is longer than a prompt may be."""
    most = limits.max_prompt_tokens
    if 4 * len(given) <= most:  # a token is at least one byte
        return
    num_tokens = len(tokenizer.encode(given) if isinstance(given, str) else given)
    if num_tokens > most:
        message = f"the text has {num_tokens} tokens, and {most} are the most"
        raise ApiError(400, message, param=param, code="context_length_exceeded")


def start_of(before: int, piece: str, spelling: str) -> int:
    """Where a token's own text begins: after the space that a piece may begin with."""
    return before + len(piece) - len(spelling) if piece.endswith(spelling) else before
