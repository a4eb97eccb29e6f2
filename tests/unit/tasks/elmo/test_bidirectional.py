"""Sentences for bidirectional models: where they begin, what a batch holds, an epoch, resuming."""

from __future__ import annotations

import numpy as np
import pytest

from elman.base.errors import ElmanError
from elman.batches.encoded import EncodedText
from elman.tasks.elmo.batches import BidirectionalBatch, SentenceWindows, Spellings, sentences

BOUNDARY, UNKNOWN = 0, 1
# Two marks, then ids 0 to 6: the row of an id is told by its first symbol.
TABLE = np.array(
    [[90 + row, 91, 91, 7, 7, 7] if row != 8 else [98, 91, 91, 91, 7, 7] for row in range(9)],
    np.int16,
)
SPELLINGS = Spellings(
    table_VC=TABLE,
    lengths_V=(TABLE != 7).sum(1),
    margin=1,
    num_targets=5,
    boundary_id=BOUNDARY,
    unknown_id=UNKNOWN,
)


def words(batch: BidirectionalBatch) -> list[list[int]]:
    """The ids of the words, found by way of their spellings."""
    rows_BX = batch.characters_UC[batch.places_BX][:, :, 0] - 90
    assert (rows_BX[:, 0] == 0).all()
    assert (rows_BX[:, -1] == 1).all()
    return (rows_BX[:, 1:-1] - 2).tolist()


def text(*lines: list[int]) -> EncodedText:
    ids = np.concatenate([np.array([*line, BOUNDARY]) for line in lines])
    return EncodedText(ids, num_bytes=len(ids))


def test_sentences_begin_after_boundaries() -> None:
    ids = np.array([2, 3, 0, 0, 4, 0, 5, 6, 5, 6, 5])
    starts, lengths = sentences(ids, 0, 10)
    assert (starts.tolist(), lengths.tolist()) == ([0, 4, 6], [2, 1, 5])
    starts, lengths = sentences(ids, 0, 2)  # long ones are cut
    assert (starts.tolist(), lengths.tolist()) == ([0, 4, 6, 8, 10], [2, 1, 2, 2, 1])


def test_a_batch_has_each_type_once_and_rare_words_are_unknown_targets() -> None:
    batch = SPELLINGS.batch(np.array([[2, 3, 2], [5, 3, 4]]))
    assert words(batch) == [[2, 3, 2], [5, 3, 4]]
    assert batch.targets_BX.tolist() == [[0, 2, 3, 2, 0], [0, UNKNOWN, 3, 4, 0]]
    assert batch.characters_UC.shape == (6, 4)  # two marks, four types; one column of padding
    assert SPELLINGS.batch(np.array([[6]])).characters_UC.shape[1] == 5  # a longer word
    assert (batch.num_rows, batch.num_tokens, batch.num_targets) == (2, 8, 16)
    assert words(batch.rows(slice(1, 2))) == [[5, 3, 4]]


@pytest.mark.parametrize("window_tokens", [1000, 7])
def test_an_epoch_has_every_sentence_once(window_tokens: int) -> None:
    lines = [[2 + (i + j) % 5 for j in range(1 + i % 4)] for i in range(23)]
    stream = SentenceWindows(
        text(*lines), SPELLINGS, batch_size=3, longest=10, seed=1, window_tokens=window_tokens
    )
    orders = []
    for epoch in range(2):
        seen = []
        while stream.epoch == epoch:
            seen.extend(words(next(stream)))
        assert sorted(seen) == sorted(lines)
        orders.append(seen)
    assert orders[0] != orders[1]


def test_going_on_from_the_middle() -> None:
    lines = [[2 + (i + j) % 5 for j in range(1 + i % 4)] for i in range(23)]
    settings = {"batch_size": 2, "longest": 3, "seed": 4, "window_tokens": 20}

    def make(**other: int) -> SentenceWindows:
        return SentenceWindows(text(*lines), SPELLINGS, **settings | other)

    whole = make()
    for _ in range(9):
        next(whole)
    state = whole.state_dict()
    again = make()
    again.load_state_dict(state)
    for _ in range(12):
        assert words(next(again)) == words(next(whole))
    with pytest.raises(ElmanError, match="longest was 3"):
        make(longest=4).load_state_dict(state)
