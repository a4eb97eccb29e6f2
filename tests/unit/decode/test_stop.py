from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elman.base.errors import UsageError
from elman.decode.stop import StopMatcher

LETTERS = st.text("ab", max_size=12)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=3)


def cut(text: str, stops: list[str]) -> tuple[str, bool]:
    """The whole text at once: up to the stop sequence that is complete first, the longest of
    those."""
    found = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return (text[: min(found)[1]], True) if found else (text, False)


@given(st.lists(LETTERS, max_size=8), STOPS)
@settings(max_examples=500)
def test_equals_a_search_in_the_whole_text_however_it_is_split(
    pieces: list[str], stops: list[str]
) -> None:
    matcher = StopMatcher(stops)
    emitted = "".join(matcher.push(piece) for piece in pieces)
    stopped = matcher.stopped
    assert (emitted + matcher.finish(), stopped) == cut("".join(pieces), stops)


@given(st.lists(LETTERS, max_size=8), STOPS)
@settings(max_examples=200)
def test_holds_back_no_more_than_a_possible_beginning(pieces: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    emitted = "".join(matcher.push(piece) for piece in pieces)
    if not matcher.stopped:
        held = "".join(pieces)[len(emitted) :]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


def test_a_stop_sequence_across_pieces_is_never_shown() -> None:
    matcher = StopMatcher(["\n\n", "END"])
    assert [matcher.push(piece) for piece in ["one\n", "two E", "ND", " three"]] == [
        "one",
        "\ntwo ",
        "",
        "",
    ]
    assert matcher.stopped
    assert matcher.finish() == ""


def test_an_empty_stop_sequence_is_refused() -> None:
    with pytest.raises(UsageError):
        StopMatcher(["x", ""])
