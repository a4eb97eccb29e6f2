from __future__ import annotations

import numpy as np
import pytest
from by_hand import as_ids

from elman.base.errors import UsageError
from elman.ngrams.backoff import BackoffModel
from elman.ngrams.counting import count
from elman.ngrams.smoothing import build
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
