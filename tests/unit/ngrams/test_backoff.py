from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from by_hand import as_ids

from elman.base.errors import UsageError
from elman.ngrams import model as models
from elman.ngrams.backoff import BackoffModel
from elman.ngrams.compact import save_compact
from elman.ngrams.counting import count
from elman.ngrams.model import NgramModel
from elman.ngrams.smoothing import build
from elman.ngrams.storage import open_model
from elman.ngrams.trie import Room
from elman.tasks.ngram.settings import NgramConfig

LINES = [[1, 2, 3], [1, 2, 4], [2, 3], [1, 2, 3, 2]]


@pytest.fixture
def model() -> BackoffModel:
    return build(count(as_ids(LINES), 3, vocab_size=6, boundary_id=0), NgramConfig(order=3))


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64])
@pytest.mark.parametrize("stretch", [7, 1000])
def test_the_type_of_the_ids_and_the_cuts_between_threads_change_nothing(
    model: BackoffModel, dtype: type, stretch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = as_ids(LINES * 10)
    tokens = np.concatenate([[0], ids[:-1]])
    (expected,) = model.score_rows(tokens[None], ids[None], np.array([[-1]]))
    monkeypatch.setattr(Room, "piece", stretch)
    assert np.array_equal(model.score(ids.astype(dtype), num_threads=2), expected)


@pytest.mark.parametrize("order", [1, 2, 4])
@pytest.mark.parametrize("prune", [(), (0, 1)])
@pytest.mark.parametrize("layout", ["plain", "compact"])
def test_lanes_score_what_one_context_after_the_other_does(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    order: int,
    prune: tuple[int, ...],
    layout: str,
) -> None:
    rng = np.random.default_rng(0)
    counted, ids = np.minimum(rng.geometric(0.1, size=(2, 4000)) - 1, 59)
    settings = NgramConfig(order=order, prune=prune[:order])
    model: NgramModel = build(count(counted, order, vocab_size=60, boundary_id=0), settings)
    if layout == "compact":
        save_compact(tmp_path / "model", model.plain())
        model = open_model(tmp_path / "model")[0]
    before = np.concatenate([np.full(order - 1, -1), [0], ids])
    contexts = np.lib.stride_tricks.sliding_window_view(before, order)[:-1]
    # A second target that is not the next token keeps it from being read as running text.
    tokens, targets = np.stack([contexts[:, -1], 1 - (ids == 1)]), np.stack([ids, ids])
    expected = model.score_rows(tokens.T, targets.T, contexts[:, :-1])[:, 0]
    monkeypatch.setattr(models, "_LEAST_LANE", 16)
    assert np.array_equal(model.score(ids, num_threads=1), expected)


def test_a_token_outside_the_vocabulary_is_refused(model: BackoffModel) -> None:
    good, bad = np.array([[1, 2]]), np.array([[1, 6]])
    start = np.array([[-1]])
    for attempt in (
        lambda: model.score(bad[0]),
        lambda: model.score(-good[0]),
        lambda: model.score_rows(bad, good, start),
        lambda: model.score_rows(good, bad, start),
        lambda: model.distributions(bad),
        lambda: model.after(bad),
        lambda: model.trace(bad[0]),
    ):
        with pytest.raises(UsageError, match="not in the model's vocabulary"):
            attempt()


def test_the_trace_names_every_ngram_and_context_on_the_way(model: BackoffModel) -> None:
    ngrams, contexts = model.trace(np.array([1, 2, 5, 0]))
    words = model.words
    assert words[ngrams[1]].tolist() == [2, 2, 2], "2, 1 2 and <eos> 1 2"
    assert contexts[1, 1] == 1
    assert words[contexts[1, 2]] == 1
    assert ngrams[2].tolist()[1:] == [-1, -1], "5 was never seen"
    assert contexts[3].tolist()[1:] == [-1, -1], "nor anything after it"
