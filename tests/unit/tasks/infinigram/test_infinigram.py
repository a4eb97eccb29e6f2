"""N-gram models without a limit on n: the contract, run folders, sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import elman
from counting_runs import fit_counts
from elman import testing
from elman.base.errors import ElmanError, UsageError
from elman.cli.main import run
from elman.models.interface import LanguageModel
from elman.models.mixture import Mixture
from elman.ngrams import scratch, suffix_array
from elman.ngrams.counting import count
from elman.ngrams.smoothing import KneserNey, build
from elman.ngrams.text_index import TextIndex
from elman.ngrams.unbounded import UnboundedModel, fixed_weights
from elman.tasks.infinigram.handle import InfinigramHandle
from elman.tasks.infinigram.joining import join
from elman.tasks.infinigram.model import UnboundedLM
from elman.tasks.infinigram.settings import InfinigramConfig
from elman.testing import TOY_TEXT
from elman.tokens.tokenizer import Tokenizer

V = testing.VOCAB_SIZE


@pytest.fixture(scope="module", params=[1, 3])
def model(request: pytest.FixtureRequest) -> UnboundedLM:
    ids = np.minimum(np.random.default_rng(0).zipf(1.2, 2_000) - 1, V - 1)
    index = TextIndex.build(ids, vocab_size=V, boundary_id=2, newlines_V=np.zeros(V, int))
    backoff = build(count(ids, request.param, vocab_size=V, boundary_id=2), KneserNey())
    return UnboundedLM(UnboundedModel(index, backoff, fixed_weights()))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "toy.txt"
    path.write_text(TOY_TEXT, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def handle(text: Path, tmp_path_factory: pytest.TempPathFactory) -> InfinigramHandle:
    out = tmp_path_factory.mktemp("run") / "out"
    fit_counts("infinigram", [str(text)], out, tokenizer={"kind": "word"})
    found = elman.load(out)
    assert isinstance(found, InfinigramHandle)
    return found


def test_the_contract_of_every_language_model(model: UnboundedLM) -> None:
    assert isinstance(model, LanguageModel)
    for check in testing.CONTRACT:
        check(model)


def test_in_a_mixture(model: UnboundedLM) -> None:
    mixture = Mixture([model, model], [0.4, 0.6])
    testing.check_stepwise_equals_whole(mixture)
    logprobs_BV, _ = mixture.step(torch.tensor([3, 1]), mixture.initial_state(2))
    assert logprobs_BV.exp().sum(dim=1) == pytest.approx(1, abs=1e-4)


def test_weights_from_validation_text_or_from_the_end_of_the_text(
    text: Path, tmp_path: Path
) -> None:
    notes: list[str] = []
    held_out = fit_counts("infinigram", [str(text)], tmp_path / "a", note=notes.append)
    assert any("weights of the matches are fitted to the last" in note for note in notes)
    assert held_out["perplexity"] is None
    summary = fit_counts("infinigram", [str(text)], tmp_path / "b", valid=[str(text)])
    assert summary["perplexity"] > 1
    assert summary["tokens"] == held_out["tokens"]  # all of the text is indexed
    card = (tmp_path / "a" / "card.md").read_text(encoding="utf-8")
    assert "fitted on the end of the text" in card
    found = elman.load(tmp_path / "b").evaluate(text, batch_size=1)
    assert found.perplexity == pytest.approx(summary["perplexity"], rel=1e-4)
    assert found.agreement[-1]["agreement"] == 1  # the text itself


@pytest.mark.parametrize("kind", ["char", "byte", "word", "bpe"])
def test_any_tokenizer(text: Path, tmp_path: Path, kind: str) -> None:
    tokens = {"kind": kind} | ({"vocab_size": 300} if kind == "bpe" else {})
    model = {"order": 3, "held_out": 0.0}
    fit_counts("infinigram", [str(text)], tmp_path / "run", model=model, tokenizer=tokens)
    lm = elman.load(tmp_path / "run")
    line = TOY_TEXT.split("\n")[7]
    found = lm.find(line, as_is=True)
    assert found.count == TOY_TEXT.count(f"{line}\n")
    numbers = [n for n, other in enumerate(TOY_TEXT.split("\n"), start=1) if other == line]
    assert found.places[0].line in numbers
    assert found.places[0].text.replace(" ", "") == line.replace(" ", "")
    assert found.places[0].file == str(text)


def test_in_limited_memory_the_files_are_the_same(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit_counts("infinigram", [str(text)], tmp_path / "a", model={"held_out": 0.0})
    monkeypatch.setattr(scratch, "SMALLEST_MEMORY", 1)
    monkeypatch.setattr(scratch, "LEAST_ROOM", -(1 << 62))
    monkeypatch.setattr(suffix_array, "_PIECE_SIZE", 100)
    fit_counts("infinigram", [str(text)], tmp_path / "b", model={"held_out": 0.0}, memory="4K")
    for name in ("index.safetensors", "ngram.safetensors", "weights.json", "tokenizer.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_why_says_what_a_prediction_was_made_from(handle: InfinigramHandle) -> None:
    tokenizer, counts = handle.tokenizer, handle.model.counts
    words = TOY_TEXT.split("\n")[3]
    ids = tokenizer.encode(words).tolist()
    sources = handle.why(ids, [tokenizer.boundary_id])
    scores = counts.score(np.array(ids))
    backoff = counts.backoff.score(np.array(ids))
    for source, score, lower in zip(sources, scores.tolist(), backoff.tolist(), strict=True):
        assert source.weight is not None
        mixed = source.weight * (source.share or 0) + (1 - source.weight) * np.exp(lower)
        assert np.log(mixed) == pytest.approx(score, abs=1e-4)
    assert [source.token for source in sources] == [tokenizer.token(token) for token in ids]
    last = sources[-1]
    assert last.length == len(ids)  # the whole line so far, and the boundary before it
    assert last.match.strip() == tokenizer.decode(ids[:-1])
    assert last.seen == last.length
    lines = [n for n, line in enumerate(TOY_TEXT.split("\n"), start=1) if words in line]
    assert last.line in lines


def test_a_search_does_not_go_through_the_vocabulary(
    handle: InfinigramHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, line_ends = [], Tokenizer.line_ends

    def counted(tokenizer: Tokenizer) -> Any:
        calls.append(tokenizer)
        return line_ends(tokenizer)

    monkeypatch.setattr(Tokenizer, "line_ends", counted)
    for text in ("the student", "The Student", "the"):
        assert handle.find(text).count > 0
    assert len(calls) <= 1


def test_other_models_share_stretches(handle: InfinigramHandle) -> None:
    tokenizer = handle.tokenizer
    ids = tokenizer.encode(TOY_TEXT.split("\n")[3]).tolist()
    *_, last = handle.indexed.shared(ids, [tokenizer.boundary_id])
    assert last.length == len(ids) + 1
    assert last.share is None
    assert last.weight is None


def test_novelty_of_copied_and_of_new_text(handle: InfinigramHandle, text: Path) -> None:
    from elman.evaluate.novelty import copied

    tokenizer = handle.tokenizer
    own = copied(handle.indexed, [tokenizer.encode(TOY_TEXT)[:100]])
    assert set(own.shares) == {1.0, None}
    assert own.longest == 100
    shuffled = np.random.default_rng(0).permutation(tokenizer.encode(TOY_TEXT))
    new = copied(handle.indexed, [shuffled])
    shares = [share for share in new.shares if share is not None]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 1 > shares[-1]
    found = handle.novelty(handle.indexed, text, num_tokens=60, seed=3)
    assert found.generated.tokens == 60
    assert found.data is not None
    assert found.data.mean_length > found.generated.mean_length
    again = handle.novelty(handle.indexed, num_tokens=60, seed=3).generated
    assert again.shares == found.generated.shares[: len(again.shares)]


def test_info(handle: InfinigramHandle) -> None:
    told = handle.info()
    assert told["index"]["tokens"] == len(handle.tokenizer.encode(TOY_TEXT))
    assert told["kind"] == "infinigram"


@pytest.mark.parametrize("name", ["index.safetensors", "ngram.safetensors", "weights.json"])
def test_a_folder_without_one_of_its_files(text: Path, tmp_path: Path, name: str) -> None:
    fit_counts("infinigram", [str(text)], tmp_path / "run", model={"held_out": 0.0})
    (tmp_path / "run" / name).unlink()
    with pytest.raises(ElmanError, match=f"has no {name}"):
        elman.load(tmp_path / "run")


def test_settings_that_cannot_be() -> None:
    with pytest.raises(UsageError, match="held_out"):
        InfinigramConfig(held_out=1.0)
    with pytest.raises(UsageError, match="order"):
        InfinigramConfig(order=0)


def test_joined_indexes_are_one_index_of_all_files(text: Path, tmp_path: Path) -> None:
    more = tmp_path / "more.txt"
    more.write_text("the cat sat on another mat\nand the dog\n" * 3, encoding="utf-8")
    settings: dict[str, Any] = {"model": {"order": 2, "held_out": 0.0}}
    fit_counts("infinigram", [str(text), str(more)], tmp_path / "all", **settings)
    settings["tokenizer"] = {"file": str(tmp_path / "all/tokenizer.json")}
    fit_counts("infinigram", [str(text)], tmp_path / "a", **settings)
    fit_counts("infinigram", [str(more)], tmp_path / "b", **settings)
    arguments = ["join", *(str(tmp_path / name) for name in "ab"), "--out", str(tmp_path / "out")]
    assert run(arguments) == 0
    for name in ("index.safetensors", "ngram.safetensors", "weights.json", "tokenizer.json"):
        assert (tmp_path / "all" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()
    found = elman.load(tmp_path / "out").find("another mat")  # type: ignore[union-attr]
    assert {(place.file, place.line) for place in found.places} == {
        (str(more), line) for line in (1, 3, 5)
    }
    assert run(arguments) == 2  # there is a run
    assert run([*arguments[:2], "--out", str(tmp_path / "one")]) == 2  # nothing to join it to


def test_indexes_with_other_tokenizers_are_not_joined(
    handle: InfinigramHandle, tmp_path: Path
) -> None:
    other = tmp_path / "other.txt"
    other.write_text("other words\n", encoding="utf-8")
    fit_counts("infinigram", [str(other)], tmp_path / "other", tokenizer={"kind": "word"})
    both = [handle, elman.load(tmp_path / "other")]
    with pytest.raises(UsageError, match="different tokenizers"):
        list(join(both, tmp_path / "out"))  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()
