from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counting_runs import fit_counts
from elman.base.documents import read_json
from elman.base.errors import ElmanError, UsageError
from elman.ngrams import arpa_files, scratch
from elman.ngrams.smoothing import SMOOTHINGS
from elman.ngrams.storage import MODEL_FILE, load
from elman.recipes.resolve import resolve
from elman.tasks import counted
from elman.tasks.ngram import convert
from elman.tasks.ngram import task as ngram
from elman.tasks.ngram.task import describe, memory_size
from elman.tasks.opening import open_run
from elman.testing import TOY_TEXT
from elman.tokens.tokenizer import Tokenizer


@pytest.fixture
def corpus(tmp_path: Path) -> dict[str, str]:
    lines = TOY_TEXT.splitlines(keepends=True)
    texts = {"train": lines[::2], "valid": lines[1::4], "test": lines[3::4]}
    for name, some in texts.items():
        (tmp_path / f"{name}.txt").write_text("".join(some))
    return {name: str(tmp_path / f"{name}.txt") for name in texts}


def test_a_run_folder_has_all_that_is_needed(tmp_path: Path, corpus: dict[str, str]) -> None:
    heard: list[str] = []
    out = tmp_path / "run"
    summary = fit_counts(
        "ngram",
        [corpus["train"]],
        out,
        valid=[corpus["valid"]],
        test=[corpus["test"]],
        model={"order": 3},
        note=heard.append,
    )
    assert sorted(path.name for path in out.iterdir()) == [
        "card.md", "config.json", "metrics.jsonl", "ngram.safetensors", "tokenizer.json",
    ]  # fmt: skip
    config = read_json(out / "config.json")
    assert config["model"]["kind"] == "ngram"
    assert config["model"]["order"] == 3
    assert config["tokenizer"]["kind"] == "pretokenized"
    assert 1 < summary["perplexity"] < 10
    assert 1 < summary["test_perplexity"] < 10
    assert summary["tokens"] == sum(len(line.split()) + 1 for line in TOY_TEXT.splitlines()[::2])
    tokenizer = Tokenizer.load(out / "tokenizer.json")
    model, header = load(out / MODEL_FILE)
    assert header["tokenizer"] == tokenizer.hash
    assert model.vocab_size == tokenizer.vocab_size
    text = Path(corpus["valid"]).read_text()
    nats = -float(model.score(tokenizer.encode(text)).astype(np.float64).mean())
    assert summary["nats_per_token"] == pytest.approx(nats)
    about = describe(open_run(out))
    assert [row["ngrams"] for row in about["ngrams"]] == model.num_ngrams
    assert about["unseen"] == summary["unseen"]
    assert "perplexity" in (out / "card.md").read_text()
    assert any("n-grams" in sentence for sentence in heard)


def test_without_validation_text_all_is_counted_and_nothing_measured(
    tmp_path: Path, corpus: dict[str, str]
) -> None:
    summary = fit_counts("ngram", [corpus["train"]], tmp_path / "run")
    assert summary["perplexity"] is None
    assert describe(open_run(tmp_path / "run"))["unseen"] is None


@pytest.mark.parametrize("smoothing", sorted(SMOOTHINGS))
def test_every_smoothing_makes_a_run(
    tmp_path: Path, corpus: dict[str, str], smoothing: str
) -> None:
    config = {"order": 2, "smoothing": smoothing}
    summary = fit_counts(
        "ngram", [corpus["train"]], tmp_path / "run", test=[corpus["test"]], model=config
    )
    if smoothing == "maximum-likelihood":
        assert summary["test_perplexity"] == math.inf
    else:
        assert 1 < summary["test_perplexity"] < 60
    held_out = smoothing == "jelinek-mercer"
    assert (summary["perplexity"] is not None) == held_out
    normalised = load(tmp_path / "run" / MODEL_FILE)[0].about["normalised"]
    assert normalised == (smoothing != "stupid-backoff")


@pytest.mark.parametrize("kind", ["char", "word"])
def test_the_end_of_the_text_is_held_out(tmp_path: Path, kind: str) -> None:
    """As if it were the validation text of the rest, with the same words."""
    lines = TOY_TEXT.splitlines(keepends=True)
    texts = {"whole": lines, "head": lines[:-40], "end": lines[-40:]}
    paths = {name: str(tmp_path / f"{name}.txt") for name in texts}
    for name, path in paths.items():
        Path(path).write_text("".join(texts[name]), encoding="utf-8")
    size = len if kind == "char" else (lambda text: len(text.split()) + text.count("\n"))
    share = size("".join(texts["end"])) / size(TOY_TEXT)
    whole, head = tmp_path / "whole", tmp_path / "head"
    tokens = {"kind": kind, "min_count": 1} if kind == "word" else {"kind": kind}
    one = fit_counts("ngram", [paths["whole"]], whole, tokenizer=tokens, valid_fraction=share)
    known = {"file": str(whole / "tokenizer.json")}
    two = fit_counts("ngram", [paths["head"]], head, valid=[paths["end"]], tokenizer=known)
    for name in ("tokens", "valid_tokens", "perplexity", "bits_per_byte", "ngrams", "unseen"):
        assert one[name] == two[name], name
    assert "| held out | the last" in (whole / "card.md").read_text(encoding="utf-8")
    assert "held out" not in (head / "card.md").read_text(encoding="utf-8")


def test_a_share_that_cannot_be_held_out_is_refused(tmp_path: Path, corpus: dict[str, str]) -> None:
    for wrong in (-0.1, 1.0):
        with pytest.raises(UsageError, match="valid_fraction"):
            fit_counts("ngram", [corpus["train"]], tmp_path / "run", valid_fraction=wrong)
    (tmp_path / "short.txt").write_text("a b\n", encoding="utf-8")
    with pytest.raises(UsageError, match="too little text"):
        fit_counts("ngram", [str(tmp_path / "short.txt")], tmp_path / "run", valid_fraction=0.9)


@pytest.mark.parametrize("kind", ["char", "byte", "word", "bpe"])
def test_any_tokens_will_do(tmp_path: Path, corpus: dict[str, str], kind: str) -> None:
    tokens = {"kind": kind, "vocab_size": 300 if kind == "bpe" else 0}
    summary = fit_counts(
        "ngram", [corpus["train"]], tmp_path / "run", valid=[corpus["valid"]], tokenizer=tokens
    )
    assert Tokenizer.load(tmp_path / "run" / "tokenizer.json").kind == kind
    assert summary["bits_per_byte"] < 3


def test_a_tokenizer_of_another_model_is_used_as_it_is(
    tmp_path: Path, corpus: dict[str, str]
) -> None:
    fit_counts("ngram", [corpus["train"]], tmp_path / "one", tokenizer={"min_count": 20})
    file = tmp_path / "one" / "tokenizer.json"
    fit_counts("ngram", [corpus["train"]], tmp_path / "two", tokenizer={"file": file})
    assert Tokenizer.load(tmp_path / "two" / "tokenizer.json").hash == Tokenizer.load(file).hash
    one, two = (load(tmp_path / name / MODEL_FILE)[0] for name in ("one", "two"))
    assert np.array_equal(one.contexts, two.contexts)


@pytest.mark.parametrize("task", ["ngram", "snm", "lm"])
def test_settings_beside_a_tokenizer_file_are_refused(
    tmp_path: Path, corpus: dict[str, str], task: str
) -> None:
    fit_counts("ngram", [corpus["train"]], tmp_path / "one")
    file = str(tmp_path / "one" / "tokenizer.json")
    usual = {"kind": "auto", "vocab_size": 0, "lowercase": False}
    resolved = resolve(task, [corpus["train"]], settings={"tokenizer": {"file": file, **usual}})
    assert str(resolved.config.tokenizer.file) == file
    kind = resolved.config.tokenizer.kind
    assert kind == Tokenizer.load(Path(file)).kind
    for name, value in {"kind": "bpe", "vocab_size": 9, "min_count": 2, "lowercase": True}.items():
        with pytest.raises(UsageError, match=f"tokenizer.{name}"):
            resolve(task, [corpus["train"]], settings={"tokenizer": {"file": file, name: value}})
    # What a run records can be asked for again.
    again = resolve(task, [corpus["train"]], settings={"tokenizer": {"file": file, "kind": kind}})
    assert again.config.tokenizer == resolved.config.tokenizer


def test_limited_memory_gives_the_same_model(
    tmp_path: Path, corpus: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch, "SMALLEST_MEMORY", 0)
    monkeypatch.setattr(scratch, "LEAST_ROOM", -(1 << 62))
    heard: list[str] = []
    fit_counts("ngram", [corpus["train"]], tmp_path / "free")
    fit_counts("ngram", [corpus["train"]], tmp_path / "tight", memory=20_000, note=heard.append)
    assert any("goes to disk" in sentence for sentence in heard)
    files = [(tmp_path / name / MODEL_FILE).read_bytes() for name in ("free", "tight")]
    assert files[0] == files[1]


def test_small_and_odd_texts_are_models_too(tmp_path: Path) -> None:
    for i, text in enumerate(["a", "a\n", "\n\n\n", "a a a a a a\n", "é 字\n"]):
        (tmp_path / "t.txt").write_text(text)
        summary = fit_counts("ngram", [str(tmp_path / "t.txt")], tmp_path / f"run{i}")
        assert summary["notes"], "a fallback is noted"


def test_a_folder_that_holds_a_run_is_left_alone(tmp_path: Path, corpus: dict[str, str]) -> None:
    fit_counts("ngram", [corpus["train"]], tmp_path / "run")
    with pytest.raises(UsageError, match="already holds a run"):
        fit_counts("ngram", [corpus["train"]], tmp_path / "run")
    with pytest.raises(UsageError, match="is a file"):
        fit_counts("ngram", [corpus["train"]], Path(corpus["valid"]))
    with pytest.raises(ElmanError):
        fit_counts("ngram", [corpus["train"]], tmp_path / "new", test=["missing.txt"])
    assert not (tmp_path / "new").exists()


def test_amounts_of_memory() -> None:
    assert memory_size("2G") == 2 << 30
    assert memory_size("500M") == 500 << 20
    assert memory_size("1.5 GiB") == 3 << 29
    assert memory_size("1000") == 1000
    with pytest.raises(UsageError):
        memory_size("much")


@pytest.mark.parametrize("where", ["file/model.arpa", "folder"])
def test_an_arpa_file_that_cannot_be_written_leaves_no_half_run(
    tmp_path: Path, corpus: dict[str, str], where: str
) -> None:
    (tmp_path / "file").write_text("a file is no folder to write to")
    (tmp_path / "folder").mkdir()
    heard: list[str] = []
    with pytest.raises(ElmanError):
        fit_counts(
            "ngram", [corpus["train"]], tmp_path / "run", arpa=tmp_path / where, note=heard.append
        )
    assert heard == []  # found out before any work
    assert not (tmp_path / "run").exists()
    fit_counts("ngram", [corpus["train"]], tmp_path / "run", arpa=tmp_path / "model.arpa")
    assert describe(open_run(tmp_path / "run"))["summary"]["tokens"] > 0


def test_what_fails_late_leaves_nothing_and_can_be_tried_again(
    tmp_path: Path, corpus: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise ElmanError("the disk is full")

    out = tmp_path / "runs" / "new"
    with monkeypatch.context() as patched, pytest.raises(ElmanError, match="full"):
        patched.setattr(ngram, "save_arpa", full)
        fit_counts("ngram", [corpus["train"]], out, arpa=tmp_path / "model.arpa")
    assert not out.parent.exists()
    out.mkdir(parents=True)
    (out / "mine.txt").write_text("kept")
    with monkeypatch.context() as patched, pytest.raises(ElmanError, match="full"):
        patched.setattr(counted, "write_text", full)
        fit_counts("ngram", [corpus["train"]], out, arpa=tmp_path / "model.arpa")
    assert [path.name for path in out.iterdir()] == ["mine.txt"]
    assert not (tmp_path / "model.arpa").exists()
    fit_counts("ngram", [corpus["train"]], out, arpa=tmp_path / "model.arpa")
    assert (out / "mine.txt").read_text() == "kept"
    assert (tmp_path / "model.arpa").exists()


def test_a_tokenizer_beside_an_arpa_file_goes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise ElmanError("the disk is full")

    (tmp_path / "text.txt").write_text("The cat's hat, a hat!\n" * 5)
    before = sorted(tmp_path.iterdir())
    how: dict[str, Any] = {"tokenizer": {"kind": "word"}, "model": {"order": 2}}
    files, arpa = [str(tmp_path / "text.txt")], tmp_path / "model.arpa"
    for place, name in ((arpa_files, "write_arpa"), (counted, "write_text")):
        with monkeypatch.context() as patched, pytest.raises(ElmanError, match="full"):
            patched.setattr(place, name, full)
            fit_counts("ngram", files, tmp_path / "run", arpa=arpa, **how)
        assert sorted(tmp_path.iterdir()) == before
    fit_counts("ngram", files, tmp_path / "run", **how)
    with monkeypatch.context() as patched, pytest.raises(ElmanError, match="full"):
        patched.setattr(arpa_files, "write_arpa", full)
        convert.convert(tmp_path / "run", arpa, to_folder=False)
    assert not arpa_files.tokenizer_beside(arpa).exists()


def test_too_little_memory_is_refused_before_any_work(
    tmp_path: Path, corpus: dict[str, str]
) -> None:
    with pytest.raises(UsageError, match="100 bytes of memory are too few") as raised:
        fit_counts("ngram", [corpus["train"]], tmp_path / "run", memory=100)
    assert "256M" in raised.value.hint
    assert not (tmp_path / "run").exists()


def test_pruning_makes_nothing_unseen(tmp_path: Path, corpus: dict[str, str]) -> None:
    shares = []
    for i, prune in enumerate([(), (0, 5)]):
        config = {"order": 3, "prune": prune}
        texts = {"valid": [corpus["valid"]], "test": [corpus["train"]]}
        summary = fit_counts("ngram", [corpus["train"]], tmp_path / f"{i}", model=config, **texts)
        shares.append(summary["unseen"])
    assert shares[0] == shares[1]


def test_unseen_single_tokens_are_those_out_of_vocabulary(tmp_path: Path) -> None:
    train, valid = tmp_path / "train.txt", tmp_path / "valid.txt"
    train.write_text("the <unk> sat on the mat\n" * 3)
    valid.write_text("the cat sat on the mat\n")
    for order in (1, 2):
        summary = fit_counts(
            "ngram",
            [str(train)],
            tmp_path / str(order),
            valid=[str(valid)],
            model={"order": order},
            tokenizer={"kind": "pretokenized"},
        )
        first = summary["unseen"][0]
        assert first["ngrams"] == summary["valid_tokens"] == 7
        assert first["unseen_ngrams"] == pytest.approx(summary["oov"] / 7) == pytest.approx(1 / 7)


def test_figures_come_with_what_one_should_know(tmp_path: Path, corpus: dict[str, str]) -> None:
    def notes(**settings: Any) -> str:
        heard: list[str] = []
        out = tmp_path / "-".join(map(str, settings.values()))
        texts = {"valid": [corpus["valid"]], "test": [str(odd)]}
        summary = fit_counts(
            "ngram", [corpus["train"]], out, model=dict(**settings), note=heard.append, **texts
        )
        assert set(summary["notes"]) <= set(heard)
        assert all(note in (out / "card.md").read_text() for note in summary["notes"])
        assert describe(open_run(out))["notes"] == summary["notes"]
        return " ".join(summary["notes"])

    odd = tmp_path / "odd.txt"
    odd.write_text("zebra zebra the\n")
    assert "do not sum to one" in notes(smoothing="stupid-backoff")
    assert "flatters" in notes(smoothing="jelinek-mercer")
    assert "of the test text 2 of 4 tokens have probability zero" in notes(vocabulary="closed")
    plain = notes(order=300)
    assert "probability zero" not in plain
    assert "- to 300-grams" in plain
    assert len(plain) < 200
    assert "discounts of 1- and 2-grams" in notes(smoothing="katz", order=2)


def test_a_converted_folder_appears_in_one_rename(
    tmp_path: Path, corpus: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arpa, out = tmp_path / "model.arpa", tmp_path / "new" / "run"
    fit_counts("ngram", [corpus["train"]], tmp_path / "run", model={"order": 2}, arpa=arpa)
    replace, moved = os.replace, []

    def watched(source: Path, target: Path) -> None:
        if out in (Path(target), Path(target).parent):
            moved.append(Path(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", watched)
    convert.convert(arpa, out, to_folder=True)
    files = {path.name for path in out.iterdir()}
    assert moved == [out]
    assert {"config.json", "tokenizer.json", MODEL_FILE} <= files
    assert list(out.parent.iterdir()) == [out]


def test_the_arpa_file_gets_its_name_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is killed before its folder is complete can be repeated."""
    text, arpa, named = tmp_path / "text", tmp_path / "a.arpa", list[str]()
    text.write_text(TOY_TEXT)
    replace = os.replace

    def noted(source: Path, target: Path) -> None:
        assert arpa.exists() == (str(arpa) in named)
        replace(source, target)
        named.append(str(target))

    monkeypatch.setattr(os, "replace", noted)
    fit_counts("ngram", [str(text)], tmp_path / "out", arpa=arpa)
    assert named[-2:] == [str(tmp_path / "out" / "config.json"), str(arpa)]
