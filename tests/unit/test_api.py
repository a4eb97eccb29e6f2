"""The library's handle on a model: the same answers, however they are asked for."""

from __future__ import annotations

import inspect
import math
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import elman
from elman.api import LM, new_run_folder
from elman.models.recurrent import RecurrentLMConfig
from elman.testing import TOY_TEXT
from elman.tokens.tokenizer import Tokenizer
from elman.tokens.tokenizer_config import TokenizerConfig
from elman.tokens.train import train_tokenizer


def make(folder: Path, kind: str) -> LM:
    """A model with random weights: nothing here depends on what it has learnt."""
    text = folder / "toy.txt"
    text.write_text(TOY_TEXT, encoding="utf-8")
    size = 0 if kind == "byte" else 300
    tokenizer: Tokenizer = train_tokenizer([text], TokenizerConfig(kind=kind, vocab_size=size))[0]
    torch.manual_seed(3)
    config = RecurrentLMConfig(hidden_size=12, embedding_size=10)
    model = config.build(tokenizer.vocab_size, boundary_id=tokenizer.boundary_id)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)  # far from uniform
    return LM(kind, model.eval(), tokenizer)


@pytest.fixture(scope="module", params=["char", "byte", "word", "bpe"])
def lm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LM:
    return make(tmp_path_factory.mktemp("api"), request.param)


@pytest.fixture(scope="module")
def characters(tmp_path_factory: pytest.TempPathFactory) -> LM:
    return make(tmp_path_factory.mktemp("characters"), "char")


TEXT = "the student opened her book .\nthe pupil lost the exam paper .\n"


def test_log_perplexity_is_average_surprisal(lm: LM) -> None:
    rows = lm.surprisal(TEXT, base=2)
    average = sum(row.surprisal or 0.0 for row in rows) / sum(row.num_tokens for row in rows)
    assert math.log2(lm.perplexity(TEXT)) == pytest.approx(average)
    assert lm.logprob(TEXT) == pytest.approx(-math.log(2) * sum(r.surprisal or 0.0 for r in rows))


def test_a_line_alone_is_a_line_among_others(lm: LM) -> None:
    first, second = TEXT.splitlines()
    assert lm.logprob(TEXT) == pytest.approx(lm.logprob(first) + lm.logprob(second), rel=1e-5)
    assert lm.logprob(TEXT, carry=True) != pytest.approx(lm.logprob(TEXT), rel=1e-5)


def test_evaluate_agrees_with_running_text(lm: LM, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text(TEXT, encoding="utf-8")
    found = lm.evaluate(file, batch_size=1)
    assert found.perplexity == pytest.approx(lm.perplexity(TEXT, carry=True), rel=1e-4)
    bits = -lm.logprob(TEXT, carry=True) / math.log(2)
    assert found.bits_per_byte == pytest.approx(bits / len(TEXT.encode()), rel=1e-4)


def test_next_is_a_distribution(lm: LM) -> None:
    found = lm.next("the student", k=lm.tokenizer.vocab_size)
    assert sum(probability for _, probability in found) == pytest.approx(1.0, abs=1e-5)
    assert lm.next("the student", k=2) == found[:2]
    assert len({token for token, _ in found}) == len(found)


def test_generation_joins_prompt_and_pieces(lm: LM) -> None:
    pieces = list(lm.generate("the student", max_tokens=12, seed=1, stream=True))
    text = lm.generate("the student", max_tokens=12, seed=1)
    assert "".join(pieces) == text
    (completion,) = lm.complete("the student", max_tokens=12, seed=1)
    assert (completion.text, completion.finish_reason) == (text, "length")
    assert completion.tokens == 12


def test_several_samples_are_several_seeds(characters: LM) -> None:
    several = characters.complete("the", max_tokens=9, seed=4, num_samples=3)
    alone = [characters.generate("the", max_tokens=9, seed=4 + row) for row in range(3)]
    assert [completion.text for completion in several] == alone


@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_stop_sequence_is_found_across_tokens(characters: LM, length: int) -> None:
    settings = {"max_tokens": 40, "seed": 2, "logit_bias": {characters.tokenizer.boundary_id: -100}}
    whole = characters.generate("the ", **settings)
    stop = whole[12 : 12 + length]
    for stops in (stop, [stop], ["never that", stop]):
        (cut,) = characters.complete("the ", stop=stops, **settings)
        assert cut.text == whole[: whole.index(stop)]
        assert cut.finish_reason == "stop"
        assert cut.tokens == whole.index(stop) + length


def test_what_might_have_become_a_stop_sequence_is_given_in_the_end(characters: LM) -> None:
    whole = characters.generate("the ", max_tokens=10, seed=2)
    held = characters.generate("the ", max_tokens=10, seed=2, stop=[whole[-3:] + "…"])
    assert held == whole


def test_an_unfinished_character_ends_as_a_replacement(tmp_path: Path) -> None:
    lm = make(tmp_path, "byte")
    first_byte_of_two = 0xC3
    (token,) = (i for i, s in enumerate(lm.tokenizer.spellings()) if s == "<0xC3>")
    (completion,) = lm.complete("", max_tokens=1, logit_bias={token: 100.0}, seed=1)
    assert completion.text == bytes([first_byte_of_two]).decode("utf-8", "replace")


def test_a_beam_gives_the_best_first(lm: LM) -> None:
    found = lm.complete("the", beam_size=4, num_samples=3, max_tokens=4, length_penalty=0)
    assert [c.logprob for c in found] == sorted((c.logprob for c in found), reverse=True)
    greedy = lm.complete("the", greedy=True, max_tokens=4)[0]
    assert found[0].logprob >= greedy.logprob - 1e-5


def test_vectors(lm: LM) -> None:
    num_tokens = len(lm.tokenizer.encode("the student"))
    assert lm.embed("the student").shape == (12,)
    assert lm.embed("the student", kind="token").shape == (num_tokens, 12)
    assert lm.embed("the student", kind="word").shape == (num_tokens, 10)
    np.testing.assert_allclose(
        lm.embed("the student"), lm.embed("the student", kind="token")[-1], rtol=1e-5, atol=1e-6
    )


def test_neighbours_are_the_nearest(tmp_path: Path) -> None:
    lm = make(tmp_path, "word")
    found = lm.neighbours("student", k=3)
    vectors = np.stack([lm.word_vector(word) for word, _ in found])
    own = lm.word_vector("student")
    cosines = vectors @ own / np.linalg.norm(vectors, axis=1) / np.linalg.norm(own)
    np.testing.assert_allclose(cosines, [cosine for _, cosine in found], rtol=1e-4)
    assert "student" not in dict(found)
    with pytest.raises(elman.UsageError, match="not a token") as caught:
        lm.neighbours("stuednt")
    assert caught.value.hint == "did you mean 'student'?"


def test_wrong_settings_are_named(characters: LM) -> None:
    with pytest.raises(elman.UsageError, match="max_token") as caught:
        characters.generate("the", max_token=3)
    assert caught.value.hint == "did you mean 'max_tokens'?"
    with pytest.raises(elman.UsageError, match="one text"):
        characters.generate("the", num_samples=2)
    with pytest.raises(elman.UsageError, match="stream"):
        characters.generate("the", beam_size=2, stream=True)
    with pytest.raises(elman.UsageError, match="kind"):
        characters.embed("the", kind="sentence")  # type: ignore[arg-type]
    with pytest.raises(elman.UsageError, match="no tokens to measure"):
        characters.perplexity("", include_end=False)


def test_training_gives_a_model_and_reports(tmp_path: Path) -> None:
    text = tmp_path / "toy.txt"
    text.write_text(TOY_TEXT, encoding="utf-8")
    kinds = []
    lm = elman.train_lm(
        text,
        out=tmp_path / "run",
        steps=3,
        seed=1,
        settings={"model.hidden_size": 16, "model.tied": False, "tokenizer.kind": "char"},
        on_report=lambda report: kinds.append(report.kind),
    )
    assert kinds[-1] == "done"
    assert lm.runs[0].config.model.hidden_size == 16
    assert elman.load(tmp_path / "run").perplexity(TEXT) == pytest.approx(lm.perplexity(TEXT))


def test_new_folders_take_the_name_of_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert new_run_folder("lm", ["data/my.text.gz"]) == Path("runs/lm-my")
    assert new_run_folder("window", ["python-docs"]) == Path("runs/window-python-docs")
    Path("runs/lm-my").mkdir(parents=True)
    assert new_run_folder("lm", ["data/my.txt"]) == Path("runs/lm-my-2")
    assert new_run_folder("lm", ["news/*.txt"]) == Path("runs/lm-text")


def test_the_front_door_is_lazy_and_complete() -> None:
    assert elman.LM is LM
    assert set(dir(elman)) >= {"load", "train_lm", "LM", "ElmanError"}
    with pytest.raises(AttributeError, match="nothing"):
        elman.nothing  # noqa: B018


def test_a_model_of_your_own_has_less_to_say_about_itself(characters: LM) -> None:
    about = characters.info()
    assert about["kind"] == "RecurrentLM"
    assert about["tokenizer"]["vocab_size"] == characters.tokenizer.vocab_size


def test_the_hint_is_part_of_the_exception() -> None:
    error = elman.UsageError("there is no option --gpu", "write --device cuda")
    assert str(error) == "there is no option --gpu\nhint: write --device cuda"
    assert error.message == "there is no option --gpu"
    assert str(elman.ElmanError("the disk is full")) == "the disk is full"


def test_the_number_of_next_tokens_is_at_least_one(characters: LM) -> None:
    for k in (0, -1):
        with pytest.raises(elman.UsageError, match="k cannot be") as caught:
            characters.next("the", k=k)
        assert caught.value.hint == "use 1 or more"
        with pytest.raises(elman.UsageError, match="k cannot be"):
            characters.neighbours("t", k=k)


def test_training_in_python_shows_its_progress(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "toy.txt"
    text.write_text(TOY_TEXT, encoding="utf-8")
    how = {"steps": 2, "settings": {"model.hidden_size": 16, "model.tied": False}}
    elman.train_lm(text, out=tmp_path / "shown", **how)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "is held out for validation" in captured.err  # how the settings were chosen
    assert "validation after step 2: perplexity" in captured.err
    elman.train_lm(text, out=tmp_path / "quiet", progress=False, **how)
    elman.train_lm(text, out=tmp_path / "reported", on_report=lambda report: None, **how)
    assert capsys.readouterr().err == ""


def test_completion_offers_what_users_call(characters: LM) -> None:
    offered = {name for name in dir(characters) if not name.startswith("_")}
    assert {"generate", "next", "perplexity", "surprisal", "tokenizer"} <= offered
    assert not offered & {"of_run", "end_ids", "line_end", "decoding", "can_be_undefined"}
    assert {name for name in dir(elman) if not name.startswith("_")} <= set(elman.__all__)
    assert "os" not in dir(elman)


@pytest.mark.parametrize("how", [{}, {"greedy": True}, {"beam_size": 3}])
def test_unknown_words_are_generated_only_if_asked_for(tmp_path: Path, how: dict[str, Any]) -> None:
    lm = make(tmp_path, "word")
    unknown = lm.tokenizer.unknown_id
    assert unknown is not None
    with torch.no_grad():
        lm.model.head.softmax.bias[unknown] += 50.0  # by far the most likely token
    assert "<unk>" not in lm.generate("the", max_tokens=9, **how)
    assert "<unk>" in lm.generate("the", max_tokens=9, unk=True, **how)
    assert "<unk>" in lm.generate("the", max_tokens=9, logit_bias={unknown: 0.0}, **how)


def test_results_become_tables(characters: LM, monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = types.ModuleType("pandas")
    pandas.DataFrame = lambda rows, columns: (rows, columns)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    rows, columns = characters.next("the", k=2).to_pandas()
    assert (len(rows), columns) == (2, ["token", "probability"])
    rows, columns = characters.surprisal("the").to_pandas()
    assert columns[:4] == ["line", "index", "text", "surprisal"]
    assert [row[2] for row in rows][:3] == ["t", "h", "e"]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(elman.ElmanError, match="pandas"):
        characters.next("the").to_pandas()


def test_notebooks_show_shaded_text(characters: LM) -> None:
    shown = characters.surprisal("the <b>\nzoë")._repr_html_()
    assert "&lt;" in shown
    assert "<b>" not in shown
    assert "bits in all" in shown
    assert "unknown (underlined)" in shown
    assert "<th>probability</th>" in characters.next("the")._repr_html_()


def test_surprisal_is_drawn(characters: LM, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figure = characters.plot_surprisal("the $ student", unit="word", path=tmp_path / "bars.svg")
    assert len(figure.axes[0].patches) == len(characters.surprisal("the $ student", unit="word"))
    assert (tmp_path / "bars.svg").stat().st_size


def test_trainers_list_their_keywords() -> None:
    keywords = inspect.signature(elman.train_lm).parameters
    assert {"data", "minutes", "start", "cell", "tokenizer", "progress"} <= set(keywords)
    assert {"dropout_output", "overwrite", "encoding"} <= set(keywords)
    assert "task" not in keywords
    assert "order" in inspect.signature(elman.train_ngram).parameters


def test_training_in_python_reads_other_encodings_and_replaces_runs(tmp_path: Path) -> None:
    text, out = tmp_path / "old.txt", tmp_path / "run"
    text.write_bytes(("the café was closed .\n" * 9).encode("latin-1"))
    options: dict[str, Any] = {"out": out, "encoding": "latin-1", "progress": False}
    lm = elman.train_ngram(text, tokenizer="word", order=2, **options)
    assert "café" in lm.tokenizer.spellings()
    with pytest.raises(elman.UsageError):
        elman.train_ngram(text, order=3, **options)
    again = elman.train_ngram(text, tokenizer="word", order=3, overwrite=True, **options)
    assert again.model.counts.order == 3
    with pytest.raises(elman.UsageError, match="overwrite needs the run folder"):
        elman.train_ngram(text, overwrite=True)
