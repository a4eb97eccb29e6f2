"""The tokenizer of counted words is the one that the library makes of them, byte for byte."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elman.ngrams import vocabulary
from elman.ngrams.reading import read_stretches, word_tokenizer
from elman.ngrams.vocabulary import Spellings
from elman.tokens import pretokenized, tokenizer
from elman.tokens.counting import most_frequent
from elman.tokens.fitting import Fitting
from elman.tokens.tokenizer import TOKENIZER_FILES, Tokenizer

AWKWARD = (
    'the " \\ \\\\ "quoted" \x01 \x08 \x0e\x1b \x7f a\x7fb é ß Ω 学生 ￿ 😀 𐀀x 􏿿 <eos> <unk> <eos>, '
    "<s> -LRB- - < N N-year 1995 1,5 Yahoo! who? yes; A, _, é! é, \u2060 \ue000 İ ǅ ª don't "
    "aaaaaaaa aaaaaaaab aaaaaaaaa aaaaaaaa\x01 Aaaaaaaa . ,"
)
LISTED = {
    "awkward": AWKWARD,
    "repeated": f"{AWKWARD}\n{AWKWARD[:60]}\nthe the é é é",
    "lower-case": "the cat , sat on a mat . n't é",
    "numbers": "the N cats sat on N-year mats , N, .",
    "not numbers": "N 12 the cat",
    "punctuated": "the cat, sat; on! a mat? é, the_ 1,",
    "empty": "",
    "one": "word",
}


def spelled(words: list[str]) -> Spellings:
    letters = np.frombuffer("".join(words).encode(), np.uint8)
    return Spellings(letters, np.cumsum([0, *(len(word.encode()) for word in words)]))


def of_library(text: str, *, lowercase: bool, min_count: int = 1, limit: int = 0) -> Tokenizer:
    counts = Counter(text.split())
    for special in ("<eos>", "<unk>"):
        counts.pop(special, None)
    words = most_frequent(counts, min_count)
    return Tokenizer(pretokenized.build(words[: limit or None], lowercase=lowercase))


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize("lowercase", [False, True], ids=["", "lowercase"])
@pytest.mark.parametrize("text", LISTED.values(), ids=LISTED)
def test_the_files_are_those_of_the_library(
    text: str, lowercase: bool, large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (vocabulary, tokenizer):
        monkeypatch.setattr(module, "LARGE", 3 if large else 1000)
    path = tmp_path / "text.txt"
    path.write_text(text, encoding="utf-8")
    if lowercase:
        text = text.replace("Σ", "σ").lower()
    ours = word_tokenizer(
        read_stretches([path], lowercase=lowercase), "pretokenized", lowercase=lowercase
    )
    theirs = of_library(text, lowercase=lowercase)
    for name in ("kind", "vocab_size", "boundary_id", "unknown_id", "hash", "old_hash"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.training_form == theirs.training_form
    assert ours.spellings() == theirs.spellings()
    assert ours.names() == theirs.names()
    assert ours.to_json() == theirs.to_json()
    assert ours.encode(AWKWARD).tolist() == theirs.encode(AWKWARD).tolist()
    assert ours.encode_spans(AWKWARD)[1] == theirs.encode_spans(AWKWARD)[1]
    assert ours.extended(["one", "more"]).hash == theirs.extended(["one", "more"]).hash
    fitted = [Fitting(one).tokenizer_for(["The Cat 12 ."]) for one in (ours, theirs)]
    assert fitted[0].encode(AWKWARD).tolist() == fitted[1].encode(AWKWARD).tolist()
    for name, one in (("ours", ours), ("theirs", theirs)):
        (tmp_path / name).mkdir()
        one.save(tmp_path / name / "tokenizer.json")
    for name in TOKENIZER_FILES:
        found = [tmp_path / side / name for side in ("ours", "theirs")]
        assert found[0].exists() == found[1].exists()
        if found[0].exists():
            assert found[0].read_bytes() == found[1].read_bytes()


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs", "Z", "Cc"]), min_size=1)),
    st.integers(0, 4),
    st.integers(1, 3),
)
def test_limits_are_those_of_the_library(
    tmp_path: Path, words: list[str], limit: int, min_count: int
) -> None:
    text = f"{' '.join(words)}\n"
    path = tmp_path / "text.txt"
    path.write_text(text, encoding="utf-8")
    stretches = read_stretches([path])
    size = {"vocab_size": limit + 2 if limit else 0, "min_count": min_count}
    ours = word_tokenizer(stretches, "pretokenized", **size)
    text = path.read_text(encoding="utf-8").removeprefix("\ufeff")
    theirs = of_library(text, lowercase=False, limit=limit, min_count=min_count)
    assert (ours.hash, ours.to_json()) == (theirs.hash, theirs.to_json())
    assert stretches.ids(ours).tolist() == theirs.encode(text).tolist()
    assert json.loads(ours.to_json())["model"]["vocab"] == dict(theirs._kind.vocab)


def test_many_words_are_sorted_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "_TIES", 50)
    random = np.random.default_rng(0)
    words = {"=" * size for size in range(1, 200)} | {f"http://{i}" for i in range(500)}
    words |= {"".join(random.choice([*"ab\x01é😀"], size)) for size in random.integers(1, 12, 900)}
    shuffled = random.permutation(sorted(words)).tolist()
    order = spelled(shuffled).by_spelling()
    assert [shuffled[i] for i in order] == sorted(words)
