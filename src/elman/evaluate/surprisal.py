"""Surprisal, -log P(what comes next | what came before), of the tokens, words or lines of raw text.

The policies, each of them a choice that the literature makes differently in different places:

Beginning   A line is a text of its own: it follows the boundary token, and a state that has read
            nothing else. With `carry` the lines are one running text, and only the first line
            follows the boundary.
End         A line ends with an end mark: `<eos>` for tokenizers that mark lines, the newline for
            the others. It is scored and reported with `include_end`, else left out. As a row of
            its own it has the text `<eos>` or a newline, and an empty span at the line's end.
Word        A run of characters that are not whitespace. Its surprisal is the sum over its pieces,
            and `boundary` says who pays for the whitespace around it:
  trailing    a word's surprisal is -log P(the word, and that it ends here | what came before).
              Characters and bytes: the whitespace after a word counts on that word, and the end
              mark on the last word.
              Sub-words with their leading space (" cat"): the plain sum of the pieces leaves out
              that the word ends, and charges it for the end of the word before. So -log P(the
              next piece begins a word, or the text ends) is added at the word's end, and what was
              added at the end of the word before is taken off (Oh and Schuler, 2024; Pimentel and
              Meister, 2024). The end mark has a row of its own, with what remains of its
              surprisal given that the word has ended.
  leading     the plain sum of the pieces; whitespace counts on the word that follows it.
            In both, words and end mark together have exactly the surprisal of all the line's
            tokens. Without the end mark, `trailing` still says of a last word made of sub-words
            that it ends, and `leading` does not.
Unknown     Rows with an out-of-vocabulary piece are flagged. `score` counts -log P(<unk>) for it;
            `mark` reports no surprisal for such a token or word, and leaves the piece out of a
            line's sum and count.

Input is read in windows of lines, so memory does not grow with the file; within a window lines of
similar length are scored together, and rows come out in the order of the text.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from elman.base.errors import UsageError, nearest
from elman.batches.buckets import batches_by_length
from elman.evaluate.sequences import (
    TOKENS_PER_BATCH,
    TokenScores,
    score_tokens,
)
from elman.models.interface import LanguageModel
from elman.nn.state import State
from elman.tokens.tokenizer import Tokenizer

Unit = Literal["token", "word", "line"]
Boundary = Literal["trailing", "leading"]
Unknown = Literal["score", "mark"]

BASES = {"2": math.log(2), "e": 1.0, "10": math.log(10)}
"""What natural logarithms are divided by, for each base."""
WINDOW_LINES = 1024
WINDOW_CHARACTERS = 1 << 18
"""How much text is looked at together: enough to fill batches, little beside the model."""

_WORD = re.compile(r"\S+")


@dataclass(frozen=True)
class Row:
    """The surprisal of one token, word or line."""

    line: int
    """Number of the line, from 1."""
    index: int
    """Number of the token or word in its line, from 1; 1 for a line."""
    text: str
    """As it stands in the line; a token as the tokenizer spells it, unless it is unknown."""
    surprisal: float | None
    """In the chosen base; None where the policy for unknown ones gives none."""
    unknown: bool
    """Whether any piece of it is out of vocabulary."""
    start: int
    """Where it begins, in characters from the start of the line."""
    end: int
    """Where it ends, likewise."""
    num_tokens: int
    """How many tokens its surprisal is the sum of: averages per token divide by this."""


def surprisals(
    model: LanguageModel,
    tokenizer: Tokenizer,
    text: str | Iterable[str],
    *,
    unit: Unit = "token",
    base: str | int = 2,
    boundary: Boundary = "trailing",
    unknown: Unknown = "score",
    carry: bool = False,
    include_end: bool = True,
) -> Iterator[Row]:
    """The rows of `text`, a string or an iterable of lines (an open file), in order."""
    _check("unit", unit, ("token", "word", "line"))
    _check("base", str(base), BASES)
    _check("boundary", boundary, ("trailing", "leading"))
    _check("unknown", unknown, ("score", "mark"))
    # Only words need the correction, and without it no full distributions.
    rules = _Rules.of(tokenizer, boundary if unit == "word" else "leading")
    number = 0
    for lines, scored in _scored_windows(model, tokenizer, rules, text, carry=carry):
        for line, pieces in zip(lines, scored, strict=True):
            number += 1
            if unit == "token":
                kept = [piece for piece in pieces if include_end or not piece.is_end]
                parts = [_Part.of_token(piece, line, tokenizer) for piece in kept]
            else:
                parts = _words(line, pieces, rules, include_end=include_end)
            if unit == "line":
                parts = [_Part.of_line(line, parts)]
            for index, part in enumerate(parts, start=1):
                yield part.row(number, index, BASES[str(base)], unknown)


def _check(name: str, value: str, allowed: Iterable[str]) -> None:
    if value not in allowed:
        raise UsageError(f"{name} cannot be '{value}'", nearest(value, allowed))


@dataclass(frozen=True)
class _Rules:
    """What the policies come to for one tokenizer."""

    boundary_id: int
    unknown_id: int | None
    end_text: str
    """How the end mark is spelled."""
    newline_is_unknown: bool
    """Whether the vocabulary has no newline: the boundary token is the end mark then."""
    whitespace_trails: bool
    """Whether whitespace tokens count on the word before them, rather than on the one after."""
    starts_word_V: Tensor | None
    """True for ids that show a word to have ended, where the correction is made."""
    starts_word: list[bool]
    """The same as a list, empty where the correction is not made."""

    @staticmethod
    def of(tokenizer: Tokenizer, boundary: Boundary) -> _Rules:
        trailing = boundary == "trailing"
        starts_word: list[bool] = []
        if trailing and tokenizer.kind == "bpe":
            starts_word = tokenizer.starts_word().tolist()
            starts_word[tokenizer.boundary_id] = True
        return _Rules(
            boundary_id=tokenizer.boundary_id,
            unknown_id=tokenizer.unknown_id,
            end_text=tokenizer.token(tokenizer.boundary_id) if tokenizer.marks_lines else "\n",
            newline_is_unknown=tokenizer.unknown_id in tokenizer.encode("\n").tolist(),
            whitespace_trails=trailing and tokenizer.kind in ("char", "byte"),
            starts_word_V=torch.tensor(starts_word) if starts_word else None,
            starts_word=starts_word,
        )


@dataclass(frozen=True)
class _Piece:
    """One token with its place in the line and its scores, in nats."""

    token: int
    start: int
    end: int
    surprisal: float
    ending: float | None
    """-log P(a word has ended before this token), where the correction is made."""
    starts_word: bool
    """Whether this token shows the word before it to have ended, likewise."""
    unknown: bool
    is_end: bool
    """Whether it is the line's end mark."""


def _scored_windows(
    model: LanguageModel,
    tokenizer: Tokenizer,
    rules: _Rules,
    text: str | Iterable[str],
    *,
    carry: bool,
) -> Iterator[tuple[list[str], list[list[_Piece]]]]:
    """Windows of lines, each line with its scored tokens."""
    state: State | None = None
    previous = rules.boundary_id
    for lines in _windows(text):
        if carry:
            # Encoded together, as in training: a sub-word may reach over a line end.
            encoded = _encode(tokenizer, "\n".join(lines) + "\n", rules)
            (scores,), state = score_tokens(
                model, [encoded.ids], previous=previous, state=state, members_V=rules.starts_word_V
            )
            previous = encoded.ids[-1]
            yield lines, _pieces(lines, encoded, scores, rules)
        else:
            texts = [_encode(tokenizer, line + "\n", rules) for line in lines]
            scored: list[list[_Piece]] = [[] for _ in lines]
            lengths = [len(encoded.ids) for encoded in texts]
            for batch in batches_by_length(lengths, TOKENS_PER_BATCH):
                results, _ = score_tokens(
                    model,
                    [texts[i].ids for i in batch],
                    previous=rules.boundary_id,
                    members_V=rules.starts_word_V,
                )
                for i, scores in zip(batch, results, strict=True):
                    scored[i] = _pieces([lines[i]], texts[i], scores, rules)[0]
            yield lines, scored


@dataclass(frozen=True)
class _Encoded:
    ids: list[int]
    spans: list[tuple[int, int]]


def _encode(tokenizer: Tokenizer, text: str, rules: _Rules) -> _Encoded:
    array, spans = tokenizer.encode_spans(text)
    ids = array.tolist()
    if rules.newline_is_unknown:
        ids = [
            rules.boundary_id if text[start:end] == "\n" else token
            for token, (start, end) in zip(ids, spans, strict=True)
        ]
    return _Encoded(ids, spans)


def _windows(text: str | Iterable[str]) -> Iterator[list[str]]:
    # Only a newline ends a line, as in files; str.splitlines would also break at form feeds and
    # others.
    lines: Iterable[str] = text.removesuffix("\n").split("\n") if isinstance(text, str) else text
    window: list[str] = []
    size = 0
    for line in lines:
        window.append(line.removesuffix("\n"))
        size += len(line)
        if len(window) >= WINDOW_LINES or size >= WINDOW_CHARACTERS:
            yield window
            window, size = [], 0
    if window:
        yield window


def _pieces(
    lines: list[str], encoded: _Encoded, scores: TokenScores, rules: _Rules
) -> list[list[_Piece]]:
    """The scored tokens of joined lines; a token belongs to the line in which it begins."""
    line_starts = [0]
    for line in lines:
        line_starts.append(line_starts[-1] + len(line) + 1)
    endings = scores.member_logprobs
    divided: list[list[_Piece]] = [[] for _ in lines]
    for i, (token, (start, end)) in enumerate(zip(encoded.ids, encoded.spans, strict=True)):
        number = bisect_right(line_starts, start) - 1
        offset, length = line_starts[number], len(lines[number])
        divided[number].append(
            _Piece(
                token=token,
                start=start - offset,
                end=min(end - offset, length),
                surprisal=0.0 - scores.logprobs[i],  # 0.0 - x and not -x: no surprisal of -0
                ending=None if endings is None else max(0.0, -endings[i]),
                starts_word=bool(rules.starts_word) and rules.starts_word[token],
                unknown=token == rules.unknown_id,
                is_end=end - offset > length,
            )
        )
    return divided


@dataclass
class _Part:
    """A row in the making, in nats; what its unknown pieces add is kept apart."""

    text: str
    start: int
    end: int
    known: float = 0.0
    unknown: float = 0.0
    num_tokens: int = 0
    num_unknown: int = 0
    is_line: bool = False

    def add(self, piece: _Piece, surprisal: float) -> None:
        """Count a token on this part, with what of its surprisal is not another's."""
        self.num_tokens += 1
        self.num_unknown += piece.unknown
        if piece.unknown:
            self.unknown += surprisal
        else:
            self.known += surprisal

    def row(self, line: int, index: int, nats: float, unknown: Unknown) -> Row:
        """The finished row, `nats` being the size of the unit of information in nats."""
        num_tokens = self.num_tokens
        if unknown == "score":
            surprisal: float | None = (self.known + self.unknown) / nats
        elif self.is_line or not self.num_unknown:
            surprisal = self.known / nats
            num_tokens -= self.num_unknown
        else:
            surprisal = None
        return Row(
            line,
            index,
            self.text,
            surprisal,
            self.num_unknown > 0,
            self.start,
            self.end,
            num_tokens,
        )

    @staticmethod
    def of_token(piece: _Piece, line: str, tokenizer: Tokenizer) -> _Part:
        text = line[piece.start : piece.end] if piece.unknown else tokenizer.token(piece.token)
        part = _Part(text, piece.start, piece.end)
        part.add(piece, piece.surprisal)
        return part

    @staticmethod
    def of_line(line: str, parts: list[_Part]) -> _Part:
        return _Part(
            line,
            0,
            len(line),
            known=sum(part.known for part in parts),
            unknown=sum(part.unknown for part in parts),
            num_tokens=sum(part.num_tokens for part in parts),
            num_unknown=sum(part.num_unknown for part in parts),
            is_line=True,
        )


def _words(line: str, pieces: list[_Piece], rules: _Rules, *, include_end: bool) -> list[_Part]:
    """The words of a line and, where it has a row of its own, the end mark."""
    words = [_Part(match.group(), *match.span()) for match in _WORD.finditer(line)]
    starts = [word.start for word in words]
    end = _Part(rules.end_text, len(line), len(line))
    last: _Part | None = None  # the word that the token before belongs to, None after whitespace
    seen = 0  # words begun so far
    for piece in pieces:
        visible = _WORD.search(line, piece.start, piece.end)
        if visible:
            seen = bisect_right(starts, visible.start())
            owner = words[seen - 1]
        elif piece.is_end and not (rules.whitespace_trails and words):
            owner = end
        elif rules.whitespace_trails:
            owner = words[max(seen - 1, 0)] if words else end
        elif seen < len(words):
            owner = words[seen]
        else:
            owner = end if include_end or not words else words[-1]
        surprisal = piece.surprisal
        if piece.ending is not None and piece.starts_word and last is not None:
            last.known += piece.ending
            # After an ending that is impossible nothing is left to say: inf - inf is not a number.
            surprisal = piece.surprisal - piece.ending if piece.ending < math.inf else 0.0
        if include_end or not piece.is_end:
            owner.add(piece, surprisal)
        last = owner if visible else None
    if end.num_tokens:
        return [*words, end]
    return words
