from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from by_hand import as_ids
from safetensors import safe_open

from elman.base.errors import ElmanError
from elman.ngrams.backoff import BackoffModel
from elman.ngrams.counting import count
from elman.ngrams.smoothing import about, build, estimate
from elman.ngrams.storage import load, save, save_estimate
from elman.tasks.ngram.settings import NgramConfig

IDS = as_ids([[1, 2, 3], [1, 2, 4], [2, 3], [1, 2, 3, 2]])


def model(order: int = 3) -> BackoffModel:
    return build(count(IDS, order, vocab_size=6, boundary_id=0), NgramConfig(order=order))


@pytest.mark.parametrize("order", [1, 2, 4])
def test_a_model_comes_back_as_it_was(tmp_path: Path, order: int) -> None:
    saved = model(order)
    save(tmp_path / "m.safetensors", saved, {"tokenizer": "abc"})
    loaded, header = load(tmp_path / "m.safetensors")
    for name in ("contexts", "leaves", "words"):
        assert np.array_equal(getattr(loaded, name), getattr(saved, name))
    assert (loaded.level_starts, loaded.about) == (saved.level_starts, saved.about)
    assert header["tokenizer"] == "abc"
    assert np.array_equal(loaded.score(IDS), saved.score(IDS))


def test_writing_level_by_level_gives_the_same_file(tmp_path: Path) -> None:
    config = NgramConfig(order=3)
    trie, found = estimate(count(IDS, 3, vocab_size=6, boundary_id=0), config)
    save_estimate(tmp_path / "a", trie, found, about(config, found))
    save(tmp_path / "b", model(3))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_file_is_safetensors(tmp_path: Path) -> None:
    saved = model()
    save(tmp_path / "m.safetensors", saved)
    with safe_open(tmp_path / "m.safetensors", framework="numpy") as file:
        assert np.array_equal(file.get_tensor("contexts"), saved.contexts)
        assert json.loads(file.metadata()["elman"])["format"] == 1


@pytest.mark.parametrize("size", [0, 5, 100, -4])
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "m.safetensors"
    save(path, model())
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ElmanError, match="damaged"):
        load(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    with pytest.raises(ElmanError, match="does not exist"):
        load(path)
    path.write_bytes(b"x" * 1000)
    with pytest.raises(ElmanError, match="damaged"):
        load(path)


def test_arrays_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    wrong = model()
    wrong.level_starts = [0, 6, 7, len(wrong.words)]
    wrong.contexts, wrong.leaves = wrong.contexts[:8], np.zeros((len(wrong.words) - 7, 2), np.int32)
    save(path, wrong)
    with pytest.raises(ElmanError, match="belong together"):
        load(path)


def test_a_later_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.safetensors"
    with monkeypatch.context() as patch:
        patch.setattr("elman.ngrams.storage.FORMAT", 2)
        save(path, model())
    with pytest.raises(ElmanError, match="format 2"):
        load(path)


def test_whatever_is_damaged_is_a_sentence_or_another_number(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save(path, model(4))
    sound = path.read_bytes()
    rng = np.random.default_rng(0)
    told = 0
    for trial in range(600):
        bytes_ = np.frombuffer(sound, np.uint8).copy()
        # Half of them in the header, half in the arrays, whose highest bytes do the worst.
        size = int.from_bytes(sound[:8], "little") + 8
        low, high = (0, size) if trial % 4 == 0 else (size, len(sound))
        bytes_[rng.integers(low, high, 6)] = rng.integers(0, 256, 6)
        path.write_bytes(bytes_.tobytes())
        try:
            found, _ = load(path)
            found.score(IDS)
            found.trace(IDS)
            found.distributions(IDS[None, :-1])
            found.score_rows(IDS[None], IDS[None, ::-1], np.array([[-1]]))
            found.check()
        except ElmanError as error:
            told += "damaged" in error.message or "format" in error.message
    assert told > 300
