"""`elman score` and `elman pairs` over tables, as a psycholinguist uses them."""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elman import api
from elman.testing import TOY_TEXT

Elman = Callable[..., Any]
SENTENCES = ("The student opened her book.", "the teacher lost the exam paper.")
CSV = "subject,sentence,rt\n" + "".join(f'p{i},"{s}",30{i}\n' for i, s in enumerate(SENTENCES))


@pytest.fixture(scope="module")
def counted(elman: Elman, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    (folder / "toy.txt").write_text(TOY_TEXT, encoding="utf-8")
    elman("train", "ngram", folder / "toy.txt", "--out", folder / "counted").ok()
    return folder / "counted"


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str, str], Path]:
    def write(name: str, content: str) -> Path:
        path = tmp_path / name
        path.write_text(content, encoding="utf-8")
        return path

    return write


def rows(printed: str) -> list[dict[str, str]]:
    header, *lines = (line.split("\t") for line in printed.rstrip("\n").split("\n"))
    return [dict(zip(header, line, strict=True)) for line in lines]


def test_other_columns_are_carried_through(elman: Elman, counted: Path, file: Any) -> None:
    table = file("t.csv", CSV)
    found = elman("score", counted, table, "--column", "sentence").ok()
    assert found.err.startswith("· 0 of 13 tokens are unknown to the model (0.0%)\n")
    words = rows(found.out)
    assert [row["text"] for row in words] == " ".join(SENTENCES).split()
    assert [row["rt"] for row in words] == ["300"] * 5 + ["301"] * 6
    assert "sentence" not in words[0]  # it is there word by word
    assert [row["line"] for row in words] == ["2"] * 5 + ["3"] * 6
    assert [row["length"] for row in words[:5]] == ["3", "7", "6", "3", "4"]  # without marks
    expected = [
        row.surprisal
        for text in SENTENCES
        for row in api.load(counted).surprisal(text, unit="word", include_end=False)
    ]
    assert [float(row["surprisal"]) for row in words] == pytest.approx(expected, abs=1e-5)
    whole = elman("score", counted, table, "--column", "sentence", "--unit", "line", "--json").json
    assert [row["subject"] for row in whole] == ["p0", "p1"]
    assert [row["sentence"] for row in whole] == list(SENTENCES)
    assert "region" not in whole[0]
    assert whole[0]["surprisal"] == pytest.approx(math.fsum(expected[:5]))


def test_forms_of_tables_are_read_alike(elman: Elman, counted: Path, file: Any) -> None:
    def scored(path: object, stdin: str = "") -> list[float]:
        found = elman("score", counted, path, "--column", "sentence", "--json", stdin=stdin).ok()
        return [row["surprisal"] for row in found.json]

    tabs = "sentence\tn\n" + "".join(f"{s}\t1\n" for s in SENTENCES)
    quoted = '"sentence"\t"n"\n' + "".join(f'"{s}"\t1\n' for s in SENTENCES)
    semicolons = "sentence;n\n" + "".join(f"{s};1\n" for s in SENTENCES)
    packed = file("t.tsv.gz", "")
    packed.write_bytes(gzip.compress(tabs.encode()))
    expected = scored(file("t.csv", CSV))
    assert len(expected) == 11
    for found in (
        scored(file("t.tsv", tabs)),
        scored(file("quoted.tsv", quoted)),
        scored(file("t2.csv", semicolons)),
        scored(packed),
        scored("-", tabs),
        scored(file("t.jsonl", "".join(f'{{"sentence": "{s}"}}\n' for s in SENTENCES))),
    ):
        assert found == pytest.approx(expected)


def test_a_table_of_a_spreadsheet_has_its_encoding(elman: Elman, counted: Path, file: Any) -> None:
    table = file("excel.csv", "")
    table.write_bytes("item;sätze\r\n1;The student – opened.\r\n".encode("cp1252"))
    asked = (table, "--column", "sätze")
    message, hint = elman("score", counted, *asked).error
    assert "is not UTF-8" in message
    assert "--encoding cp1252" in hint
    found = elman("score", counted, *asked, "--encoding", "cp1252", "--json").ok().json
    assert [row["text"] for row in found] == ["The", "student", "–", "opened."]
    named = ("--good", "sätze", "--bad", "item", "--encoding", "cp1252")
    elman("pairs", counted, table, *named).ok()
    assert elman("data", "check", table).code == 1
    elman("data", "check", table, "--encoding", "cp1252").ok()
    elman("evaluate", counted, table, "--encoding", "cp1252").ok()


def test_models_stand_side_by_side(elman: Elman, counted: Path, model: Path, file: Any) -> None:
    table = file("t.csv", CSV)
    asked = ("--column", "sentence", "--with", model, "--entropy", "--json")
    found = elman("score", counted, table, *asked).ok()
    assert [line.split(": ")[0] for line in found.err.splitlines()[:1]] == [f"· {counted}"]
    alone = elman("score", model, table, "--column", "sentence", "--entropy", "--json").ok().json
    for both, one in zip(found.json, alone, strict=True):
        assert {"surprisal_counted", "surprisal_chars"} < set(both)
        assert both["surprisal_chars"] == pytest.approx(one["surprisal"])
        assert both["entropy_chars"] == pytest.approx(one["entropy"])


def test_regions_are_summed(elman: Elman, counted: Path, file: Any) -> None:
    marked = "item,sentence\n1,The student | opened | her book.\n"
    columns = "item,a,b,c\n1,The student,opened,her book.\n"
    words = "item,sentence\n1,The student opened her book.\n"
    by_word = elman(
        *("score", counted, file("w.csv", words), "--column", "sentence", "--entropy", "--json")
    ).json
    for found in (
        elman(
            *("score", counted, file("m.csv", marked), "--column", "sentence"),
            *("--separator", "|", "--entropy", "--json"),
        ).ok(),
        elman(
            *("score", counted, file("c.csv", columns), "--regions", "a,b,c", "--entropy", "--json")
        ).ok(),
    ):
        regions = found.json
        assert [row["text"] for row in regions] == ["The student", "opened", "her book."]
        for name in ("surprisal", "entropy_reduction"):
            values = [row[name] for row in by_word]
            sums = [values[0] + values[1], values[2], values[3] + values[4]]
            assert [row[name] for row in regions] == pytest.approx(sums)
        assert [row["entropy"] for row in regions] == [by_word[i]["entropy"] for i in (0, 2, 3)]
    assert [row["region"] for row in regions] == ["a", "b", "c"]


def test_spill_over_frequency_and_entropy(elman: Elman, counted: Path, file: Any) -> None:
    corpus = file("corpus.txt", "The the book. zebra\n")
    asked = ("--frequency", corpus, "--spillover", 2, "--entropy", "--base", "e", "--json")
    found = elman("score", counted, "-", *asked, stdin="the book the\nthe\n").ok().json
    assert [row["line"] for row in found] == [1, 1, 1, 2]
    # 4 words of 3 types, and one more for words that the corpus lacks.
    logs = [math.log(3 / 8), math.log(2 / 8), math.log(3 / 8), math.log(3 / 8)]
    assert [row["log_frequency"] for row in found] == pytest.approx(logs)
    assert [row["prev1_surprisal"] for row in found] == [
        *(None, found[0]["surprisal"], found[1]["surprisal"], None)
    ]
    assert [row["prev2_length"] for row in found] == [None, None, 3, None]
    lm = api.load(counted)
    probabilities = [p for _, p in lm.next("the", k=lm.tokenizer.vocab_size)]
    entropy = -math.fsum(p * math.log(p) for p in probabilities if p)
    assert found[1]["entropy"] == pytest.approx(entropy, rel=1e-4)
    assert found[0]["entropy_reduction"] == pytest.approx(
        found[0]["entropy"] - found[1]["entropy"], abs=1e-5
    )


def test_wrong_tables_are_refused(elman: Elman, counted: Path, file: Any) -> None:
    table = file("t.csv", CSV)
    found = elman("score", counted, table, "--column", "sentense")
    assert (found.code, found.error[1]) == (2, "did you mean 'sentence'?")
    taken = file("taken.csv", "surprisal,sentence\n1,the book\n")
    found = elman("score", counted, taken, "--column", "sentence")
    assert found.code == 2
    assert "--prefix" in found.error[1]
    found = elman("score", counted, taken, "--column", "sentence", "--prefix", "lm_").ok()
    assert rows(found.out)[0]["lm_text"] == "the"
    ragged = file("ragged.csv", "a,sentence\n1,the book,more\n")
    assert "line 2" in elman("score", counted, ragged, "--column", "sentence").error[0]
    header = file("header.csv", "item,condition,sentence\n")
    for command in ("score", "pairs"):
        found = elman(command, counted, header, "--column", "sentence")
        assert found.error[0] == f"{header} has no sentences"
        assert "0 of 0" not in found.err
    twice = file("twice.csv", "a,a\n1,the book\n")
    assert "two columns 'a'" in elman("score", counted, twice, "--column", "a").error[0]
    assert "--column NAME reads a table" in elman("score", counted, table).ok().err


def test_names_of_columns_are_escaped(elman: Elman, counted: Path, file: Any) -> None:
    table = file("t.csv", '"part of\na name",sentence\n1,the book\n')
    (first, _) = rows(elman("score", counted, table, "--column", "sentence").ok().out)
    assert first[r"part of\na name"] == "1"


@pytest.mark.parametrize("options", [(), ("--column", "sentence")])
def test_an_empty_separator_is_refused(
    elman: Elman, counted: Path, file: Any, options: tuple[str, ...]
) -> None:
    for command in ("score", "pairs"):
        found = elman(command, counted, file("t.csv", CSV), "--separator", "", *options)
        assert (found.code, found.error[0]) == (2, "--separator cannot be empty")


def test_pairs_of_columns(elman: Elman, counted: Path, file: Any) -> None:
    table = file(
        "pairs.csv",
        "phenomenon,good,bad\n"
        "order,The old professor lost her book.,The professor old lost her book.\n"
        "order,The student lost her book.,The student her lost book.\n"
        "same,The student,The student\n",
    )
    found = elman("pairs", counted, table, "--by", "phenomenon", "--json").ok()
    order, same, everything = found.json
    assert (order["group"], order["items"], order["accuracy"]) == ("order", 2, 1.0)
    assert (same["ties"], same["accuracy"], same["difference"]) == (1, 0.5, 0.0)
    assert everything["accuracy"] == pytest.approx(2.5 / 3)
    lm = api.load(counted)
    bits = [
        -lm.logprob(text, include_end=False) / math.log(2)
        for text in ("The old professor lost her book.", "The professor old lost her book.")
    ]
    assert order["low"] < bits[1] - bits[0] < order["high"]
    printed = elman("pairs", counted, table)
    assert printed.err.startswith("· 0 of ")
    assert "ties" in printed.err
    assert printed.out.splitlines()[0].split()[:4] == ["contrast", "items", "ties", "accuracy"]


def test_conditions_by_item(elman: Elman, counted: Path, file: Any) -> None:
    table = file(
        "conditions.tsv",
        "item\tcondition\tsentence\n"
        "1\tplausible\tThe student | opened | the book\n"
        "1\timplausible\tThe student | book | the opened\n"
        "2\tplausible\tThe pupil | lost | the exam paper\n"
        "2\timplausible\tThe pupil | exam | paper lost the\n"
        "3\tplausible\tThe pupil | lost | her laptop\n",
    )
    asked = ("--column", "sentence", "--separator", "|", "--region", "2", "--json")
    found = elman("pairs", counted, table, *asked).ok()
    (contrast,) = found.json
    assert "1 item left out" in elman("pairs", counted, table, *asked[:-1]).err
    regions = elman("score", counted, table, *asked[:4], "--json").ok().json
    seconds = [row["surprisal"] for row in regions if row["region"] == "2"]
    differences = [seconds[1] - seconds[0], seconds[3] - seconds[2]]
    assert contrast["difference"] == pytest.approx(sum(differences) / 2)
    assert (contrast["expected"], contrast["other"]) == ("plausible", "implausible")
    turned = elman("pairs", counted, table, *asked, "--expected", "implausible").ok().json[0]
    assert turned["difference"] == pytest.approx(-contrast["difference"])
    assert turned["accuracy"] == 0.0


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ((), "name two with --good and --bad"),
        (("--good", "item"), "give both"),
        (("--column", "sentence", "--region", "2"), "say how sentences are divided"),
        (("--column", "sentence", "--expected", "b"), "did you mean|choose one of"),
        (("--column", "sentence", "--item", "itm"), "did you mean 'item'"),
    ],
)
def test_wrong_pairs_are_refused(
    elman: Elman, counted: Path, file: Any, options: tuple[str, ...], hint: str
) -> None:
    table = file("t.csv", "item,condition,sentence\n1,a,the book\n1,c,the exam\n")
    found = elman("pairs", counted, table, *options)
    assert found.code == 2
    assert any(part in found.error[1] for part in hint.split("|"))


def test_rows_without_a_sentence_are_counted(elman: Elman, counted: Path, file: Any) -> None:
    table = file("t.csv", f'item,sentence\n1,"{SENTENCES[0]}"\n2, \n3,\n')
    found = elman("score", counted, table, "--column", "sentence").ok()
    assert found.err.startswith("· 2 of 3 rows have no sentence, and are left out\n")
    assert {row["item"] for row in rows(found.out)} == {"1"}
    lines = file("t.txt", f"{SENTENCES[0]}\n\n{SENTENCES[1]}\n")
    assert "no sentence" not in elman("score", counted, lines, "--spillover", 1).ok().err


def test_a_missing_region_is_named_with_those_that_there_are(
    elman: Elman, counted: Path, file: Any
) -> None:
    table = file("t.csv", "good,bad\nthe / student,the / book\n")
    asked = ("pairs", counted, table, "--separator", "/", "--region", 3)
    assert elman(*asked).error == ("no sentence has the region '3'", "choose one of: 1, 2")


def test_one_item_has_no_interval(elman: Elman, counted: Path, file: Any) -> None:
    found = elman("pairs", counted, file("t.csv", "good,bad\nthe student,the book\n")).ok()
    assert "inf" not in found.out
    assert found.out.splitlines()[1].endswith("none")
    assert found.err.splitlines()[-1] == "· one item has no interval of the difference"


def test_models_are_opened_before_sentences_are_read(
    elman: Elman, counted: Path, file: Any
) -> None:
    found = elman("score", counted, file("t.csv", CSV), "--column", "sentence", "--with", "nomodel")
    assert found.err.startswith("error: there is no run folder nomodel\n")


def test_pairs_with_one_half_are_no_pairs(elman: Elman, counted: Path, file: Any) -> None:
    found = elman("pairs", counted, file("t.csv", "good,bad\nthe book,\n,the exam\n"))
    assert (found.code, "fill both columns" in found.error[1]) == (1, True)


def test_blank_lines_are_no_sentences(elman: Elman, write: Any) -> None:
    found = elman("score", "char-lstm", write("blank.txt", "\n\n"), "--spillover", 1)
    assert found.code == 1
    assert "has no sentences" in found.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--set", "adapt.rate=3"), "--adapt"),
        (("--max-line", 3), "long"),
        (("--max-line", 3, "--column", "text"), "--max-line"),
    ],
)
def test_options_of_plain_text_are_not_ignored(
    elman: Elman, write: Any, options: tuple[object, ...], message: str
) -> None:
    table = write("table.csv", "text,n\nhello there,1\n")
    found = elman("score", "char-lstm", table, "--spillover", 1, *options)
    assert found.code in (1, 2)
    assert message in found.err
