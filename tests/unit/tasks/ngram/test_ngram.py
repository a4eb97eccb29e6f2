from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from elman import testing
from elman.base.errors import ElmanError
from elman.models.interface import LanguageModel
from elman.models.mixture import Mixture
from elman.ngrams.arpa_files import open_arpa, save_arpa
from elman.ngrams.backoff import BackoffModel
from elman.ngrams.counting import count
from elman.ngrams.smoothing import SMOOTHINGS, build
from elman.ngrams.storage import MODEL_FILE, load, save
from elman.tasks.counted_model import CountedLM
from elman.tasks.ngram.settings import NgramConfig
from elman.tokens import pretokenized
from elman.tokens.tokenizer import Tokenizer
from tiny_models import TINY

V = testing.VOCAB_SIZE
NgramLM = CountedLM[BackoffModel]


def ngram(order: int = 3, smoothing: str = "kneser-ney") -> NgramLM:
    rng = np.random.default_rng(0)
    ids = np.minimum(rng.zipf(1.2, 4_000) - 1, V - 1)
    trie = count(ids, order, vocab_size=V, boundary_id=2)
    return NgramLM(build(trie, NgramConfig(order=order, smoothing=smoothing)))  # type: ignore[arg-type]


# Maximum likelihood has zeros, stupid backoff has no distributions, and add-delta tells nothing
# apart after long contexts.
CASES = [(1, "kneser-ney"), (2, "kneser-ney"), (2, "add-delta")] + [
    (4, name)
    for name in sorted(set(SMOOTHINGS) - {"stupid-backoff", "maximum-likelihood", "add-delta"})
]


@pytest.fixture(params=CASES)
def model(request: pytest.FixtureRequest) -> NgramLM:
    return ngram(*request.param)


def test_the_contract_of_every_language_model(model: NgramLM) -> None:
    assert isinstance(model, LanguageModel)
    for check in testing.CONTRACT:
        check(model)


def test_mixes_with_a_network() -> None:
    network = testing.build(TINY["lstm"])
    mixture = Mixture([network, ngram()], [0.6, 0.4])
    testing.check_shapes(mixture)
    testing.check_stepwise_equals_whole(mixture)
    tokens_BT = testing.some_tokens(2, 6)
    with torch.no_grad():
        parts = [testing.whole(part, tokens_BT).exp() for part in mixture.models]
        mixed = testing.whole(mixture, tokens_BT).exp()
    torch.testing.assert_close(mixed, 0.6 * parts[0] + 0.4 * parts[1])


def test_targets_need_not_be_the_next_tokens() -> None:
    model = ngram()
    tokens_BT = testing.some_tokens(3, 6)
    targets_BT = testing.some_tokens(3, 6, seed=5)
    found, _ = model.logprobs(tokens_BT, targets_BT, model.initial_state(3))
    state = model.initial_state(3)
    for time in range(6):
        logprobs_BV, state = model.step(tokens_BT[:, time], state)
        expected = logprobs_BV.gather(1, targets_BT[:, time : time + 1])[:, 0]
        torch.testing.assert_close(found[:, time], expected, rtol=1e-4, atol=1e-5)


def test_a_boundary_hides_what_came_before() -> None:
    model = ngram(order=4)
    first, _ = model.step(torch.tensor([2]), model.initial_state(1))
    _, state = model.logprobs(
        torch.tensor([[5, 1, 0]]), torch.tensor([[1, 0, 2]]), model.initial_state(1)
    )
    later, _ = model.step(torch.tensor([2]), state)
    torch.testing.assert_close(first, later)


def test_scoring_no_tokens() -> None:
    model = ngram()
    nothing = torch.empty((2, 0), dtype=torch.long)
    logprobs_BT, state = model.logprobs(nothing, nothing, model.initial_state(2))
    assert logprobs_BT.shape == (2, 0)
    assert state.batch_size == 2


def test_saved_and_opened(tmp_path: Path) -> None:
    saved = ngram()
    save(tmp_path / MODEL_FILE, saved.counts, {"tokenizer": "abc"})
    ngrams, header = load(tmp_path / MODEL_FILE)
    opened = NgramLM(ngrams)
    tokens_BT = testing.some_tokens(2, 9)
    assert torch.equal(testing.whole(opened, tokens_BT), testing.whole(saved, tokens_BT))
    assert header["tokenizer"] == "abc"
    with pytest.raises(ElmanError, match="does not exist"):
        load(tmp_path / "elsewhere" / MODEL_FILE)


def test_an_arpa_file_is_a_model_with_a_tokenizer(tmp_path: Path) -> None:
    lines = ["the cat sat", "the dog sat", "a cat saw the dog"]
    words = sorted({word for line in lines for word in line.split()})
    vocab = ["<eos>", "<unk>", *words]
    ids = np.array([vocab.index(w) for line in lines for w in [*line.split(), "<eos>"]])
    written = build(count(ids, 3, vocab_size=len(vocab), boundary_id=0), NgramConfig(order=3))
    saved = Tokenizer(pretokenized.build(words))
    save_arpa(tmp_path / "m.arpa.gz", written, saved)
    model, tokenizer = open_arpa(tmp_path / "m.arpa.gz")
    assert model.about["notes"] == []
    assert tokenizer.spellings() == vocab
    text = "the cat saw a bird\n"
    tokens = torch.tensor([[tokenizer.boundary_id, *tokenizer.encode(text).tolist()]])
    expected = written.score(
        np.array([vocab.index(w) for w in ["the", "cat", "saw", "a", "<unk>", "<eos>"]])
    )
    assert testing.whole(NgramLM(model), tokens)[0].numpy() == pytest.approx(expected, abs=1e-5)


def test_a_large_arpa_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elman.ngrams.arpa_files.LARGE", 0)
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "m.arpa"
    words = [f"w{i}" for i in range(V - 2)]
    rng = np.random.default_rng(0)
    ids = rng.integers(0, V, 500)
    written = build(count(ids, 2, vocab_size=V, boundary_id=0), NgramConfig(order=2))
    save_arpa(path, written, Tokenizer(pretokenized.build(words)))
    first, tokenizer = open_arpa(path)
    with monkeypatch.context() as patch:
        patch.setattr("elman.ngrams.arpa_files.read_arpa", None)
        again, same = open_arpa(path)
    assert np.array_equal(again.score(ids), first.score(ids))
    assert (same.hash, again.about["notes"]) == (tokenizer.hash, [])
    kept = next((tmp_path / "cache").rglob("tokenizer.json"))
    for wrong in (kept.read_bytes().replace(b"w5", b"v5"), b"nothing"):  # it is read again
        kept.write_bytes(wrong)
        assert open_arpa(path)[1].hash == tokenizer.hash
    path.write_text(path.read_text() + "\n")  # another file now
    with monkeypatch.context() as patch:
        patch.setattr("elman.ngrams.arpa_files.read_arpa", None)
        with pytest.raises(TypeError):
            open_arpa(path)
    with pytest.raises(ElmanError, match="does not exist"):
        open_arpa(tmp_path / "other.arpa")
