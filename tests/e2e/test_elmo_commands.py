"""ELMo as a user types it: train, go on, measure, explain, embed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import elman as library
from elman.testing import TOY_TEXT, TOY_TREEBANK

Elman = Callable[..., Any]
Reports = Callable[[Path], list[dict[str, Any]]]
SMALL = (
    *("--set", "model.hidden_size=24", "--set", "model.character_cnn.filters=[4,8]"),
    *("--set", "training.batch_size=16", "--set", "optimiser.learning_rate=0.02"),
    *("--set", "schedule.kind=constant", "--set", "schedule.warmup_steps=0"),
    *("--set", "model.dropout=0", "--set", "model.head.num_samples=30"),
    *("--seed", "1", "--device", "cpu"),
)


@pytest.fixture(scope="module")
def text(write: Callable[[str, str], Path]) -> Path:
    return write("toy.txt", TOY_TEXT)


@pytest.fixture(scope="module")
def trained(text: Path, elman: Elman) -> Path:
    out = text.parent / "run"
    result = elman("train", "elmo", text, "--test", text, "--out", out, "--steps", 60, *SMALL).ok()
    for name in ("validation forward perplexity", "test backward perplexity"):
        assert name in result.out
    return out


def test_the_run_tells_both_directions(trained: Path, reports: Reports) -> None:
    lines = reports(trained)
    summary = lines[-1]["summary"]
    forward, backward = summary["forward_perplexity"], summary["backward_perplexity"]
    assert summary["perplexity"] == pytest.approx((forward * backward) ** 0.5)
    assert summary["perplexity"] < 6
    assert "forward" in (trained / "card.md").read_text()


def test_evaluate_and_info(trained: Path, text: Path, elman: Elman, reports: Reports) -> None:
    found = elman("evaluate", trained, text, "--json").json
    test = reports(trained)[-1]["summary"]
    assert found["perplexity"] == pytest.approx(test["test_perplexity"])
    assert found["tokens"] == len(TOY_TEXT.split()) + len(TOY_TEXT.splitlines())
    assert found["oov"] == 0
    about = elman("info", trained).out
    assert "3 layers of 48 numbers" in about
    assert "backward perplexity" in about


def test_a_resumed_run_goes_through_the_same_losses(
    text: Path, tmp_path: Path, elman: Elman, reports: Reports
) -> None:
    def losses(out: Path) -> list[float]:
        return [line["loss"] for line in reports(out) if line["kind"] == "step"]

    settings = (*SMALL, "--set", "training.report_every=2", "--set", "model.dropout=0.1")
    for out, steps in ((tmp_path / "whole", 24), (tmp_path / "cut", 12)):
        assert elman("train", "elmo", text, "--out", out, "--steps", steps, *settings).code == 0
    elman("train", "elmo", "--out", tmp_path / "cut", "--steps", 24, "--resume").ok()
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")


def test_sentences_of_a_treebank_as_words(tmp_path: Path, elman: Elman) -> None:
    path = tmp_path / "toy.conllu"
    path.write_text(TOY_TREEBANK)
    assert elman("data", "words", path).out == TOY_TEXT
    path = tmp_path / "plain.txt"
    path.write_text("Well, he can't. (No!)\n\nSo what?\n")
    assert elman("data", "words", path).out == "Well , he can't . ( No ! )\nSo what ?\n"


def test_text_that_is_not_tokenised_is_cut_into_words(tmp_path: Path, elman: Elman) -> None:
    path = tmp_path / "plain.txt"
    path.write_text(TOY_TEXT.replace(" .", "."))
    out = tmp_path / "run"
    elman("train", "elmo", path, "--out", out, "--steps", 2, *SMALL).ok()
    tokenizer = json.loads((out / "tokenizer.json").read_text())
    assert "paper" in tokenizer["model"]["vocab"]
    assert "paper." not in tokenizer["model"]["vocab"]


def test_what_cannot_be_is_told(text: Path, tmp_path: Path, elman: Elman) -> None:
    out = ("--out", tmp_path / "none")
    result = elman("train", "elmo", text, *out, "--set", "tokenizer.kind=char")
    assert (result.code, result.error[0]) == (
        2,
        "ELMo reads words, so its tokenizer cannot be char",
    )
    short = tmp_path / "short.txt"
    short.write_text("one line .\n" * 3)
    result = elman("train", "elmo", short, *out)
    assert result.code == 2
    assert "too little data" in result.error[0]
    damaged = tmp_path / "damaged.txt"
    damaged.write_bytes(b"a fine line .\nbr\xfcken\n" * 30)
    result = elman("train", "elmo", damaged, *out)
    assert result.code == 1
    assert "line 2" in result.error[0]


def test_the_library_opens_it(trained: Path) -> None:
    handle = library.load(trained)
    assert repr(handle).endswith("3 layers of 48)")


def arrays(path: Path) -> dict[str, Any]:
    import numpy as np

    with np.load(path) as archive:
        return dict(archive)


def test_embed_writes_words_in_context(trained: Path, tmp_path: Path, elman: Elman) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text(
        "the pupil lost her book .\n\n" + "x" * 10_000 + " Ø\nthe pupil lost her book ."
    )
    out = tmp_path / "vectors.npz"
    shapes = {"all": (3, 6, 48), "mix": (6, 48), "top": (6, 48)}
    found = {}
    for layers, shape in shapes.items():
        result = elman("embed", trained, lines, "--layers", layers, "--out", out)
        assert (result.code, result.out.strip()) == (0, str(out)), result.err
        found[layers] = arrays(out)
        assert sorted(found[layers]) == ["0", "1", "2", "3"]
        assert found[layers]["0"].shape == shape
        assert found[layers]["1"].shape == (*shape[:-2], 0, 48)
        assert (found[layers]["3"] == found[layers]["0"]).all()
    assert abs(found["all"]["0"][-1] - found["top"]["0"]).max() < 1e-6
    assert abs(found["all"]["0"].mean(0) - found["mix"]["0"]).max() < 1e-6
    elman("embed", trained, lines, "--layers", "top", "--carry-state", "--out", out)
    carried = arrays(out)
    assert abs(carried["0"] - found["top"]["0"]).max() < 1e-6
    assert abs(carried["3"] - found["top"]["3"]).max() > 1e-4
    printed = elman("embed", trained, "-", "--json", stdin="the book\n").json
    assert len(printed[0]) == 2


def test_a_language_models_states_are_vectors_in_left_context(
    words: Path, tmp_path: Path, elman: Elman
) -> None:
    lines, out = tmp_path / "lines.txt", tmp_path / "vectors.npz"
    lines.write_text("the student\nthe student lost\n")
    assert elman("embed", words, lines, "--layers", "top", "--out", out).code == 0
    top = arrays(out)
    assert abs(top["0"] - top["1"][:2]).max() < 1e-5  # what follows is not seen
    elman("embed", words, lines, "--kind", "token", "--out", out)
    assert abs(arrays(out)["1"] - top["1"]).max() < 1e-5


def test_converted_to_the_published_format(trained: Path, tmp_path: Path, elman: Elman) -> None:
    pytest.importorskip("h5py")
    published, lines = tmp_path / "published", tmp_path / "lines.txt"
    assert elman("convert", trained, published).code == 0
    assert sorted(p.name for p in published.iterdir()) == ["lm_weights.hdf5", "options.json"]
    lines.write_text("the pupil lost her book .\n")
    vectors = []
    for model in (trained, published):
        elman("embed", model, lines, "--layers", "all", "--out", tmp_path / "v.npz")
        vectors.append(arrays(tmp_path / "v.npz")["0"])
    assert abs(vectors[0] - vectors[1]).max() < 1e-5
    assert "published weights" in elman("info", published).out
    assert "has no output layer" in elman("evaluate", published, lines).error[0]
    assert "already exists" in elman("convert", trained, published).error[0]
    (published / "lm_weights.hdf5").write_bytes(b"\x89HDF\r\n\x1a\nno more")
    failed = elman("embed", published, lines, "--out", tmp_path / "none.npz")
    assert failed.code == 1
    assert "is damaged" in failed.error[0]
    assert not (tmp_path / "none.npz").exists()


def test_published_vectors_by_command(shared_data: Path, tmp_path: Path, elman: Elman) -> None:
    h5py = pytest.importorskip("h5py")
    folder, out = shared_data / "elmo", tmp_path / "vectors.h5"
    lines = json.loads((folder / "sentences_0.json").read_text())
    given = ("embed", folder, "-", "--layers", "top", "--carry-state", "--out", out)
    assert elman(*given, "--device", "cpu", stdin="\n".join(lines)).code == 0
    with h5py.File(out) as found, h5py.File(folder / "lm_embeddings_0.hdf5") as expected:
        assert set(found) == set(expected)
        for name in expected:
            forward, backward = expected[name][()]
            width = forward.shape[-1]
            assert abs(found[name][:, :width] - forward).max() < 1e-5
            assert abs(found[name][:, width:] - backward).max() < 1e-5


def test_lanes_are_for_running_text(trained: Path, text: Path, elman: Elman) -> None:
    """An option that changes nothing is refused."""
    result = elman("evaluate", trained, text, "--batch-size", 1)
    assert result.code == 2
    assert "reads sentences one by one" in result.error[0]


def test_neighbours_of_a_word_in_context(trained: Path, text: Path, elman: Elman) -> None:
    sentence = "the pupil lost her book ."
    (found,) = elman("neighbours", trained, text, "book", "--in", sentence, "-k", 3, "--json").json
    assert found["sentence"] == sentence
    assert len(found["neighbours"]) == 3
    best = found["neighbours"][0]
    assert best["cosine"] > 0.5
    assert best["sentence"] == TOY_TEXT.splitlines()[best["line"] - 1] != sentence
    shown = elman("neighbours", trained, text, "book", "--same", "-k", 2).out
    assert "the student opened the [book] ." in shown
    for arguments, said in (
        ((text, "dragon"), "does not occur"),
        ((text, "book", "--layers", "all"), "one vector"),
        (("-", "book"), "only once"),
    ):
        result = elman("neighbours", trained, *arguments)
        assert result.code == 2
        assert said in result.error[0]


def test_neighbours_cut_words_as_the_model_does(words: Path, toy: Path, elman: Elman) -> None:
    """Ordinary text, whose marks stand close to words."""
    (found,) = elman(
        "neighbours", words, toy, "book", "--in", "the pupil lost her book.", "--json"
    ).json
    assert found["sentence"] == "the pupil lost her book ."
    assert all(not near["word"].endswith("book.") for near in found["neighbours"])
    said = elman("neighbours", words, toy, "book.").error
    assert "'book.' does not occur" in said[0]
    assert said[1] == "the model splits it: book | ."


def test_embed_says_what_it_cannot_do(
    trained: Path, text: Path, tmp_path: Path, elman: Elman
) -> None:
    out = ("--out", tmp_path / "v.npz")
    said = elman("embed", trained, "book").error
    assert "a word alone has no vector in context" in said[0]
    assert said[1].endswith(f"elman neighbours {trained} FILE book")
    damaged = tmp_path / "damaged.txt"
    damaged.write_bytes(b"fine\nnot \xff fine\n")
    for arguments, said in (
        ((trained, text, "--layers", "tip", *out), "layers cannot be 'tip'"),
        ((trained, text, "--kind", "token", *out), "which has no --kind"),
        ((trained, text, "--layers", "top"), "no output for the vectors"),
        ((trained, text, "--layers", "top", "--out", tmp_path / "v.csv"), "unknown format"),
        ((trained, damaged, *out), "line 2"),
    ):
        result = elman("embed", *arguments)
        assert said in result.error[0]
        assert not list(tmp_path.glob("v.*"))


def test_bench_measures_the_same_vectors(text: Path, elman: Elman) -> None:
    result = elman(
        *("bench", "elmo", text, "--sentences", 12, "--repeat", 1, "--threads", 1),
        *("--device", "cpu", "--json"),
    )
    rows = [json.loads(line) for line in result.out.splitlines()]
    assert [row["name"] for row in rows] == [
        "elmo-tiny on cpu beside stepping nn.LSTM",
        "elmo-tiny on cpu beside padded nn.LSTM",
    ]
    for row in rows:
        assert row["settings"]["difference"] < 1e-5
        assert row["ours"] > 0
    assert "not an ELMo recipe" in elman("bench", "elmo", text, "--recipes", "char-lstm").error[0]
