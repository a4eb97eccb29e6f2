"""Surprisal, -log P(next | what came before), of the tokens, words or lines of raw text.

`policies.py` defines the options. Input is read in windows of lines, so memory does not grow with
the file; within a window lines of similar length are scored together, and rows come out in the
order of the text. A line that is longer than a window is scored piece by piece, with the state
carried; it is cut between two words, where no tokenizer merges, or within a word of more than
64 Ki characters.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from elman.base.errors import check_text
from elman.batches.buckets import batches_by_length
from elman.decode.prefix import device_of
from elman.evaluate.last_tokens import with_context
from elman.evaluate.policies import Policies
from elman.evaluate.sequences import TOKENS_PER_BATCH, TokenScores, exp, score_tokens
from elman.models.interface import LanguageModel, adapts, next_text, reading
from elman.nn.state import State
from elman.tokens.tokenizer import Tokenizer

BASES = {"2": math.log(2), "e": 1.0, "10": math.log(10)}
"""Divisor of natural logarithms for each base."""
UNITS = {"2": "bits", "e": "nats", "10": "bans"}
WINDOW_LINES = 1024
WINDOW_CHARACTERS = 1 << 18
"""Size of a window: enough to fill batches, small compared with the model."""

_Encoded = tuple[list[int], list[tuple[int, int]]]
_WORD = re.compile(r"\S+")
_WORD_END = re.compile(r"\S(?= \S)")
_CUT_WINDOW = 1 << 16


@dataclass(frozen=True)
class Row:
    """The surprisal of one token, word or line."""

    line: int
    """Line number, from 1."""
    index: int
    """Number of the token or word in its line, from 1; 1 for a line."""
    text: str
    """As written in the line; a token as the tokenizer spells it, unless it is unknown."""
    surprisal: float | None
    """In the chosen base; None if the policy for unknown words gives none."""
    unknown: bool
    """Whether any piece of it is out of vocabulary."""
    start: int
    """Start, in characters from the beginning of the line."""
    end: int
    """End, in the same way."""
    num_tokens: int
    """Number of tokens in its surprisal, for averages per token."""
    undefined: bool = False
    """Whether the model's estimate of any piece of it is 0/0: of maximum likelihood, after a
    context that the training text lacks. The surprisal is then that after a shorter context."""
    num_unknown: int = 0
    """Number of unknown tokens in it."""
    num_known: int = 0
    """Number of its other tokens."""
    without_unknown: float = 0.0
    """The surprisal of those."""
    entropy: float | None = None
    """Of the prediction of its first token, before it is read; None unless asked for."""
    entropy_reduction: float | None = None
    """`entropy` minus that of the prediction after its last token; None at the end of a text."""


class Totals:
    """Sums over rows, with and without unknown tokens."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.surprisal = self.without_unknown = 0.0
        self.num_tokens = self.num_known = self.num_unknown = 0

    def add(self, row: Row) -> None:
        self.num_unknown += row.num_unknown
        self.without_unknown += row.without_unknown
        if row.surprisal is not None:
            self.surprisal += row.surprisal
            self.num_tokens += row.num_tokens
        self.num_known += row.num_known

    @property
    def perplexity(self) -> float | None:
        """Per token; None without tokens."""
        return self._perplexity(self.surprisal, self.num_tokens)

    @property
    def perplexity_without_unknown(self) -> float | None:
        return self._perplexity(self.without_unknown, self.num_known)

    def _perplexity(self, total: float, num_tokens: int) -> float | None:
        return exp(total * BASES[self.base] / num_tokens) if num_tokens else None

    def __str__(self) -> str:
        unit = UNITS[self.base]
        text = f"total {self.surprisal:.4g} {unit}, perplexity {_figure(self.perplexity)}"
        if self.num_unknown:
            without = _figure(self.perplexity_without_unknown)
            text += f"; without unknown tokens {self.without_unknown:.4g}, perplexity {without}"
        return text


def _figure(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4g}"


def surprisals(
    model: LanguageModel,
    tokenizer: Tokenizer,
    text: str | Iterable[str],
    *,
    base: str | int = "2",
    **policies: Any,
) -> Iterator[Row]:
    """Yield the rows of `text`, a string or an iterable of lines (an open file), in order."""
    asked = Policies(base=str(base), **policies)
    unit, include_end = asked.unit, asked.include_end
    model = with_context(model, asked.context)
    # Only words need the correction, which takes full distributions.
    rules = _Rules.of(tokenizer, asked.boundary if unit == "word" else "leading")
    number, index, offset = 1, 0, 0  # of the line; of the last row, and of the piece, in it
    waiting: list[_Part] = []  # the last word of a piece, to which the next piece may add
    whole: list[_Part] = []
    how: dict[str, Any] = {"carry": asked.carry, "reset": asked.reset, "entropy": asked.entropy}
    windows = _scored_windows(model, tokenizer, rules, text, **how)
    for window, scored in windows:
        for stretch, pieces in zip(window, scored, strict=True):
            line = stretch.text
            if unit == "token":
                kept = [piece for piece in pieces if include_end or not piece.is_end]
                parts = [_Part.of_token(piece, line, tokenizer) for piece in kept]
                for part in parts:
                    part.shift(offset)
            else:
                parts = _words(line, pieces, rules, waiting, offset, include_end=include_end)
                waiting = [] if stretch.ends_line else parts[-1:]
                parts = parts if stretch.ends_line else parts[:-1]
            if unit == "line":
                whole.append(_Part.of_line(line, parts))
                parts = [_Part.joined(whole)] if stretch.ends_line else []
            for part in parts:
                index += 1
                yield part.row(number, index, BASES[asked.base], asked.unknown)
            offset += len(line)
            if stretch.ends_line:
                number, index, offset, whole = number + 1, 0, 0, []


@dataclass(frozen=True)
class _Rules:
    """The policies applied to one tokenizer."""

    boundary_id: int
    unknown_id: int | None
    end_text: str
    """The text of the end mark."""
    newline_is_unknown: bool
    """Whether the vocabulary has no newline; the boundary token is then the end mark."""
    whitespace_trails: bool
    """Whether whitespace tokens count for the word before them instead of the one after."""
    starts_word: list[bool]
    """For each id, whether it shows that a word has ended; empty if the correction is not made."""

    @staticmethod
    def of(tokenizer: Tokenizer, boundary: str) -> _Rules:
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
            starts_word=starts_word,
        )


@dataclass(frozen=True)
class _Stretch:
    """A line, or a piece of a long one."""

    text: str
    ends_line: bool = True

    @property
    def read(self) -> str:
        """The text that is encoded."""
        return f"{self.text}\n" if self.ends_line else self.text


@dataclass(frozen=True)
class _Piece:
    """One token with its place in the line and its scores, in nats."""

    token: int
    start: int
    end: int
    surprisal: float
    ending: float | None
    """If the correction is made and this token shows that the word before it has ended: -log P(a
    word has ended before this token)."""
    unknown: bool
    is_end: bool
    """Whether it is the line's end mark."""
    undefined: bool
    entropy: float | None
    """Of the prediction of this token."""
    next_entropy: float | None
    """Of the prediction of the token after it."""


def _scored_windows(
    model: LanguageModel,
    tokenizer: Tokenizer,
    rules: _Rules,
    text: str | Iterable[str],
    *,
    carry: bool,
    reset: str,
    entropy: bool,
) -> Iterator[tuple[list[_Stretch], list[list[_Piece]]]]:
    """Yield windows of lines or a piece of a line, each with its scored tokens."""
    members_V = torch.tensor(rules.starts_word) if rules.starts_word else None
    wanted: dict[str, Any] = {"members_V": members_V, "entropy": entropy}
    state: State | None = None
    previous = rules.boundary_id
    if adapts(model) and not (carry and reset == "never"):
        yield from _adapted_windows(model, tokenizer, rules, text, wanted, carry, reset)
        return
    for window in _windows(text):
        lines = [stretch.text for stretch in window]
        if carry or state is not None or not window[0].ends_line:
            # Encoded together, as in training: a sub-word may cross a line end.
            encoded = _encode(tokenizer, "".join(stretch.read for stretch in window), rules)
            ids = encoded[0]
            (scores,), state = score_tokens(model, [ids], previous=previous, state=state, **wanted)
            previous = ids[-1] if ids else previous
            if not carry and window[-1].ends_line:
                state, previous = None, rules.boundary_id
            yield window, _pieces(lines, encoded, scores, rules)
        else:
            texts = [_encode(tokenizer, stretch.read, rules) for stretch in window]
            scored: list[list[_Piece]] = [[] for _ in lines]
            lengths = [len(ids) for ids, _ in texts]
            for batch in batches_by_length(lengths, TOKENS_PER_BATCH):
                sequences = [texts[i][0] for i in batch]
                results, _ = score_tokens(model, sequences, previous=rules.boundary_id, **wanted)
                for i, scores in zip(batch, results, strict=True):
                    scored[i] = _pieces([lines[i]], texts[i], scores, rules)[0]
            yield window, scored


def _adapted_windows(
    model: LanguageModel,
    tokenizer: Tokenizer,
    rules: _Rules,
    text: str | Iterable[str],
    wanted: Mapping[str, Any],
    carry: bool,
    reset: str,
) -> Iterator[tuple[list[_Stretch], list[list[_Piece]]]]:
    """As `_scored_windows`, one line after the other, with what the model keeps of them."""
    state: State | None = None
    previous = rules.boundary_id
    for stretch in (stretch for window in _windows(text) for stretch in window):
        encoded = _encode(tokenizer, stretch.read, rules)
        (scores,), state = score_tokens(
            model, [encoded[0]], previous=previous, state=state, **wanted
        )
        previous = encoded[0][-1] if encoded[0] else previous
        if stretch.ends_line and (reset == "line" or (reset == "blank" and not stretch.text)):
            state, previous = None, rules.boundary_id
        elif stretch.ends_line and not carry:
            with reading(model):
                last_1 = torch.tensor([previous], device=device_of(state))
                state = next_text(model, state, last_1)
            previous = rules.boundary_id
        yield [stretch], _pieces([stretch.text], encoded, scores, rules)


def _encode(tokenizer: Tokenizer, text: str, rules: _Rules) -> _Encoded:
    """The ids of a text, and the spans of its tokens."""
    array, spans = tokenizer.encode_spans(text)
    ids = array.tolist()
    if rules.newline_is_unknown:
        ids = [
            rules.boundary_id if text[start:end] == "\n" else token
            for token, (start, end) in zip(ids, spans, strict=True)
        ]
    return ids, spans


def _windows(text: str | Iterable[str]) -> Iterator[list[_Stretch]]:
    # Only a newline ends a line, as in files; str.splitlines also breaks at form feeds and others.
    check_text(text, Iterable)
    lines: Iterable[str] = text.removesuffix("\n").split("\n") if isinstance(text, str) else text
    window: list[_Stretch] = []
    size = 0
    for line in lines:
        check_text(line)
        line = line.removesuffix("\n")
        if len(line) > WINDOW_CHARACTERS:
            if window:
                yield window
            yield from ([stretch] for stretch in _stretches(line))
            window, size = [], 0
            continue
        window.append(_Stretch(line))
        size += len(line)
        if len(window) >= WINDOW_LINES or size >= WINDOW_CHARACTERS:
            yield window
            window, size = [], 0
    if window:
        yield window


def _stretches(line: str) -> Iterator[_Stretch]:
    """Cut a long line before a single space between two words, or within a long word."""
    start, end = 0, WINDOW_CHARACTERS
    while end < len(line):
        first = max(start, end - _CUT_WINDOW)
        ends = [match.end() for match in _WORD_END.finditer(line, first, end)]
        cut = ends[-1] if ends else end
        yield _Stretch(line[start:cut], ends_line=False)
        start, end = cut, cut + WINDOW_CHARACTERS
    yield _Stretch(line[start:])


def _pieces(
    lines: list[str], encoded: _Encoded, scores: TokenScores, rules: _Rules
) -> list[list[_Piece]]:
    """Divide the scored tokens among joined lines; a token belongs to the line in which it
    begins."""
    line_starts = [0]
    for line in lines:
        line_starts.append(line_starts[-1] + len(line) + 1)
    endings = scores.member_logprobs
    entropies = dict(enumerate(scores.entropies or ()))
    divided: list[list[_Piece]] = [[] for _ in lines]
    for i, (token, (start, end)) in enumerate(zip(*encoded, strict=True)):
        number = bisect_right(line_starts, start) - 1
        offset, length = line_starts[number], len(lines[number])
        divided[number].append(
            _Piece(
                token=token,
                start=start - offset,
                end=min(end - offset, length),
                surprisal=0.0 - scores.logprobs[i],  # 0.0 - x instead of -x avoids -0
                ending=max(0.0, -endings[i]) if endings and rules.starts_word[token] else None,
                unknown=token == rules.unknown_id,
                is_end=end - offset > length,
                undefined=bool(scores.undefined and scores.undefined[i]),
                entropy=entropies.get(i),
                next_entropy=entropies.get(i + 1),
            )
        )
    return divided


@dataclass
class _Part:
    """A row being built, in nats; the surprisal of unknown pieces is kept separately."""

    text: str
    start: int
    end: int
    known: float = 0.0
    unknown: float = 0.0
    num_tokens: int = 0
    num_unknown: int = 0
    num_undefined: int = 0
    is_line: bool = False
    entropy: float | None = None
    next_entropy: float | None = None

    def shift(self, offset: int) -> None:
        """Count the place from the beginning of the line instead of that of its piece."""
        self.start, self.end = self.start + offset, self.end + offset

    def add(self, piece: _Piece, surprisal: float) -> None:
        """Count a token for this part, with its share of the surprisal."""
        if not self.num_tokens:
            self.entropy = piece.entropy
        self.next_entropy = piece.next_entropy
        self.num_tokens += 1
        self.num_unknown += piece.unknown
        self.num_undefined += piece.undefined
        if piece.unknown:
            self.unknown += surprisal
        else:
            self.known += surprisal

    def row(self, line: int, index: int, nats: float, unknown: str) -> Row:
        """Finish the row; `nats` is the unit of information in nats."""
        num_tokens = self.num_tokens
        if not num_tokens and not self.is_line:  # a mark that the model's text does not have
            surprisal: float | None = None
        elif unknown == "score":
            surprisal = (self.known + self.unknown) / nats
        elif self.is_line or not self.num_unknown:
            surprisal = self.known / nats
            num_tokens -= self.num_unknown
        else:
            surprisal = None
        before, after = self.entropy, self.next_entropy
        return Row(
            line,
            index,
            self.text,
            surprisal,
            self.num_unknown > 0,
            self.start,
            self.end,
            num_tokens,
            self.num_undefined > 0,
            num_unknown=self.num_unknown,
            num_known=self.num_tokens - self.num_unknown,
            without_unknown=self.known / nats,
            entropy=None if before is None else before / nats,
            entropy_reduction=None if before is None or after is None else (before - after) / nats,
        )

    @staticmethod
    def of_token(piece: _Piece, line: str, tokenizer: Tokenizer) -> _Part:
        text = line[piece.start : piece.end] if piece.unknown else tokenizer.token(piece.token)
        part = _Part(text, piece.start, piece.end)
        part.add(piece, piece.surprisal)
        return part

    @staticmethod
    def of_line(line: str, parts: list[_Part]) -> _Part:
        summed = ("known", "unknown", "num_tokens", "num_unknown", "num_undefined")
        sums = {name: sum(getattr(part, name) for part in parts) for name in summed}
        ends = [part for part in parts if part.num_tokens]
        entropies = (ends[0].entropy, ends[-1].next_entropy) if ends else (None, None)
        made = _Part(line, 0, len(line), **sums, is_line=True)
        made.entropy, made.next_entropy = entropies
        return made

    @staticmethod
    def joined(pieces: list[_Part]) -> _Part:
        """The whole line."""
        if len(pieces) == 1:
            return pieces[0]
        return _Part.of_line("".join(piece.text for piece in pieces), pieces)


def _words(
    line: str,
    pieces: list[_Piece],
    rules: _Rules,
    before: list[_Part],
    offset: int,
    *,
    include_end: bool,
) -> list[_Part]:
    """Return the words of a line and, if it has its own row, the end mark.

    For a piece of a line, `before` has the last word of the piece before it, and `offset` is its
    place in the line.
    """
    words = [*before, *(_Part(match.group(), *match.span()) for match in _WORD.finditer(line))]
    starts = [word.start for word in words]
    starts[: len(before)] = [-1] * len(before)
    end = _Part(rules.end_text, len(line), len(line))
    # The word of the token before, None after whitespace.
    last: _Part | None = before[0] if before else None
    seen = len(before)  # words begun so far
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
        if piece.ending is not None and last is not None:
            last.known += piece.ending
            # inf - inf would be NaN.
            surprisal = piece.surprisal - piece.ending if piece.ending < math.inf else 0.0
        if include_end or not piece.is_end:
            owner.add(piece, surprisal)
        last = owner if visible else None
    for word in (*words[len(before) :], end):
        word.shift(offset)
    return [*words, end] if end.num_tokens else words
