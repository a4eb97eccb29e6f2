from __future__ import annotations

import contextlib
import gzip
import math
from pathlib import Path

import numpy as np
import pytest
from by_hand import as_ids
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elman.base.errors import ElmanError
from elman.base.shared_file import SharedFile
from elman.base.threads import in_threads
from elman.ngrams import arpa_write
from elman.ngrams.arpa_parse import _read_number, number
from elman.ngrams.arpa_read import ArpaFile, read_arpa
from elman.ngrams.arpa_write import _decimals, _format_unigrams, spelled, write_arpa
from elman.ngrams.backoff import BackoffModel
from elman.ngrams.counting import count
from elman.ngrams.smoothing import SMOOTHINGS, build
from elman.tasks.ngram.settings import NgramConfig

LINES = [[2, 3, 4], [2, 3, 5], [3, 4], [2, 3, 4, 3]]
SPELLINGS = ["<eos>", "<unk>", "a", "bb", "ccc", "über"]

SMALL = r"""
some text that is not data

\data\
ngram 1=5
ngram  2 = 3

\1-grams:
-1.0	<unk>
-99	<s>	-0.5
-0.5 </s>
-0.4	a	0.25
-0.6	b	-0.1


\2-grams:
-0.2	<s> a
-0.3	a b
-0.25	b </s>

\end\
"""


def model(smoothing: str = "kneser-ney", order: int = 3) -> BackoffModel:
    trie = count(as_ids(LINES), order, vocab_size=6, boundary_id=0)
    return build(trie, NgramConfig(order=order, smoothing=smoothing))  # type: ignore[arg-type]


def read(text: str, tmp_path: Path) -> ArpaFile:
    path = tmp_path / "m.arpa"
    path.write_bytes(text.encode())
    return read_arpa(path)


@pytest.mark.parametrize("name", ["m.arpa", "m.arpa.gz"])
@pytest.mark.parametrize("order", [1, 2, 4])
def test_what_is_written_reads_back_with_the_same_scores(
    tmp_path: Path, name: str, order: int
) -> None:
    written = model(order=order)
    write_arpa(tmp_path / name, written, SPELLINGS, unknown_id=1)
    found = read_arpa(tmp_path / name)
    ids = np.array([SPELLINGS.index(word) for word in found.words])
    text = as_ids([*LINES[::-1], [5, 1, 2]])
    position = np.argsort(ids)
    assert found.model.score(position[text]) == pytest.approx(written.score(text), abs=1e-5)
    assert found.model.num_ngrams == written.num_ngrams


@pytest.mark.parametrize("smoothing", sorted(SMOOTHINGS))
def test_every_smoothing_can_be_written(tmp_path: Path, smoothing: str) -> None:
    written = model(smoothing)
    write_arpa(tmp_path / "m.arpa", written, SPELLINGS, unknown_id=1)
    found = read_arpa(tmp_path / "m.arpa")
    ids = {word: i for i, word in enumerate(found.words)}
    text = as_ids(LINES)
    mapped = np.array([ids[SPELLINGS[token]] for token in text])
    assert found.model.score(mapped) == pytest.approx(written.score(text), abs=1e-5)


def test_the_written_text_is_as_others_write_it(tmp_path: Path) -> None:
    write_arpa(tmp_path / "m.arpa", model(order=2), SPELLINGS, unknown_id=1)
    lines = (tmp_path / "m.arpa").read_text().split("\n")
    assert lines[:3] == ["\\data\\", "ngram 1=7", "ngram 2=9"]
    assert [line.split("\t")[1] for line in lines[5:12]] == [
        "<unk>", "<s>", "</s>", "a", "bb", "ccc", "über",
    ]  # fmt: skip
    assert all(len(line.split("\t")) == 3 for line in lines[5:12])
    bigrams = lines[lines.index("\\2-grams:") + 1 :]
    assert [line.split("\t")[1] for line in bigrams[:2]] == ["<s> a", "<s> bb"]
    assert any(line.endswith("ccc </s>") for line in bigrams)
    assert lines[-2:] == ["\\end\\", ""]


def test_tokens_with_white_space_and_marks_of_the_format_are_spelled_out(tmp_path: Path) -> None:
    spellings = ["<eos>", " ", "\n", "</s>", "a b", "é"]
    trie = count(np.array([1, 2, 3, 4, 5]), 2, vocab_size=6, boundary_id=0)
    write_arpa(tmp_path / "m.arpa", build(trie, NgramConfig(order=2)), spellings)
    found = read_arpa(tmp_path / "m.arpa")
    assert found.words[2:] == ["<0x20>", "<0x0A>", "<0x3C>/s>", "a<0x20>b", "é"]


def test_spaces_blank_lines_and_text_in_front_are_accepted(tmp_path: Path) -> None:
    found = read(SMALL, tmp_path)
    assert found.words == ["<eos>", "<unk>", "a", "b"]
    log10 = found.model.score(np.array([2, 3, 0, 3, 1])) / math.log(10)
    assert log10 == pytest.approx([-0.2, -0.3, -0.25, -0.5 - 0.6, -0.1 - 1.0], abs=1e-6)
    assert found.model.about["notes"] == []


@pytest.mark.parametrize(
    ("change", "by"),
    [
        ("\n", "\r\n"),
        ("\t", " "),
        ("\\end\\\n", "\\end\\"),
        ("<unk>", "<UNK>"),
        (" a b", "  a  b "),
    ],
)
def test_other_ways_to_write_the_same(tmp_path: Path, change: str, by: str) -> None:
    text = np.array([2, 3, 0, 3, 1])
    expected = read(SMALL, tmp_path).model.score(text)
    assert np.array_equal(read(SMALL.replace(change, by), tmp_path).model.score(text), expected)


def test_without_unknown_the_unknown_word_is_as_good_as_impossible(tmp_path: Path) -> None:
    found = read(SMALL.replace("-1.0	<unk>\n", "").replace("1=5", "1=4"), tmp_path)
    assert found.model.score(np.array([1]))[0] == pytest.approx(-100.5 * math.log(10))
    assert "-100" in found.model.about["notes"][0]


def test_a_context_that_is_not_listed_changes_no_score(tmp_path: Path) -> None:
    text = SMALL.replace("ngram  2 = 3", "ngram 2=3\nngram 4=1".replace("4=1", "3=0\nngram 4=1"))
    text = text.replace("\n\\end\\", "\n\\3-grams:\n\n\\4-grams:\n-0.05	b b a b\n\n\\end\\")
    found = read(text, tmp_path)
    log10 = found.model.score(np.array([3, 3, 2, 3])) / math.log(10)
    plain = read(SMALL, tmp_path).model.score(np.array([3, 3, 2])) / math.log(10)
    assert log10[:3] == pytest.approx(plain, abs=1e-6)
    assert log10[3] == pytest.approx(-0.05, abs=1e-6)


def test_a_positive_log_probability_is_noted(tmp_path: Path) -> None:
    found = read(SMALL.replace("-0.3\ta b", "0.3\ta b"), tmp_path)
    assert found.model.score(np.array([2, 3]))[1] == 0
    assert "above 0" in found.model.about["notes"][0]


def test_ends_of_lines_in_the_midst_of_an_ngram_never_apply(tmp_path: Path) -> None:
    text = SMALL.replace("2 = 3", "2 = 5").replace(
        "-0.3	a b", "-0.3	a b\n-1	</s> a\n-1	a <s>"
    )
    expected = read(SMALL, tmp_path).model
    assert read(text, tmp_path).model.num_ngrams == expected.num_ngrams


@pytest.mark.parametrize(
    ("change", "by", "line", "reason"),
    [
        ("-0.6\tb", "x6\tb", 13, "'x6' is not a number"),
        ("-0.3\ta b", "-0.3.1\ta b", 18, "'-0.3.1' is not a number"),
        ("-0.3\ta b", "nan\ta b", 18, "'nan' is not a number"),
        ("-0.3\ta b", "-0.3\ta b -0.1x", 18, "'-0.1x' is not a number"),
        ("-0.3\ta b", "-0.3\ta b 1e999", 18, "'1e999' is too large"),
        ("-0.3\ta b", "-0.3\ta b -inf", 18, "'-inf' is too large; only"),
        ("-0.3\ta b", "-1e999\ta b", 18, "'-1e999' is too large"),
        ("-0.3\ta b", "0e999\ta b", 18, "'0e999' is too large"),
        ("-0.6\tb\t-0.1", "-0.6\tb\t1e38", 13, "'1e38' is too large"),
        ("-0.6\tb\t-0.1", "-0.6\tb\t-inf", 13, "'-inf' is too large; only"),
        ("-0.6\tb", "-1e999\tb", 13, "'-1e999' is too large"),
        ("1=5", "1=0", 8, "without words"),
        ("-0.3\ta b", "-0.3\ta b\n\n-0.1\ta b", 20, "'a b' is listed a second time"),
        ("-0.2\t<s> a", "-0.2\t<s> a\n-0.2\t<s> a", 18, "'<s> a' is listed a second time"),
        ("-0.3\ta b", "-0.3\ta c", 18, "'c' is not among the 1-grams"),
        ("-0.3\ta b", "-0.3\ta", 18, "2 words"),
        ("-0.3\ta b", "-0.3\ta b -1 -1", 18, "2 words"),
        ("-0.6\tb\t-0.1", "-0.6\tb\t-0.1\t3", 13, "1 words"),
        ("-0.6\tb", "-0.6\ta", 13, "a second time"),
        ("2 = 3", "2 = 4", 21, "says 4 2-grams, the file has 3"),
        ("1=5", "1=6", 16, "says 6 1-grams, the file has 5"),
        ("\\2-grams:", "\\3-grams:", 16, "expected \\\\2-grams:"),
        ("ngram 1=5", "ngram 2=5", 5, "expected 'ngram 1='"),
        ("ngram 1=5\nngram  2 = 3\n", "", 6, "expected 'ngram 1='"),
        ("\\end\\\n", "", 20, "truncated"),
    ],
)
def test_what_is_wrong_is_refused_with_its_line(
    tmp_path: Path, change: str, by: str, line: int, reason: str
) -> None:
    assert change in SMALL
    with pytest.raises(ElmanError, match=reason) as refused:
        text = SMALL.replace(change, by)
        read(text if "second time" not in reason else text.replace("2 = 3", "2 = 4"), tmp_path)
    assert f"line {line}:" in str(refused.value)


def test_a_probability_may_be_zero(tmp_path: Path) -> None:
    text = SMALL.replace("-0.3\ta b", "-inf\ta b").replace("-0.6\tb", "-Inf\tb")
    scores = read(text, tmp_path).model.score(np.array([2, 3, 3]))
    assert np.isneginf(scores).tolist() == [False, True, True]


def test_a_missing_end_of_line_is_noted(tmp_path: Path) -> None:
    text = SMALL.replace("-0.5 </s>\n", "").replace("-0.25\tb </s>\n", "")
    found = read(text.replace("1=5", "1=4").replace("2 = 3", "2 = 2"), tmp_path)
    (note,) = found.model.about["notes"]
    assert note == "no </s> in the file: the end of a line has probability 0"


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ElmanError, match="not an ARPA file") as refused:
        read("some text\n" * 10, tmp_path)
    assert refused.value.hint
    path = tmp_path / "m.arpa.gz"
    path.write_bytes(gzip.compress(SMALL.encode())[:-20])
    with pytest.raises(ElmanError, match="damaged"):
        read_arpa(path)


def test_an_endless_line_is_refused_where_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elman.ngrams.arpa_read._BLOCK_SIZE", 1000)
    text = SMALL.replace("-0.3\ta b", "-0.3\t" + "a " * 2000)
    with pytest.raises(ElmanError, match="line 18: the line is longer"):
        read(text, tmp_path)


def test_a_promise_of_very_many_ngrams_takes_no_memory(tmp_path: Path) -> None:
    with pytest.raises(ElmanError, match="the header says"):
        read(SMALL.replace("2 = 3", f"2 = {10**17}"), tmp_path)


def test_every_cut_of_a_file_is_refused(tmp_path: Path) -> None:
    end = SMALL.rindex("\\end\\") + 4
    for size in range(0, end, 3):
        with pytest.raises(ElmanError):
            read(SMALL[:size], tmp_path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200), st.integers(0, len(SMALL)))
def test_rubbish_is_refused_or_read_but_never_crashes(
    tmp_path: Path, rubbish: bytes, place: int
) -> None:
    path = tmp_path / "m.arpa"
    path.write_bytes(SMALL.encode()[:place] + rubbish + SMALL.encode()[place:])
    with contextlib.suppress(ElmanError):
        read_arpa(path).model.score(np.array([1, 1, 0]))


@pytest.mark.parametrize(
    "text",
    ["-1.5", "+2", ".5", "5.", "-1e-3", "1E+05", "-inf", "-99", "12345678.9012345678", "007"],
)
def test_numbers(text: str) -> None:
    value, valid = _read_number(np.frombuffer(text.encode(), np.uint8), 0, len(text))
    assert valid
    assert value == pytest.approx(float(text), rel=1e-14)
    assert number(text.encode()) == float(text)


@pytest.mark.parametrize(
    "text", ["", "-", "1e", "1.2.3", "nan", "1_0", "0x1", "--1", "1e99999", "a"]
)
def test_other_things_are_no_numbers(text: str) -> None:
    assert not _read_number(np.frombuffer(text.encode() + b"x", np.uint8), 0, len(text))[1]


@pytest.mark.parametrize("size", [1, 14, 15, 16, 17, 40, 3000])
def test_words_of_any_length(tmp_path: Path, size: int) -> None:
    spellings = ["<eos>", "<unk>", *(letter * size for letter in "abcd")]
    written = model(order=4)
    write_arpa(tmp_path / "m.arpa", written, spellings, unknown_id=1)
    found = read_arpa(tmp_path / "m.arpa")
    assert found.words == spellings
    assert found.model.score(as_ids(LINES)) == pytest.approx(written.score(as_ids(LINES)), abs=1e-5)


def test_orders_have_a_limit(tmp_path: Path) -> None:
    sizes = "".join(f"ngram {n}=1\n" for n in range(1, 102))
    with pytest.raises(ElmanError, match="line 102: n-grams are longer than 100 words"):
        read(f"\\data\\\n{sizes}", tmp_path)


@pytest.mark.parametrize("length", [1, 2])
def test_a_message_quotes_the_beginning_of_a_long_word(tmp_path: Path, length: int) -> None:
    word = "x" * 100_000
    line = f"-1 {' '.join([word] * length)}\n"
    sections = "".join(
        f"\\{n}-grams:\n" + (line * 2 if n == length else f"-1 {word}\n")
        for n in range(1, length + 1)
    )
    sizes = "".join(f"ngram {n}={1 + (n == length)}\n" for n in range(1, length + 1))
    with pytest.raises(ElmanError, match="listed a second time") as refused:
        read(f"\\data\\\n{sizes}{sections}\\end\\\n", tmp_path)
    assert len(refused.value.message) < 400


NUMBERS = st.one_of(
    st.floats(-99, 99),
    st.floats(-99, 1e6, width=32),
    st.integers(-(10**9), 10**9).map(lambda i: (i + 0.5) * 1e-7),  # halves
    st.integers(-(10**6), 10**6).map(lambda i: i / 2**20),
)


@settings(max_examples=300)
@given(st.lists(NUMBERS, min_size=1), st.booleans())
def test_numbers_of_single_tokens_are_rounded_as_python_does(
    values: list[float], weighted: bool
) -> None:
    words = spelled([f"w{i}".encode() for i in range(len(values))])
    columns = [_decimals(np.array(column)) for column in (values, values[::-1])]
    text = np.empty(60 * len(values), np.uint8)
    numbers = np.arange(len(values))
    size = _format_unigrams(
        *columns[0], *columns[1], numbers, words.letters, words.starts, weighted, text
    )
    lines = [
        f"{one:.7f}\tw{i}\t{other:.7f}\n" if weighted else f"{one:.7f}\tw{i}\n"
        for i, (one, other) in enumerate(zip(values, values[::-1], strict=True))
    ]
    assert text[:size].tobytes().decode() == "".join(lines)


@pytest.mark.parametrize("most", [0, 2, 100])
def test_parts_are_written_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(arpa_write, "_PATIENCE", 0.01)
    parts = [bytes([n]) * (n % 7) for n in range(200)]
    order = sorted(range(200), key=lambda n: (n // 10, -n))
    with SharedFile(tmp_path / "a", 0, 3) as output:
        whole = arpa_write._InOrder(output, most)
        found = in_threads(lambda n: whole.add(n, [parts[n]]), order, 3)
    assert (tmp_path / "a").read_bytes() == b"".join(parts)
    assert sorted(text for texts in found for text in texts) == sorted(parts)


@pytest.mark.parametrize("num_threads", [1, 5])
def test_an_error_while_writing_ends_all_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_threads: int
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(arpa_write, "_STRETCH", 1)
    monkeypatch.setattr(SharedFile, "put", fail)
    with pytest.raises(ElmanError, match="disk is full"):
        write_arpa(tmp_path / "x.arpa", model(), SPELLINGS, num_threads=num_threads)
    assert not list(tmp_path.iterdir())
