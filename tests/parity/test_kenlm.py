"""Our n-gram models beside KenLM's: estimates, ARPA files, scores, perplexities."""

from __future__ import annotations

import csv
import gzip
import math
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counting_runs import fit_counts
from elman.bench.measuring import run_program
from elman.bench.ngram import KenLM
from elman.bench.sampled_text import write_sampled_text
from elman.ngrams.arpa_read import read_arpa
from elman.ngrams.arpa_write import write_arpa
from elman.ngrams.backoff import BackoffModel
from elman.ngrams.counting import count
from elman.ngrams.kneser_ney import last_ngram
from elman.ngrams.smoothing import build
from elman.tasks.ngram.settings import NgramConfig
from elman.text.sources import expand

LN_10 = math.log(10)


def words_of(path: Path) -> list[str]:
    """As KenLM reads Penn Treebank: its `<unk>` is an ordinary word."""
    text = path.read_text().replace("<unk>", "UNKNOWNWORD")
    return text.replace("\n", " <eos> ").split()


def kneser_ney(words: list[str], order: int) -> tuple[BackoffModel, list[str]]:
    """lmplz's defaults, with its discount_fallback."""
    vocab = ["<eos>", "<unk>", *(word for word in Counter(words) if word != "<eos>")]
    ids = encode(words, vocab)
    sizes: Any = {"vocab_size": len(vocab), "boundary_id": 0}
    last = last_ngram(ids, order, **sizes)
    return build(count(ids, order, **sizes), NgramConfig(order=order), last=last), vocab


def encode(words: list[str], vocab: list[str]) -> np.ndarray:
    id_of = {word: i for i, word in enumerate(vocab)}
    return np.array([id_of.get(word, 1) for word in words], np.int32)


@cache
def treebank(folder: Path, order: int) -> tuple[BackoffModel, list[str]]:
    return kneser_ney(words_of(folder / "ptb.train.txt"), order)


def references(shared_data: Path) -> list[dict[str, str]]:
    with (shared_data / "kenlm/reference.tsv").open() as file:
        return list(csv.DictReader(file, delimiter="\t"))


def entries(path: Path) -> dict[str, tuple[float, float]]:
    """The n-grams of an ARPA file, read naively."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    lines = [line.split("\t") for line in text.split("\n")]
    return {
        line[1]: (float(line[0]), float(line[2]) if len(line) > 2 else 0.0)
        for line in lines
        if len(line) > 1
    }


def test_every_probability_and_backoff_equals_lmplz(shared_data: Path, tmp_path: Path) -> None:
    lines = (shared_data / "ptb/ptb.valid.txt").read_text().split("\n")
    text = tmp_path / "text"
    text.write_text("\n".join(lines[:2000]) + "\n")
    model, vocab = kneser_ney(words_of(text), 4)
    write_arpa(tmp_path / "ours.arpa", model, vocab, unknown_id=1)
    ours = entries(tmp_path / "ours.arpa")
    theirs = entries(shared_data / "kenlm/ptb_valid2000_o4.arpa.gz")
    assert ours.keys() == theirs.keys()
    assert max(abs(ours[n][0] - theirs[n][0]) for n in ours) < 1e-5
    assert max(abs(ours[n][1] - theirs[n][1]) for n in ours) < 1e-5


def test_the_four_ngram_files_perplexity(shared_data: Path, tmp_path: Path) -> None:
    lines = (shared_data / "ptb/ptb.valid.txt").read_text().split("\n")
    text = tmp_path / "text"
    text.write_text("\n".join(lines[2000:]))
    found = read_arpa(shared_data / "kenlm/ptb_valid2000_o4.arpa.gz")
    ids = encode(words_of(text), found.words)
    assert int((ids == 1).sum()) == 2171
    logprobs = found.model.score(ids)[ids != 1].astype(np.float64)
    (row,) = [row for row in references(shared_data) if row["order"] == "4"]
    assert math.exp(-logprobs.mean()) == pytest.approx(float(row["perplexity"]), rel=1e-6)


@pytest.mark.parametrize(("order", "name"), [(5, "test"), (3, "test"), (5, "valid")])
def test_perplexities_on_penn_treebank(shared_data: Path, order: int, name: str) -> None:
    model, vocab = treebank(shared_data / "ptb", order)
    ids = encode(words_of(shared_data / f"ptb/ptb.{name}.txt"), vocab)
    (row,) = [
        row
        for row in references(shared_data)
        if (row["order"], row["eval"]) == (str(order), f"ptb.{name}")
    ]
    assert len(ids) == int(row["tokens"])
    perplexity = math.exp(-model.score(ids).astype(np.float64).mean())
    assert perplexity == pytest.approx(float(row["perplexity"]), rel=1e-6)


def test_fallback_discounts_on_two_lines(tmp_path: Path) -> None:
    model, vocab = kneser_ney([*"ababac", "<eos>", *"abc", "<eos>"], 3)
    write_arpa(tmp_path / "m.arpa", model, vocab, unknown_id=1)
    found = entries(tmp_path / "m.arpa")
    assert found["a b c"][0] == pytest.approx(-0.44571277, abs=1e-6)
    assert found["b a c"][0] == pytest.approx(-0.39794, abs=1e-6)
    assert found["a b a"][0] == pytest.approx(-0.27984074, abs=1e-6)
    assert found["a b"][1] == pytest.approx(-0.30103, abs=1e-6)


@pytest.mark.parametrize("name", ["test.arpa", "test_nounk.arpa"])
def test_kenlms_test_model_scores_as_expected(shared_data: Path, name: str) -> None:
    found = read_arpa(shared_data / "kenlm" / name)
    with (shared_data / "kenlm/test.arpa.expected.tsv").open() as file:
        rows = [row for row in csv.DictReader(file, delimiter="\t") if row["word"]]
    cases: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        cases.setdefault(row["case"], []).append(row)
    checked = 0
    for case in cases.values():
        if name == "test_nounk.arpa" and any(row["oov"] == "yes" for row in case):
            continue
        words = [row["word"].replace("</s>", "<eos>") for row in case]
        ids = encode(words, found.words)
        start = 0 if case[0]["starts_after_<s>"] == "yes" else -1
        context = np.array([[start]])
        tokens, targets = ids[None, :-1], ids[None, 1:]
        first = found.model.distributions(context)[0, ids[:1]]
        rest = found.model.score_rows(tokens, targets, context)[0]
        expected = [float(row["log10_prob"]) for row in case]
        assert np.concatenate([first, rest]) / LN_10 == pytest.approx(expected, abs=1e-4)
        checked += len(case)
    assert checked == (49 if name == "test.arpa" else 25)


def test_kenlm_reads_our_file_with_the_same_scores(shared_data: Path, tmp_path: Path) -> None:
    kenlm = pytest.importorskip("kenlm", reason="the kenlm package is not installed")
    words = (shared_data / "ptb/ptb.valid.txt").read_text().replace("\n", " <eos> ").split()
    vocab = ["<eos>", "<unk>", *(word for word in Counter(words) if word not in ("<eos>", "<unk>"))]
    trie = count(encode(words, vocab), 5, vocab_size=len(vocab), boundary_id=0)
    model = build(trie, NgramConfig(order=5))
    write_arpa(tmp_path / "m.arpa", model, vocab, unknown_id=1)
    theirs = kenlm.Model(str(tmp_path / "m.arpa"))
    lines = (shared_data / "ptb/ptb.test.txt").read_text().split("\n")[:300]
    expected = [score[0] for line in lines for score in theirs.full_scores(line)]
    text = [word for line in lines for word in [*line.split(), "<eos>"]]
    assert model.score(encode(text, vocab)) / LN_10 == pytest.approx(expected, abs=1e-5)


def test_kenlm_reading_our_file_of_penn_treebank_measures_what_we_do(
    shared_data: Path, tmp_path: Path
) -> None:
    kenlm = KenLM.find(None)
    if kenlm.query is None and kenlm.module is None:
        pytest.skip("neither KenLM's query nor its Python module is installed")
    train, test = (shared_data / f"ptb/ptb.{name}.txt" for name in ("train", "test"))
    arpa = tmp_path / "ptb.arpa"
    summary = fit_counts("ngram", [str(train)], tmp_path / "run", test=[str(test)], arpa=arpa)
    if kenlm.query is not None:
        answers = tmp_path / "answers"
        run_program([kenlm.query, "-v", "summary", arpa], stdin=test, stdout=answers)
        found = re.search(r"including OOVs:\s*(\S+)", answers.read_text())
        assert found
        theirs = float(found[1])
    else:
        model = kenlm.module.Model(str(arpa))
        lines = test.read_text().splitlines()
        scores = [score[0] for line in lines for score in model.full_scores(line)]
        theirs = 10 ** (-sum(scores) / len(scores))
    assert theirs == pytest.approx(141.19, abs=0.01)
    assert summary["test_perplexity"] == pytest.approx(theirs, rel=1e-5)


@pytest.mark.parametrize("prune", [(), (0, 0, 1), (0, 1, 1, 2)])
def test_lmplz_itself_gives_the_same_model(tmp_path: Path, prune: tuple[int, ...]) -> None:
    lmplz = KenLM.find(None).lmplz
    if lmplz is None:
        pytest.skip("KenLM's lmplz is not installed")
    text, ours, theirs = (tmp_path / name for name in ("text.txt", "ours.arpa", "theirs.arpa"))
    write_sampled_text(text, expand(["python-docs"]), 50_000)
    tokens, config = {"kind": "pretokenized"}, {"prune": list(prune)}
    fit_counts("ngram", [str(text)], tmp_path / "run", model=config, tokenizer=tokens, arpa=ours)
    command = [lmplz, "-o", "5", "-S", "100M", "-T", tmp_path]
    command += ["--prune", *map(str, prune)] if prune else []
    run_program(command, stdin=text, stdout=theirs)
    found, expected = entries(ours), entries(theirs)
    assert found.keys() == expected.keys()
    for column in (0, 1):
        differences = [abs(found[n][column] - expected[n][column]) for n in expected]
        assert max(differences) < 1e-5
