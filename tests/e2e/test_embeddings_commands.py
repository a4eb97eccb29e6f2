"""Pre-trained vectors in task models, as a user types it: trained, moved, used, resumed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import elman as library
from elman.base.config import parse_overrides
from elman.base.documents import read_json_lines
from elman.recipes.resolve import resolve
from elman.recipes.run import train
from elman.testing import TOY_TEXT, TOY_TREEBANK
from elman.train import checkpoint

Elman = Callable[..., Any]
FAST = (
    *("--set", "model.hidden_size=8", "--set", "model.embedding_size=8"),
    *("--set", "optimiser.learning_rate=0.02", "--set", "schedule.warmup_steps=0"),
    *("--seed", "1", "--device", "cpu"),
)
GLOVE = "".join(
    f"{word} {len(word)} {word.count('e')} {index % 7 - 3}\n"
    for index, word in enumerate(sorted(set(TOY_TEXT.split())))
)
REVIEWS = "".join(
    f"{text}\t{label}\n"
    for text, label in [("A fine film", "good"), ("a dull Film", "bad"), ("fine !", "good")] * 20
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("embeddings")
    (folder / "toy.conllu").write_text(TOY_TREEBANK, encoding="utf-8")
    (folder / "glove.txt").write_text(GLOVE, encoding="utf-8")
    (folder / "reviews.tsv").write_text(REVIEWS, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def tagger(data: Path, words: Path, elman: Elman) -> Path:
    """A tagger over a language model's states; the model it was given is gone, and it has moved."""
    copy, out = data / "lm", data / "first"
    shutil.copytree(words, copy)
    result = elman(
        *("train", "tagger", data / "toy.conllu", "--test", data / "toy.conllu"),
        *("--embeddings", copy, "--out", out, "--steps", 30, *FAST),
        *("--set", "model.embeddings.enters=both", "--set", "model.character_size=8"),
    )
    assert result.code == 0, result.err
    shutil.rmtree(copy)
    return out.rename(data / "tagger")


def test_the_run_folder_is_enough(tagger: Path, data: Path, elman: Elman) -> None:
    text = data / "text.txt"
    text.write_text("the student opened the book .\n\nthe teacher\n", encoding="utf-8")
    tagged = elman("tag", tagger, text)
    assert tagged.code == 0, tagged.err
    assert tagged.out.startswith("the\t")
    assert 0 < elman("evaluate", tagger, data / "toy.conllu", "--json").json["accuracy"] <= 1


def test_it_is_served(tagger: Path) -> None:
    pytest.importorskip("fastapi")
    from live import call, serving

    handle = library.load(tagger, device="cpu")
    sentence = "the teacher opened a book ."
    with serving({"tagger": handle}) as live:
        status, answer = call(live, "/v1/tag", {"model": "tagger", "text": sentence})
    assert status == 200
    assert [tuple(pair) for pair in answer["result"]] == handle.tag(sentence)


def test_a_lost_copy_is_told(tagger: Path, tmp_path: Path, elman: Elman) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tagger, broken)
    shutil.rmtree(broken / "embeddings")
    assert "no folder embeddings" in elman("info", broken).error[0]


def test_word_vectors_from_a_file(data: Path, elman: Elman) -> None:
    out = data / "classifier"
    result = elman(
        *("train", "classifier", data / "reviews.tsv", "--embeddings", data / "glove.txt"),
        *("--out", out, "--steps", 20, *FAST),
    )
    assert result.code == 0, result.err
    assert sorted(path.name for path in (out / "embeddings").iterdir()) == [
        "vectors.safetensors",
        "words.json",
    ]
    found = elman("classify", out, "-", stdin="a fine film\n\n").out.splitlines()
    assert [line.split("\t")[2] for line in found[1:]] == ["a fine film", ""]


def test_what_cannot_be_read_is_a_sentence(data: Path, elman: Elman) -> None:
    bad = data / "bad.txt"
    bad.write_text("the 1 2 3\nstudent 1 2\n")
    command = ("train", "tagger", data / "toy.conllu", "--steps", 1, "--out", data / "never")
    assert f"{bad}, line 2" in elman(*command, "--embeddings", bad).error[0]
    assert "no embeddings at" in elman(*command, "--embeddings", data / "nothing").error[0]
    assert "not a run folder" in elman(*command, "--embeddings", data).error[0]
    assert elman(*command, "--set", "model.embeddings.layers=middle").code == 2


@pytest.mark.parametrize(
    "more",
    [("cache_megabytes=0",), ("cache_megabytes=2000",), ("fine_tuned=true", "unfreeze_epochs=0.8")],
    ids=["computed", "remembered", "fine-tuned"],
)
def test_resumed_it_goes_through_the_same_losses(
    words: Path, data: Path, tmp_path: Path, more: tuple[str, ...]
) -> None:
    settings = [
        *("model.hidden_size=8", "model.embedding_size=8", "model.character_size=4"),
        *("training.report_every=7", "training.checkpoint_seconds=0", "training.validate_every=20"),
        f"model.embeddings.path={words}",
        *(f"model.embeddings.{setting}" for setting in more),
    ]
    paths = [str(data / "toy.conllu")]
    config = resolve(
        "tagger", paths, settings=parse_overrides(settings), steps=35, device="cpu"
    ).config
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    list(train(config, whole, device="cpu"))
    reports = train(config, broken, device="cpu")
    while next(reports).step < 28:
        pass
    reports.close()
    list(train(config, broken, device="cpu", resume=True))

    def figures(out: Path) -> list[tuple[Any, ...]]:
        lines = read_json_lines(out / "metrics.jsonl")
        names = ("kind", "step", "loss", "valid_accuracy", "gradient_norm")
        return [tuple(line.get(name) for name in names) for line in lines]

    assert figures(broken) == figures(whole)


def test_fine_tuned_the_top_learns_and_the_bottom_waits(
    words: Path, data: Path, elman: Elman
) -> None:
    out = data / "tuned"
    settings = ("fine_tuned=true", "unfreeze_epochs=0.5", "rate=1")
    result = elman(
        *("train", "tagger", data / "toy.conllu", "--embeddings", words, "--out", out),
        *(
            "--steps",
            11,
            *FAST,
            "--set",
            "training.batch_size=8",
            "--set",
            "model.character_size=8",
        ),
        *(f for setting in settings for f in ("--set", f"model.embeddings.{setting}")),
    )
    assert result.code == 0, result.err
    tensors, _ = checkpoint.read(out / "model.safetensors")
    before, _ = checkpoint.read(out / "embeddings" / "model.safetensors")
    prefix = "embeddings.embedder.model."
    same: dict[str, set[bool]] = {}
    for name, tensor in tensors.items():
        if name.startswith(prefix):
            own = name.removeprefix(prefix)
            same.setdefault(own.partition(".")[0], set()).add(torch.equal(tensor, before[own]))
    assert (same["stack"], same["input"]) == ({False}, {True})
    assert 0 <= elman("evaluate", out, data / "toy.conllu", "--json").json["accuracy"] <= 1


def test_a_translator_reads_them_at_its_source(
    words: Path, data: Path, tmp_path: Path, elman: Elman
) -> None:
    source, target = tmp_path / "source.txt", tmp_path / "target.txt"
    lines = [line for line in TOY_TEXT.splitlines() if line][:60]
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    target.write_text("\n".join(line.upper() for line in lines) + "\n", encoding="utf-8")
    out = tmp_path / "translator"
    command = (
        *("train", "translator", source, target, "--embeddings", words, "--out", out),
        *("--steps", 6, "--seed", 1, "--device", "cpu", "--set", "model.decoder.hidden_size=8"),
        *("--set", "model.decoder.embedding_size=8", "--set", "training.batch_size=8"),
        *("--set", "tokenizer.vocab_size=300"),
    )
    refused = elman(*command, "--set", "model.embeddings.enters=both")
    assert refused.code == 2
    assert "cannot enter a translator at its both" in refused.error[0]
    result = elman(*command, "--test", source, target)
    assert result.code == 0, result.err
    assert elman("evaluate", out, source, target, "--json").json["tokens"] > 100
    assert len(elman("translate", out, "-", stdin="the book .\n\n").out.splitlines()) == 2
    weights = elman("info", out, "--json").json["layer_weights"]["input"]["weights"]
    assert sum(weights) == pytest.approx(1)
    pytest.importorskip("matplotlib")
    picture = tmp_path / "alignment.svg"
    assert elman("translate", out, source, "--attention", picture).code == 0
    assert picture.exists()


def test_models_that_read_no_words_say_so(data: Path, elman: Elman) -> None:
    for task, reason in (
        ("captioner", "reads pictures"),
        ("conditional", "words that it has to predict"),
    ):
        refused = elman("train", task, data / "reviews.tsv", "--embeddings", data / "glove.txt")
        assert refused.code == 2
        assert reason in refused.error[0]
        assert "--embeddings" not in elman("train", task, "--help").out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--kind", "foo"), "--kind cannot be 'foo'"),
        (("--out", "v.npz", "--json"), "two outputs"),
        (("--out", "v.npz", "--neighbours", "3"), "--neighbours"),
    ],
)
def test_options_of_embed_are_not_ignored(
    elman: Elman, toy: Path, options: tuple[str, ...], message: str
) -> None:
    found = elman("embed", "word-lstm", toy, *options)
    assert found.code == 2
    assert message in found.err
