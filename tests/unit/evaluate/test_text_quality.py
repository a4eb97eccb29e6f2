"""Measures of generated text against counts made in the plainest way."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elman.base.errors import ElmanError, UsageError
from elman.evaluate.text_quality import ORDERS, REPEATED_ORDER, REPEATED_WITHIN, text_quality

TEXTS = st.lists(st.sampled_from(["a", "b", "c d", "\n", "a b a", "é"]), min_size=1, max_size=40)


def tokens(text: str, unit: str) -> list[str]:
    return (
        list(text) if unit == "char" else text.replace("\n", " \n ").replace(" \n ", " ⏎ ").split()
    )


def grams(items: Sequence[str], n: int) -> list[tuple[str, ...]]:
    return [tuple(items[i : i + n]) for i in range(len(items) - n + 1)]


@settings(deadline=None, max_examples=60)
@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=3), st.sampled_from(["word", "char"]))
def test_counts_are_right(own: list[str], training: list[list[str]], unit: str) -> None:
    text = " ".join(own)
    blocks = [" ".join(part) + "\n" for part in training]
    items, seen = tokens(text, unit), tokens("".join(blocks), unit)
    found = text_quality([text], unit=unit, against=lambda: blocks)
    assert found.tokens == len(items)
    assert found.characters == len(text)
    lengths = [n for n in ORDERS[unit] if n <= len(items)]
    assert list(found.distinct) == lengths
    assert found.copied is not None
    for n in lengths:
        mine, theirs = grams(items, n), set(grams(seen, n))
        assert found.distinct[n] == pytest.approx(len(set(mine)) / len(mine))
        assert found.copied[n] == pytest.approx(sum(g in theirs for g in mine) / len(mine))
    longest = max(
        n for n in range(len(items) + 1) if not n or set(grams(items, n)) & set(grams(seen, n))
    )
    assert found.longest_copied == longest
    mine = grams(items, REPEATED_ORDER[unit])
    before = [set(mine[max(0, i - REPEATED_WITHIN) : i]) for i in range(len(mine))]
    expected = sum(g in b for g, b in zip(mine, before, strict=True)) / len(mine) if mine else None
    assert found.repeated == (None if expected is None else pytest.approx(expected))


def test_a_copied_stretch_across_blocks_is_found() -> None:
    training = [f"line {i} of the text\n" for i in range(300)]
    copied = "".join(training[120:180])
    found = text_quality([f"new words {copied} more new words"], against=lambda: training)
    assert found.longest_copied == 6 * 60
    assert found.longest_copied_text is not None
    assert found.longest_copied_text.startswith("line 120 of the text \n line 121")
    assert len(found.longest_copied_text) == 1000


def test_a_loop_is_seen_and_nothing_is_copied_from_other_text() -> None:
    loop = text_quality(["the cat sat on the mat " * 50], against=lambda: ["quite another text"])
    assert loop.distinct[4] == pytest.approx(6 / 297)
    assert loop.repeated == pytest.approx(291 / 297)
    assert loop.copied == dict.fromkeys(ORDERS["word"], 0.0)
    assert (loop.longest_copied, loop.longest_copied_text) == (0, "")


def test_what_far_apart_is_no_repetition() -> None:
    words = [f"w{i}" for i in range(600)]
    found = text_quality([" ".join([*words, *words])])
    assert found.repeated == 0.0
    assert found.distinct[4] < 0.51
    assert found.copied is found.longest_copied is None


def test_wrong_input() -> None:
    with pytest.raises(ElmanError, match="empty"):
        text_quality([" "])
    with pytest.raises(UsageError, match="unit cannot be 'line'"):
        text_quality(["a"], unit="line")
