"""Differences between Hugging Face's reading of text and SentencePiece's, and their workarounds.

Names. To SentencePiece the name of a control token, of the unknown token or of a byte is ordinary
text. A Unigram of Hugging Face finds it in its vocabulary if one of its characters is unknown, and
so does a BPE with user-defined symbols if it is a whole word. `hidden_names` cuts a name in two
where no piece lies across the cut, so that it is not found. If the characters on both sides of each
such place are unknown, which are one token together, one of them becomes `_FILLER`.

Ties. SentencePiece adds scores in single precision over a whole line, Hugging Face in double, word
by word. If two ways to split a text are equally likely, rounding decides in SentencePiece, by all
of the line before it. A tokenizer.json cannot do that: `tied_run` finds such a text, for a note.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tokenizers import Regex, normalizers, pre_tokenizers

from elman.base.errors import UsageError

_FILLER = "\ufdd0"
"""A code point that is no character, and in no vocabulary."""
_LONGEST_RUN = 128


def hidden_names(
    names: Iterable[str], pieces: Sequence[str], *, has_bytes: bool, always: bool
) -> tuple[list[normalizers.Normalizer], list[pre_tokenizers.Split]]:
    """The steps by which a model with these pieces of text finds none of the names.

    `always`: also those whose characters are all known, which are spelled otherwise in a Unigram.
    """
    known = {piece for piece in pieces if len(piece) == 1}
    with_pair: dict[str, list[str]] = {}
    for piece in pieces:
        for pair in _pairs(piece):
            with_pair.setdefault(pair, []).append(piece)
    cuts: list[str] = []
    fillers: list[normalizers.Normalizer] = []
    for name in names:
        unknown = {i for i, character in enumerate(name) if character not in known}
        if not unknown and not always:
            continue
        across = {piece for pair in _pairs(name) for piece in with_pair.get(pair, ())}
        taken = {place for part in _parts(across, name) for place in part[1:]}
        places = [
            place
            for place in range(1, len(name))
            if place not in taken and (has_bytes or not {place - 1, place} <= unknown)
        ]
        if places:
            before, last, after = name[: places[0] - 1], name[places[0] - 1], name[places[0] :]
            behind = f"(?<={re.escape(before)})" if before else ""
            cuts.append(f"{behind}{re.escape(last)}(?={re.escape(after)})")
            continue
        free = [i for i in unknown if not any(i in part for part in _parts(pieces, name))]
        if has_bytes or not free or len(name) < 2:
            raise UsageError(
                f"a model of SentencePiece in which {name!r} as text cannot be kept apart from the "
                "token of this name cannot be converted to a tokenizer.json",
                "train one in which this token has another name",
            )
        filled = name[: free[0]] + _FILLER + name[free[0] + 1 :]
        fillers.append(normalizers.Replace(name, filled))
    split = [pre_tokenizers.Split(Regex("|".join(cuts)), "merged_with_previous")] if cuts else []
    return fillers, split


def _pairs(text: str) -> set[str]:
    return {text[i : i + 2] for i in range(len(text) - 1)}


def _parts(pieces: Iterable[str], name: str) -> Iterator[range]:
    """The parts of a name that one of the pieces covers in some text."""
    for piece in pieces:
        for start in range(1 - len(piece), len(name)):
            low, high = max(0, start), min(len(name), start + len(piece))
            if piece[low - start : high - start] == name[low:high]:
                yield range(low, high)


def tied_run(scores: Mapping[str, float]) -> str | None:
    """A text that a Unigram with these scores splits in two ways that are equally likely, made of
    one repeated part, such as 13 dashes if there are pieces of one and of twelve."""
    repeats: dict[str, list[int]] = {}
    for piece in scores:
        if part := _repeated(piece):
            repeats.setdefault(part, []).append(len(piece) // len(part))
    for part, found in repeats.items():
        limit = min(2 * max(found), _LONGEST_RUN // len(part)) if len(found) > 1 else 0
        for number in range(2, limit + 1):
            if _num_best(part * number, scores) > 1:
                return part * number
    return None


def _repeated(text: str) -> str:
    """The shortest text whose repetition is this one."""
    return text[: (text + text).find(text, 1)]


def _num_best(text: str, scores: Mapping[str, float]) -> int:
    """The number of ways to split a text that have the best score."""
    best = [(0.0, 1)]
    for end in range(1, len(text) + 1):
        ways = [
            (best[start][0] + scores[text[start:end]], best[start][1])
            for start in range(end)
            if text[start:end] in scores and best[start][1]
        ]
        score = max((score for score, _ in ways), default=0.0)
        best.append((score, sum(number for other, number in ways if other == score)))
    return best[-1][1]
