"""Runs as folders for transformers: the numbers of both sides agree, and the way back works."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import elman
from elman.base.errors import UsageError
from elman.testing import TOY_LABELLED

transformers = pytest.importorskip("transformers")
hf = pytest.importorskip("elman.hf")

Elman = Callable[..., Any]
TEXTS = ["the student opened the book.", "her exam", "The old PROFESSOR (lost) <eos> é"]
PROMPT = "the student"


@pytest.fixture(scope="module")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable:
    """Makes the folder for transformers of a session's run: the run and the folder."""
    elman: Elman = request.getfixturevalue("elman")
    made: dict[Path, Path] = {}

    def convert(run: Path) -> tuple[Path, Path]:
        if run not in made:
            made[run] = tmp_path_factory.mktemp("hf") / run.name
            elman("convert", run, made[run], "--to", "hf").ok()
        return run, made[run]

    return convert


@pytest.fixture(scope="module", params=["model", "words"])
def both(request: pytest.FixtureRequest, pair: Callable) -> tuple[Any, Any, Any]:
    """A model as Elman's handle, as transformers' model, and its tokenizer there."""
    run, folder = pair(request.getfixturevalue(request.param))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    return elman.load(run), model, transformers.AutoTokenizer.from_pretrained(folder)


def test_log_probabilities_are_those_of_elman_score(both: tuple[Any, Any, Any]) -> None:
    lm, model, tokenizer = both
    for text in TEXTS:
        ids = tokenizer(text, return_tensors="pt").input_ids
        assert ids[0].tolist() == [lm.tokenizer.boundary_id, *lm.tokenizer.encode(text)]
        with torch.no_grad():
            out = model(ids, labels=ids)
        expected = lm.logprob(text, include_end=False, as_is=True)
        chosen = out.logits[0, :-1].gather(1, ids[0, 1:, None]).sum()
        assert float(chosen) == pytest.approx(expected, abs=1e-4)
        assert -float(out.loss) * (ids.shape[1] - 1) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(both: tuple[Any, Any, Any], side: str) -> None:
    _, model, tokenizer = both
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True, padding_side=side)
    with torch.no_grad():
        together = model(**batch, output_hidden_states=True)
        for row, text in enumerate(TEXTS):
            alone = model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True)
            real = batch.attention_mask[row].bool()
            torch.testing.assert_close(together.logits[row, real], alone.logits[0])
            last = together.hidden_states[-1][row, real]
            torch.testing.assert_close(last, alone.hidden_states[-1][0])
            for name, tensor in alone.past_key_values.state.flatten().items():
                found = together.past_key_values.state.flatten()[name][row]
                torch.testing.assert_close(found, tensor[0])


def test_a_mask_with_a_hole_is_refused(both: tuple[Any, Any, Any]) -> None:
    _, model, _ = both
    with pytest.raises(UsageError, match="one stretch"):
        model(torch.tensor([[0, 1, 2]]), attention_mask=torch.tensor([[1, 0, 1]]))


def test_greedy_text_is_that_of_elman_generate(both: tuple[Any, Any, Any]) -> None:
    lm, model, tokenizer = both
    expected = lm.generate(PROMPT, max_tokens=12, temperature=0)
    pipe = transformers.pipeline("text-generation", model=model, tokenizer=tokenizer)
    how = {"max_new_tokens": 12, "do_sample": False, "skip_special_tokens": False}
    (found,) = pipe(PROMPT, **how)
    assert found["generated_text"] == PROMPT + expected
    ids = tokenizer(PROMPT, return_tensors="pt")
    cached, again = (
        model.generate(**ids, max_new_tokens=12, do_sample=False, use_cache=use)
        for use in (True, False)
    )
    assert cached.tolist() == again.tolist()


def test_beams_are_those_of_elman_generate(both: tuple[Any, Any, Any]) -> None:
    lm, model, tokenizer = both
    expected = lm.complete(PROMPT, beam_size=3, num_samples=3, max_tokens=6)
    found = model.generate(
        **tokenizer(PROMPT, return_tensors="pt"),
        max_new_tokens=6,
        num_beams=3,
        num_return_sequences=3,
        length_penalty=0.0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    scores = [completion.logprob for completion in expected]
    assert found.sequences_scores.tolist() == pytest.approx(scores, abs=1e-4)


def test_sampling_draws_from_the_model(both: tuple[Any, Any, Any]) -> None:
    """Frequencies of the first token, and no unknown token."""
    lm, model, tokenizer = both
    torch.manual_seed(1)
    ids = tokenizer(PROMPT, return_tensors="pt")
    drawn = model.generate(**ids, max_new_tokens=1, do_sample=True, num_return_sequences=2000)
    tokens = drawn[:, ids.input_ids.shape[1]]
    assert int((tokens == lm.tokenizer.unknown_id).sum()) == 0
    token, probability = lm.next(PROMPT, 1)[0]
    share = float((tokens == lm.tokenizer.id(token)).float().mean())
    assert share == pytest.approx(probability, abs=5 * (probability / 2000) ** 0.5)


def test_a_text_goes_on_from_a_cache(both: tuple[Any, Any, Any]) -> None:
    _, model, tokenizer = both
    ids = tokenizer(TEXTS[0], return_tensors="pt").input_ids
    with torch.no_grad():
        first = model(ids[:, :3])
        rest = model(ids[:, 3:], past_key_values=first.past_key_values)
        torch.testing.assert_close(rest.logits, model(ids).logits[:, 3:])
    assert rest.past_key_values.get_seq_length() == ids.shape[1]


def test_minicons_scores_are_those_of_elman_score(both: tuple[Any, Any, Any]) -> None:
    scorer = pytest.importorskip("minicons.scorer")
    lm, model, tokenizer = both
    found = scorer.IncrementalLMScorer(model, "cpu", tokenizer)
    totals = found.sequence_score(TEXTS[:2], reduction=lambda x: x.sum().item())
    expected = [lm.logprob(text, include_end=False) for text in TEXTS[:2]]
    assert totals == pytest.approx(expected, abs=1e-4)
    rows = found.token_score(TEXTS[:1], surprisal=True, base_two=True)[0][1:]
    bits = [row.surprisal for row in lm.surprisal(TEXTS[0], include_end=False)]
    assert [bits for _, bits in rows] == pytest.approx(bits, abs=1e-4)


def test_and_back(words: Path, pair: Callable, elman: Elman, tmp_path: Path) -> None:
    run, folder = pair(words)
    elman("convert", folder, tmp_path / "back").ok()
    before, after = (
        elman("score", where, "-", "--json", stdin=TEXTS[0]) for where in (run, tmp_path / "back")
    )
    assert before.ok().out == after.ok().out
    header = elman("info", tmp_path / "back", "--json").ok().json
    assert header["validation"] == elman("info", run, "--json").ok().json["validation"]


def test_back_from_what_save_pretrained_writes(
    words: Path, pair: Callable, elman: Elman, tmp_path: Path
) -> None:
    """After a step of training in transformers, in several files."""
    run, folder = pair(words)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).train()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(TEXTS[0], return_tensors="pt").input_ids
    model(ids, labels=ids).loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    model.save_pretrained(tmp_path / "tuned", max_shard_size="10KB")
    tokenizer.save_pretrained(tmp_path / "tuned")
    assert (tmp_path / "tuned" / "model.safetensors.index.json").is_file()
    elman("convert", tmp_path / "tuned", tmp_path / "back").ok()
    with torch.no_grad():
        expected = -float(model.eval()(ids, labels=ids).loss) * (ids.shape[1] - 1)
    found = elman_load(tmp_path / "back").logprob(TEXTS[0], include_end=False)
    assert found == pytest.approx(expected, abs=1e-4)
    assert found != pytest.approx(elman_load(run).logprob(TEXTS[0], include_end=False), abs=1e-3)


def elman_load(path: Path) -> Any:
    return elman.load(path)


def test_the_card_has_front_matter(words: Path, pair: Callable) -> None:
    _, folder = pair(words)
    huggingface_hub = pytest.importorskip("huggingface_hub")
    card = huggingface_hub.ModelCard.load(folder / "README.md")
    assert card.data.pipeline_tag == "text-generation"
    assert card.data.library_name == "transformers"
    assert "import elman.hf" in card.text


def test_classes_of_texts(elman: Elman, tmp_path: Path, write: Callable, pair: Callable) -> None:
    data = write("labelled.tsv", TOY_LABELLED)
    small = ("--steps", 5, "--set", "model.hidden_size=8", "--set", "model.embedding_size=8")
    elman("train", "classifier", data, "--out", tmp_path / "run", *small).ok()
    run, folder = pair(tmp_path / "run")
    pipe = transformers.pipeline("text-classification", str(folder), top_k=None)
    texts = ["the student opened the book", "the pupil lost her exam paper", "the"]
    for text, found in zip(texts, pipe(texts, batch_size=3), strict=True):
        expected = elman_load(run).classify(text).probabilities
        scores = {row["label"]: row["score"] for row in found}
        assert scores == pytest.approx(expected, abs=1e-5)
    with torch.no_grad():  # a batch with an empty text
        batch = pipe.tokenizer(["", texts[0]], padding=True, return_tensors="pt")
        both = pipe.model(**batch).logits.softmax(1)
    for text, row in zip(["", texts[0]], both, strict=True):
        expected = elman_load(run).classify(text).probabilities
        assert row.tolist() == pytest.approx(list(expected.values()), abs=1e-5)
    elman("convert", folder, tmp_path / "back").ok()
    assert elman_load(tmp_path / "back").classify(texts[0]) == elman_load(run).classify(texts[0])


def test_what_has_no_form_is_refused(
    elman: Elman, toy: Path, words: Path, small: Any, tmp_path: Path
) -> None:
    maxent = ("--set", "model.maxent_order=2", "--set", "model.maxent_size=1024", "--steps", 1)
    elman("train", "lm", toy, "--out", tmp_path / "maxent", *small, *maxent).ok()
    message, hint = elman("convert", tmp_path / "maxent", tmp_path / "a", "--to", "hf").error
    assert "MaxEnt" in message
    assert "maxent_order" in hint
    elman("train", "ngram", toy, "--out", tmp_path / "ngram").ok()
    message, hint = elman("convert", tmp_path / "ngram", tmp_path / "a", "--to", "hf").error
    assert "ngram" in message
    assert "lm" in hint
    assert not (tmp_path / "a").exists()
    message, _ = elman("convert", words, tmp_path / "a", "--to", "onx").error
    assert "onx" in message
    elman("convert", words, tmp_path / "b", "--to", "hf").ok()
    message, hint = elman("info", tmp_path / "b").error
    assert "transformers" in message
    assert "elman convert" in hint


def test_a_folder_without_its_weights_is_an_error(
    words: Path, pair: Callable, elman: Elman, tmp_path: Path
) -> None:
    _, folder = pair(words)
    shutil.copytree(folder, tmp_path / "cut")
    (tmp_path / "cut" / "model.safetensors").unlink()
    message, _ = elman("convert", tmp_path / "cut", tmp_path / "back").error
    assert "model.safetensors" in message
    settings = json.loads((folder / "config.json").read_text())
    del settings["elman"]
    (tmp_path / "cut" / "config.json").write_text(json.dumps(settings))
    assert elman("convert", tmp_path / "cut", tmp_path / "back").code == 1


def _index(folder: Path, content: str) -> None:
    (folder / "model.safetensors.index.json").write_text(content)


def _header(folder: Path, content: str) -> None:
    weights = folder / "model.safetensors"
    save_file(load_file(weights), weights, {"elman": content})


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda folder: _index(folder, "[1]"), "model.safetensors.index.json is damaged"),
        (lambda folder: _index(folder, '{"weight_map": [1]}'), "index.json is damaged"),
        (lambda folder: _header(folder, "[1]"), "model.safetensors is damaged"),
        (lambda folder: _header(folder, "5"), "model.safetensors is damaged"),
    ],
)
def test_a_damaged_folder_is_an_error(
    words: Path, elman: Elman, tmp_path: Path, damage: Callable[[Path], None], says: str
) -> None:
    folder = tmp_path / "folder"
    elman("convert", words, folder, "--to", "hf").ok()
    damage(folder)
    assert says in elman("convert", folder, tmp_path / "back").error[0]
    assert not (tmp_path / "back").exists()


def test_a_vocabulary_of_another_model_is_an_error(
    words: Path, model: Path, elman: Elman, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    elman("convert", words, folder, "--to", "hf").ok()
    shutil.copyfile(model / "tokenizer.json", folder / "tokenizer.json")
    refused = elman("convert", folder, tmp_path / "back")
    assert (refused.code, "the vocabulary has" in refused.error[0]) == (1, True)
    assert not (tmp_path / "back").exists()
