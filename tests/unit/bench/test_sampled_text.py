"""Text for measuring: as long as asked, the same every time, with n-grams of its own."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from elman.bench.sampled_text import write_sampled_text
from elman.testing import TOY_TEXT


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.txt"
    path.write_text(TOY_TEXT, encoding="utf-8")
    return path


def sampled(source: Path, num_tokens: int, seed: int = 0) -> str:
    out = source.with_name("sampled.txt")
    write_sampled_text(out, [source], num_tokens, seed=seed)
    return out.read_text(encoding="utf-8")


def test_length_and_repetition(source: Path) -> None:
    text = sampled(source, 20_000)
    assert abs(len(text.split()) + text.count("\n") - 20_000) <= 1
    assert sampled(source, 20_000) == text
    assert sampled(source, 20_000, seed=1) != text
    assert sampled(source, 10) == sampled(source, 10)


def test_words_are_the_sources_or_new(source: Path) -> None:
    words = sampled(source, 20_000).split()
    known = set(TOY_TEXT.split())
    new = [word for word in words if word not in known]
    assert set(words) >= known
    assert all(word[0] == "w" and word[1:].isdigit() for word in new)
    assert 0.001 < len(new) / len(words) < 0.2
    # By Zipf's law a few of the new words are frequent, and most occur once.
    assert len(set(new)) < len(new)


def test_it_looks_back_but_does_not_repeat(source: Path) -> None:
    words, of_source = sampled(source, 20_000).split(), TOY_TEXT.split()
    pairs, found = set(pairwise(of_source)), list(pairwise(words))
    share = sum(pair in pairs for pair in found) / len(found)
    assert 0.3 < share < 0.95
