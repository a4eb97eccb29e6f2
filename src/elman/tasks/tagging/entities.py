"""Named entities as tags: the spans that a tag sequence marks, and the tagging schemes.

    iob1    I-PER continues or begins an entity; B-PER only right after one of the same type
    bio     B-PER begins, I-PER continues (IOB2)
    bioes   B-PER begins, I-PER continues, E-PER ends; S-PER is an entity of one word

Spans are read by the rules of conlleval, the script of the CoNLL shared tasks, which accept any
scheme and invalid sequences: an entity begins at B and S, at I and E after O or after another type,
and after E and S; it ends before all of these, and before O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

Scheme = Literal["iob1", "bio", "bioes"]
Span = tuple[int, int, str]
"""Start, end (exclusive) and type of an entity."""

_PARTS: dict[Scheme, dict[str, str]] = {
    "bio": {"S": "B", "E": "I"},
    "iob1": {"B": "BI", "S": "BI", "E": "I"},
    "bioes": {},
}
"""What the first letter of a label in BIOES may be in each scheme, if it is another."""
_SAME = {"L": "E", "U": "S", "M": "I"}  # BILOU and BMEOS spell the same scheme


def spans(tags: Sequence[str]) -> list[Span]:
    """The entities that a tag sequence marks, by conlleval's rules."""
    found: list[Span] = []
    before, kind, start = "O", "", -1
    for index, tag in enumerate([*tags, "O"]):
        part, _, here = tag.partition("-")
        part = _SAME.get(part, part)
        if part not in ("B", "I", "E", "S"):
            part, here = "O", ""
        begins = part in ("B", "S") or (part != "O" and (before in ("O", "E", "S") or here != kind))
        if start >= 0 and (begins or part == "O"):
            found.append((start, index, kind))
            start = -1
        if begins:
            start = index
        before, kind = part, here
    return found


def scheme_of(rows: Iterable[Sequence[str]]) -> Scheme | None:
    """The scheme of tag sequences; None if the tags are not entities."""
    any_entity, letters, iob1 = False, set(), False
    for tags in rows:
        before = "O"
        for tag in tags:
            part, dash, kind = tag.partition("-")
            if tag != "O" and not (dash and kind and part in ("B", "I", "E", "S", *_SAME)):
                return None
            any_entity |= tag != "O"
            letters.add(part)
            # Only IOB1 begins an entity with I.
            iob1 |= part == "I" and (before == "O" or before.partition("-")[2] != kind)
            before = tag
    if not any_entity:
        return None
    if letters & {"E", "S", *_SAME}:
        return "bioes"
    return "iob1" if iob1 else "bio"


def in_scheme(entities: Iterable[Span], num_words: int, scheme: Scheme) -> list[str]:
    """The tag sequence that marks these entities."""
    tags = ["O"] * num_words
    end_before, kind_before = -1, ""
    for start, end, kind in entities:
        for index in range(start, end):
            tags[index] = f"I-{kind}"
        touching = start == end_before and kind == kind_before
        if scheme != "iob1" or touching:
            tags[start] = f"B-{kind}"
        if scheme == "bioes":
            tags[end - 1] = f"E-{kind}" if end - start > 1 else f"S-{kind}"
        end_before, kind_before = end, kind
    return tags


def tags_of(labels: Iterable[str], scheme: Scheme) -> list[str]:
    """The tags of a scheme that mark what labels in BIOES mark, in alphabetical order."""
    found = set()
    for label in labels:
        part, dash, kind = label.partition("-")
        found |= {f"{letter}{dash}{kind}" for letter in _PARTS[scheme].get(part, part)}
    return sorted(found)


def may_follow(before: str | None, after: str | None) -> bool:
    """Whether BIOES allows `after` to follow `before`; None is the edge of the sentence."""
    part, _, kind = (before or "O").partition("-")
    next_part, _, next_kind = (after or "O").partition("-")
    inside = part in ("B", "I")
    continues = next_part in ("I", "E")
    return (kind == next_kind) if inside and continues else not inside and not continues
