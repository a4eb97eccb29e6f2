from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elman.base.errors import ElmanError
from elman.ngrams.reading import read_stretches, word_tokenizer

TEXT = "the cat, the dog\n\nthe <unk> isn't a\tcat\rnor <eos> a dog\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "text.txt"


@settings(
    deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.text(
        st.one_of(
            st.sampled_from(
                "ab.'  \n\t\r\x0b\x1c\x1f\x85\xa0\u1680\u2003\u2028\u202f\u205f\u3000é字"
            ),
            st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
        ),
    ),
    st.sampled_from(["pretokenized", "word"]),
    st.booleans(),
)
def test_ids_are_the_tokenizers_own(file: Path, text: str, kind: str, lowercase: bool) -> None:
    # What reading a file does to line ends and marks at the beginning is not the subject here.
    text = (text.removeprefix("\ufeff") + "\n").replace("\r\n", "\n")
    file.write_bytes(text.encode())
    stretches = read_stretches([file], lowercase=lowercase)
    tokenizer = word_tokenizer(stretches, kind, lowercase=lowercase)
    assert stretches.ids(tokenizer).tolist() == tokenizer.encode(text).tolist()
    assert stretches.num_bytes == len(text.encode())


def test_the_vocabulary_falls_in_frequency(file: Path) -> None:
    file.write_text(TEXT)
    stretches = read_stretches([file])
    assert word_tokenizer(stretches, "pretokenized").spellings() == [
        "<eos>", "<unk>", "the", "a", "dog", "cat", "cat,", "isn't", "nor",
    ]  # fmt: skip
    few = word_tokenizer(stretches, "word", vocab_size=5, min_count=2)
    assert few.spellings() == ["<eos>", "<unk>", "the", "a", "cat"]


def test_the_table_grows_as_it_must(file: Path) -> None:
    words = [f"word{i}" for i in range(70_000)] + ["x" * 600_000]
    text = " ".join(words) + "\n" + " ".join(words[::-1]) + "\n"
    file.write_text(text)
    stretches = read_stretches([file])
    assert stretches.spellings[1:] == words
    numbers = np.arange(1, len(words) + 1)
    expected = np.concatenate([numbers, [0], numbers[::-1], [0]])
    assert np.array_equal(stretches.numbers, expected)


def test_what_is_not_utf8_is_refused_with_its_line(file: Path) -> None:
    file.write_bytes(b"good\nbad \xff\n")
    with pytest.raises(ElmanError, match="line 2"):
        read_stretches([file])
