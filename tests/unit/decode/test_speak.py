from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from elman.decode.speak import Speaker
from elman.decode.stop import StopMatcher
from elman.tokens.stream import StreamDecoder

PIECES = [b"a", b"b", b"ab", "é".encode()[:1], "é".encode()[1:], "漢".encode()[:2], b"\xff", b""]
STOPS = st.lists(st.text("ab é", min_size=1, max_size=3), max_size=2)


def speaker(stops: list[str]) -> Speaker:
    def glue(previous: int, following: int) -> bytes:
        return b" " if previous == following else b""

    return Speaker(StreamDecoder(PIECES, glue, after=0), StopMatcher(stops))


@given(
    st.lists(st.lists(st.integers(0, len(PIECES) - 1), max_size=6), min_size=1, max_size=4),
    STOPS,
    st.sampled_from([None, "length", "stop"]),
)
@settings(max_examples=400)
def test_many_tokens_at_once_are_the_same_as_one_by_one(
    parts: list[list[int]], stops: list[str], reason: str | None
) -> None:
    """Characters cut in two, broken ones, stop sequences across parts, and the end."""
    one, many = speaker(stops), speaker(stops)
    for i, part in enumerate(parts):
        last = reason if i == len(parts) - 1 and part else None
        text = ""
        for j, token in enumerate(part, 1):
            text += one.push(token, last if j == len(part) else None)
            if one.finished:
                break
        assert many.push_all(part, last) == text
        assert (many.tokens, many.finish_reason) == (one.tokens, one.finish_reason)
        if one.finished:
            return
    assert many.finish("length") == one.finish("length")
