"""Entities by conlleval's rules, and the schemes that mark them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elman.tasks.tagging.entities import (
    Scheme,
    in_scheme,
    may_follow,
    scheme_of,
    spans,
    tags_of,
)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O B-PER I-PER O B-LOC", [(1, 3, "PER"), (4, 5, "LOC")]),
        ("B-PER B-PER", [(0, 1, "PER"), (1, 2, "PER")]),
        ("I-PER I-PER B-PER I-LOC", [(0, 2, "PER"), (2, 3, "PER"), (3, 4, "LOC")]),
        ("B-PER I-LOC I-LOC", [(0, 1, "PER"), (1, 3, "LOC")]),
        ("B-X I-X E-X S-X O S-Y", [(0, 3, "X"), (3, 4, "X"), (5, 6, "Y")]),
        ("E-X E-X I-X", [(0, 1, "X"), (1, 2, "X"), (2, 3, "X")]),
        ("B-X L-X U-Y", [(0, 2, "X"), (2, 3, "Y")]),
        ("O O", []),
        ("", []),
        ("B-A-B I-A-B", [(0, 2, "A-B")]),
    ],
)
def test_entities_are_read_as_conlleval_reads_them(
    tags: str, expected: list[tuple[int, int, str]]
) -> None:
    assert spans(tags.split()) == expected


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (["B-PER I-PER O", "O"], "bio"),
        (["I-PER I-PER O"], "iob1"),
        (["O B-PER I-LOC"], "iob1"),
        (["B-PER E-PER O"], "bioes"),
        (["U-PER O"], "bioes"),
        (["NOUN VERB"], None),
        (["O O"], None),
        (["B-PER X"], None),
    ],
)
def test_the_scheme_is_found_out(rows: list[str], expected: str | None) -> None:
    assert scheme_of(row.split() for row in rows) == expected


@st.composite
def entities(draw: st.DrawFn) -> tuple[list[tuple[int, int, str]], int]:
    found, position = [], draw(st.integers(0, 2))
    for _ in range(draw(st.integers(0, 4))):
        end = position + draw(st.integers(1, 3))
        found.append((position, end, draw(st.sampled_from(["PER", "LOC"]))))
        position = end + draw(st.integers(0, 2))
    return found, position


@given(entities(), st.sampled_from(["iob1", "bio", "bioes"]))
def test_any_scheme_tells_the_same_entities(
    given_entities: tuple[list[tuple[int, int, str]], int], scheme: Scheme
) -> None:
    found, num_words = given_entities
    tags = in_scheme(found, num_words, scheme)
    assert spans(tags) == found
    if scheme == "bioes":
        edges = [None, *tags, None]
        assert all(may_follow(a, b) for a, b in pairwise(edges))


@pytest.mark.parametrize(
    ("scheme", "tags"),
    [
        ("bioes", ["B-LOC", "E-LOC", "O", "S-PER"]),
        ("bio", ["B-LOC", "B-PER", "I-LOC", "O"]),
        ("iob1", ["B-LOC", "B-PER", "I-LOC", "I-PER", "O"]),
    ],
)
def test_the_tags_of_a_scheme_for_labels_in_bioes(scheme: Scheme, tags: list[str]) -> None:
    labels = ["B-LOC", "E-LOC", "O", "S-PER"]
    assert tags_of(labels, scheme) == tags
    entities = [(0, 2, "LOC"), (2, 4, "LOC"), (5, 6, "PER"), (6, 7, "PER")]
    assert set(in_scheme(entities, 7, scheme)) <= set(tags)


def test_bioes_forbids_what_breaks_it() -> None:
    assert not may_follow("O", "I-PER")
    assert not may_follow("B-PER", "O")
    assert not may_follow("B-PER", "E-LOC")
    assert not may_follow(None, "E-PER")
    assert not may_follow("I-PER", None)
    assert may_follow("E-PER", "S-PER")
    assert may_follow("S-PER", None)
