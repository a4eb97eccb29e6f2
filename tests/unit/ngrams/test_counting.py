from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from by_hand import as_ids, counts
from hypothesis import given, settings
from hypothesis import strategies as st

from elman.ngrams import counting
from elman.ngrams.counting import _with_boundary, count
from elman.ngrams.reading import read_stretches, word_tokenizer
from elman.ngrams.trie import CountTrie, link

lines_of_tokens = st.lists(st.lists(st.integers(1, 5), max_size=7), max_size=12)


def listed(trie: CountTrie) -> dict[tuple[int, ...], int]:
    """All n-grams of a trie that occur, with their counts."""
    found = {}
    ngrams = [(i,) for i in range(trie.vocab_size)]
    for parents, level in zip([None, *trie.levels], trie.levels, strict=False):
        if parents is not None:
            ngrams = [
                (*ngrams[parent], int(level.words[child]))
                for parent in range(len(parents))
                for child in range(parents.first_child[parent], parents.first_child[parent + 1])
            ]
        found.update(
            {n: int(c) for n, c in zip(ngrams, level.counts, strict=True) if c or len(n) > 1}
        )
    return found


@settings(max_examples=200)
@given(lines_of_tokens, st.integers(1, 6))
def test_counts_are_those_of_a_dictionary(lines: list[list[int]], order: int) -> None:
    trie = count(as_ids(lines), order, vocab_size=7, boundary_id=0)
    assert listed(trie) == dict(counts(lines, order))


@settings(max_examples=100)
@given(lines_of_tokens, st.integers(2, 5))
def test_links_lead_to_the_ngram_without_its_first_token(
    lines: list[list[int]], order: int
) -> None:
    trie = count(as_ids(lines), order, vocab_size=7, boundary_id=0)
    ngrams = list(listed(trie))
    for ngram in ngrams:
        if len(ngram) > 1:
            index = trie.index(ngram)
            assert trie.levels[len(ngram) - 1].suffix[index] == trie.index(ngram[1:])


@pytest.mark.parametrize("vocab_size", [50, 70_000])
def test_links_by_position_and_by_search_are_the_same(
    vocab_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "_PIECE_SIZE", 100)  # many pieces, and groups larger than one
    rng = np.random.default_rng(0)
    ids = np.minimum(rng.zipf(1.3, 5_000), 49)
    ids[rng.random(len(ids)) < 0.1] = 0
    ids[-1] = 0
    trie = count(ids, 5, vocab_size=vocab_size, boundary_id=0, num_threads=3)
    by_position = [level.suffix.copy() for level in trie.levels]
    link(trie)
    for level, suffix in zip(trie.levels, by_position, strict=True):
        assert np.array_equal(level.suffix, suffix)
    assert listed(trie) == dict(counts(split_lines(ids), 5))


def split_lines(ids: np.ndarray) -> list[list[int]]:
    ends = np.flatnonzero(ids == 0)
    return [part[:-1].tolist() for part in np.split(ids, ends + 1)[:-1]]


def test_a_text_without_lines_is_one_line_that_never_ends() -> None:
    trie = count(np.array([1, 2, 1]), 3, vocab_size=3, boundary_id=0)
    assert listed(trie) == {
        (1,): 2, (2,): 1, (0, 1): 1, (1, 2): 1, (2, 1): 1, (0, 1, 2): 1, (1, 2, 1): 1,
    }  # fmt: skip


def test_no_text_at_all() -> None:
    trie = count(np.array([], np.int32), 3, vocab_size=4, boundary_id=0)
    assert [len(level) for level in trie.levels] == [4, 0, 0]
    assert not trie.levels[0].counts.any()


def test_ids_after_a_boundary_are_counted_where_they_are() -> None:
    whole = np.random.default_rng(0).integers(0, 70_000, 5000).astype(np.int32)
    whole[0] = 3
    sizes = {"vocab_size": 70_000, "boundary_id": 3}
    assert _with_boundary(whole[1:], 3) is whole
    for other in (whole[1:].copy(), whole[1:-1], whole[1:].astype(np.int64)):
        assert _with_boundary(other, 3) is not whole
    for one, other in zip(
        count(whole[1:], 3, **sizes).levels, count(whole[1:].copy(), 3, **sizes).levels, strict=True
    ):
        assert np.array_equal(one.words, other.words)
        assert np.array_equal(one.counts, other.counts)
        assert np.array_equal(one.suffix, other.suffix)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_ids_are_overwritten_after_release_alone(
    num_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "_PIECE_SIZE", 100)
    whole = np.random.default_rng(0).integers(0, 20, 20_000).astype(np.int32)
    whole[0] = 3
    before, seen = whole.copy(), list[bool]()
    options = {"vocab_size": 20, "boundary_id": 3, "num_threads": num_threads}
    kept = count(whole[1:], 5, **options)
    assert np.array_equal(whole, before)
    found = count(
        whole[1:], 5, **options, release=lambda: seen.append(np.array_equal(whole, before))
    )
    assert seen == [True]
    assert not np.array_equal(whole, before)
    for one, other in zip(kept.levels, found.levels, strict=True):
        for name in ("words", "counts", "suffix", "first_child"):
            assert np.array_equal(getattr(one, name), getattr(other, name))


def test_reading_leaves_a_boundary_before_the_ids(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a b\nb a a\n")
    stretches = read_stretches([tmp_path / "text.txt"])
    for kind in ("pretokenized", "word"):
        tokenizer = word_tokenizer(stretches, kind)
        ids = stretches.ids(tokenizer)
        assert _with_boundary(ids, tokenizer.boundary_id) is ids.base
