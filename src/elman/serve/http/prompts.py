"""Read and check prompts on the wire: texts, token ids, or lists of either."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from elman.decode.speak import Speaker
from elman.decode.stop import StopMatcher
from elman.serve.http.errors import ApiError
from elman.serve.limits import Limits
from elman.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class Prompt:
    ids: tuple[int, ...]
    """With the boundary token if the client sent it."""
    text: str
    offsets: tuple[int, ...]
    """Where each token begins in the text, if requested."""
    has_boundary: bool
    """Whether the first id is the boundary token."""

    @property
    def unread(self) -> tuple[int, ...]:
        """The ids that follow the boundary token."""
        return self.ids[1:] if self.has_boundary else self.ids

    @staticmethod
    def of_ids(given: Sequence[int], tokenizer: Tokenizer) -> Prompt:
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
    given: Any,
    tokenizer: Tokenizer,
    limits: Limits,
    param: str,
    *,
    most: int = 1,
    with_offsets: bool = False,
) -> list[Prompt]:
    """Encode one prompt or several, at most `most`; check ids and lengths."""
    is_one = isinstance(given, str) or (given and isinstance(given[0], int))
    if not is_one and len(given) > most:
        raise ApiError(400, f"too many texts: {len(given):,} (limit {most:,})", param=param)
    prompts = []
    for one in [given] if is_one else given:
        if not isinstance(one, str):
            check_length(len(one), limits, param)
            check_ids(one, tokenizer, param)
            prompts.append(Prompt.of_ids(one, tokenizer))
        elif with_offsets:
            # Check the length first: finding offsets takes ten times as long.
            most_tokens(one, tokenizer, limits, param)
            ids, spans = tokenizer.encode_spans(one)
            offsets = tuple(start for start, _ in spans)
            prompts.append(Prompt(tuple(ids.tolist()), one, offsets, False))
        else:
            ids = tokenizer.encode(one)
            check_length(len(ids), limits, param)
            prompts.append(Prompt(tuple(ids.tolist()), one, (), False))
    return prompts


def check_ids(tokens: Iterable[int], tokenizer: Tokenizer, param: str) -> None:
    last = tokenizer.vocab_size - 1
    for token in tokens:
        if token > last:
            message = f"token {token} is not in the vocabulary; ids go from 0 to {last}"
            raise ApiError(400, message, param=param)


def most_tokens(text: str, tokenizer: Tokenizer, limits: Limits, param: str) -> int:
    """Upper bound of a text's tokens, which must be within the limit."""
    most = 4 * len(text)  # a token is at least one byte
    if most > limits.max_prompt_tokens:
        most = len(tokenizer.encode(text))
        check_length(most, limits, param)
    return most


def check_length(num_tokens: int, limits: Limits, param: str) -> None:
    if num_tokens > limits.max_prompt_tokens:
        message = f"too long: {num_tokens:,} tokens (limit {limits.max_prompt_tokens:,})"
        raise ApiError(400, message, param=param, code="context_length_exceeded")


def start_of(before: int, piece: str, spelling: str) -> int:
    """Where a token's own text begins, after a space that the piece may add."""
    return before + len(piece) - len(spelling) if piece.endswith(spelling) else before
