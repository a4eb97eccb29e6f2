"""What an index finds is what reading the text finds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elman.base.errors import ElmanError, UsageError
from elman.ngrams import branching, mapped, suffix_array
from elman.ngrams.scratch import Scratch
from elman.ngrams.text_index import TextIndex, load_index, save_index

V = 5
SIZES: dict[str, Any] = {"vocab_size": V, "boundary_id": 0, "newlines_V": np.eye(V, dtype=int)[0]}
texts = st.lists(st.integers(0, V - 1), max_size=70)
wanted = st.lists(st.integers(0, V - 1), min_size=1, max_size=8)


def places_of(text: list[int], stretch: list[int]) -> list[int]:
    size = len(stretch)
    return [i for i in range(len(text) - size + 1) if text[i : i + size] == stretch]


def followers(text: list[int], stretch: list[int]) -> list[int]:
    ends = (place + len(stretch) for place in places_of(text, stretch))
    return [text[end] for end in ends if end < len(text)]


@settings(max_examples=150)
@given(texts, wanted)
def test_finds_every_place_and_what_follows(ids: list[int], stretch: list[int]) -> None:
    index, text = TextIndex.build(np.array(ids, int), **SIZES), [0, *ids]
    low, high = index.rows(np.array(stretch))
    assert sorted(index.positions(low, high).tolist()) == places_of(text, stretch)
    assert index.count(np.array(stretch)) == len(places_of(text, stretch))
    tokens, counts = index.continuations(low, high, len(stretch))
    found = dict(zip(tokens.tolist(), counts.tolist(), strict=True))
    assert found == Counter(followers(text, stretch))
    assert counts.tolist() == sorted(counts.tolist(), reverse=True)
    assert index.tokens(0, 100).tolist() == text


@settings(max_examples=100)
@given(texts, st.integers(1, 3))
def test_what_follows_is_looked_up_as_it_is_counted(ids: list[int], tokens_per_branch: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(branching, "FEWEST", 2)
        patch.setattr(branching, "TOKENS_PER_BRANCH", tokens_per_branch)
        patch.setattr(branching, "_AT_ONCE", 7)
        index, text = TextIndex.build(np.array(ids, int), **SIZES), [0, *ids]
    expected = dict[int, Counter[int]]()
    for size in range(1, branching.LONGEST + 1):
        for stretch in {tuple(text[i : i + size]) for i in range(len(text) - size + 1)}:
            low, high = index.rows(np.array(stretch))
            after = Counter(followers(text, list(stretch)))
            tokens, counts, number = index.most_frequent(low, high, size, branching.KEPT)
            every = index.continuations(low, high, size)
            assert (tokens.tolist(), counts.tolist()) == tuple(one.tolist() for one in every)
            assert (dict(zip(tokens.tolist(), counts.tolist(), strict=True)), number) == (
                after,
                len(after),
            )
            assert index.num_followed(low, high, size) == after.total()
            if len(after) >= 2:
                expected[branching.key(low, size)] = after
    kept = {at: row[0] for at, row in zip(index.branches, index.branch_counts, strict=True) if at}
    assert len(kept) == min(len(index.branches), len(expected))
    most = sorted(map(len, expected.values()), reverse=True)[: len(kept)]
    assert sorted(kept.values(), reverse=True) == most


@settings(max_examples=150)
@given(texts, wanted)
def test_only_a_stretch_that_is_kept_is_looked_up(ids: list[int], stretch: list[int]) -> None:
    """Not one that is absent, whose place is where the next one begins, nor a longer one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(branching, "FEWEST", 1)
        patch.setattr(branching, "TOKENS_PER_BRANCH", 1)
        index, text = TextIndex.build(np.array(ids, int), **SIZES), [0, *ids]
    for wanted in (stretch, text[-len(stretch) :], text[: branching.LONGEST + 2]):
        rows = index.rows(np.array(wanted))
        tokens, counts, number = index.most_frequent(*rows, len(wanted), branching.KEPT)
        after = Counter(followers(text, wanted))
        assert dict(zip(tokens.tolist(), counts.tolist(), strict=True)) == after
        assert number == len(after)


def test_more_continuations_than_are_kept() -> None:
    ids = np.minimum(np.random.default_rng(3).zipf(1.3, 100_000), 900) - 1
    sizes: dict[str, Any] = {"vocab_size": 900, "boundary_id": 0, "newlines_V": np.zeros(900, int)}
    index = TextIndex.build(ids, **sizes)
    assert index.branches[-1] > 0
    row, length = divmod(int(index.branches[-1]), branching.LONGEST + 1)
    (token,) = index.tokens(int(index.positions(row, row + 1)[0]), 1)
    assert length == 1
    low, high = index.rows(np.array([token]))
    tokens, counts = index.continuations(low, high, 1)
    for k in (3, branching.KEPT, branching.KEPT + 1):
        some, numbers, number = index.most_frequent(low, high, 1, k)
        assert some[:k].tolist() == tokens[:k].tolist()
        assert numbers[:k].tolist() == counts[:k].tolist()
        assert number == len(tokens)


@settings(max_examples=100)
@given(texts, wanted, wanted)
def test_follows_the_longest_match(ids: list[int], read: list[int], targets: list[int]) -> None:
    index, text = TextIndex.build(np.array(ids, int), **SIZES), [0, *ids]
    size = min(len(read), len(targets))
    tokens, targets = np.array(read[:size]), targets[:size]
    matches, state = index.follow(np.array([0]), tokens, np.array(targets))
    for t, target in enumerate(targets):
        context = [0, *read[: t + 1]]
        ends = [context[start:] for start in range(len(context))]
        match = next((end for end in ends if followers(text, end)), [])
        after = followers(text, match) if match else text
        assert matches[t, 0] == len(match)
        assert abs(matches[t, 1]) == len(after)
        assert matches[t, 2] == after.count(target)
        assert (matches[t, 1] < 0) == (bool(match) and len(set(after)) == 1)
    assert state[1] == matches[-1, 0]
    assert index.tokens(*state.tolist()).tolist() == [0, *read[:size]][size + 1 - state[1] :]


@settings(max_examples=100)
@given(texts, wanted)
def test_longest_shared_stretches(ids: list[int], other: list[int]) -> None:
    index, text = TextIndex.build(np.array(ids, int), **SIZES), [0, *ids]
    for end, (length, count, _) in enumerate(index.stretches(np.array(other)).tolist(), start=1):
        known = [n for n in range(1, end + 1) if places_of(text, other[end - n : end])]
        assert length == max(known, default=0)
        assert count == len(places_of(text, other[end - length : end])) or not length


@settings(max_examples=40)
@given(texts.filter(len))
def test_lines_of_files(ids: list[int]) -> None:
    ends = ids.count(0)
    first = ends // 2
    files = [("a.txt", first), ("b.txt", ends - first + 1)]  # the last line has no end
    index = TextIndex.build(np.array(ids), **SIZES, files=files)
    for position in range(1, len(ids) + 1):
        line = ids[: position - 1].count(0)
        expected = ("a.txt", line + 1) if line < first else ("b.txt", line - first + 1)
        place = index.place(position, SIZES["newlines_V"])
        assert (place.file, place.line) == expected


def test_files_whose_lines_are_not_those_of_the_text_are_dropped() -> None:
    index = TextIndex.build(np.array([1, 0, 2, 0]), **SIZES, files=[("a.txt", 7)])
    assert index.files == []
    assert index.place(2, SIZES["newlines_V"]).file is None


def _ids(size: int = 60_000, vocab_size: int = 3_000) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.minimum(rng.zipf(1.2, size) - 1, vocab_size - 1).astype(np.int32)


def _save(path: Path, ids: np.ndarray, vocab_size: int = 3_000, **options: Any) -> None:
    newlines = np.zeros(vocab_size, int)
    save_index(path, ids, vocab_size=vocab_size, boundary_id=0, newlines_V=newlines, **options)


def test_built_in_pieces_the_file_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _save(tmp_path / "whole", _ids())
    monkeypatch.setattr(suffix_array, "_PIECE_SIZE", 9_000)
    monkeypatch.setattr(suffix_array, "_MERGED_AT_ONCE", 5_000)
    with Scratch(tmp_path) as scratch:
        _save(tmp_path / "pieces", _ids(), scratch=scratch, memory=1)
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "pieces").read_bytes()


@pytest.mark.parametrize("cuts", [[20_000], [1, 100, 30_000, 30_100], [59_999]])
def test_joined_from_indexes_the_file_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuts: list[int]
) -> None:
    monkeypatch.setattr(suffix_array, "_MERGED_AT_ONCE", 5_000)
    ids = _ids()
    _save(tmp_path / "whole", ids)
    parts = []
    for number, some in enumerate(np.split(ids, cuts)):
        _save(tmp_path / str(number), some)
        parts.append(load_index(tmp_path / str(number))[0])
    with Scratch(tmp_path) as scratch:
        _save(tmp_path / "joined", ids, scratch=scratch, parts=parts)
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "joined").read_bytes()


@pytest.mark.parametrize("vocab_size", [3_000, 200_000])
def test_takes_at_most_six_bytes_a_token(tmp_path: Path, vocab_size: int) -> None:
    ids = np.random.default_rng(1).integers(0, vocab_size, 600_000)
    _save(tmp_path / "index", ids, vocab_size)
    own = (tmp_path / "index").stat().st_size - 8 * vocab_size  # a table of the vocabulary
    assert own / len(ids) < 6
    index, _ = load_index(tmp_path / "index")
    assert np.array_equal(index.tokens(1, 5_000), ids[:5_000])
    assert index.count(ids[1_000:1_003]) >= 1


def test_rare_tokens_take_less_space(tmp_path: Path) -> None:
    ids = np.minimum(np.random.default_rng(4).zipf(1.7, 300_000), 60_000) - 1
    _save(tmp_path / "index", ids, 60_000)
    index, _ = load_index(tmp_path / "index")
    assert index.token_bits < 16
    assert index.text.nbytes < 2 * len(ids)
    assert np.array_equal(index.tokens(1, len(ids)), ids)
    for position in np.random.default_rng(5).integers(0, len(ids), 500):
        assert index.tokens(position + 1, 1)[0] == ids[position]
    rarest = np.sort(ids)[-1]
    assert index.count(np.array([rarest])) == (ids == rarest).sum()
    before = ids[np.flatnonzero(ids == rarest)[0] - 1 :][:2]
    assert index.count(before) >= 1


def test_an_index_of_the_first_format_opens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = Path(__file__).parents[1] / "runs/specimens/format-2-infinigram/index.safetensors"
    read, header = load_index(path)
    assert header["format"] == 1
    monkeypatch.setattr(mapped, "SMALL", 0)
    opened, _ = load_index(path)
    text = read.tokens(0, read.num_tokens)
    assert np.array_equal(opened.stretches(text[5:40]), read.stretches(text[5:40]))
    newlines = np.arange(read.vocab_size) == read.boundary_id
    sizes: dict[str, Any] = {"vocab_size": read.vocab_size, "boundary_id": read.boundary_id}
    made = TextIndex.build(text[1:], **sizes, newlines_V=newlines)
    every = (0, read.num_tokens)
    assert np.array_equal(opened.positions(*every), made.positions(*every))
    low, high = opened.rows(text[5:6])
    found = opened.most_frequent(low, high, 1, 3)
    assert found[0].tolist() == made.most_frequent(low, high, 1, 3)[0].tolist()


@pytest.mark.parametrize("small", [mapped.SMALL, 0], ids=["read", "mapped"])
def test_a_saved_index_answers_as_the_one_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    monkeypatch.setattr(mapped, "SMALL", small)
    ids = _ids()
    _save(tmp_path / "index", ids, extra={"tokenizer": "x"})
    opened, header = load_index(tmp_path / "index")
    assert header["tokenizer"] == "x"
    newlines = np.zeros(3_000, int)
    made = TextIndex.build(ids, vocab_size=3_000, boundary_id=0, newlines_V=newlines)
    text = np.random.default_rng(2).permutation(ids)[:300]
    assert np.array_equal(opened.stretches(text), made.stretches(text))
    read = (
        opened.follow(text[:5], text[5:-1], text[6:]),
        made.follow(text[:5], text[5:-1], text[6:]),
    )
    assert np.array_equal(read[0][0], read[1][0])


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(0, 1, exclude_max=True), st.integers(1, 255))
def test_a_changed_byte_is_noticed_or_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: float, change: int
) -> None:
    monkeypatch.setattr(mapped, "SMALL", 0)
    path, ids = tmp_path / "index", _ids(4_000, 300)
    if not (tmp_path / "good").exists():
        _save(tmp_path / "good", ids, 300)
        good, _ = load_index(tmp_path / "good")
        np.save(tmp_path / "answers.npy", good.stretches(ids[:200]))
    data = bytearray((tmp_path / "good").read_bytes())
    data[int(where * len(data))] ^= change
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    try:
        found = load_index(path)[0].stretches(ids[:200])
    except ElmanError:
        return
    assert np.array_equal(found, np.load(tmp_path / "answers.npy"))


def test_ids_outside_the_vocabulary() -> None:
    index = TextIndex.build(np.array([1, 2, 0]), **SIZES)
    with pytest.raises(UsageError, match="token 9"):
        index.rows(np.array([9]))
    with pytest.raises(UsageError, match="token 9"):
        TextIndex.build(np.array([9]), **SIZES)
