"""Lines as separate sequences of a language model."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elman.batches.batch import Batch
from elman.batches.encoded import EncodedText
from elman.batches.lines import LineBatches, Lines, lines_of, scoring_lines

END, BOUNDARY = 1, 0
texts = st.lists(st.lists(st.integers(2, 9), max_size=9), min_size=1, max_size=12)


def lines(rows: list[list[int]], *, last_ends: bool = True) -> Lines:
    ids = [token for row in rows for token in (*row, END)]
    ids = ids if last_ends else ids[:-1]
    return lines_of(EncodedText(np.array(ids, np.uint16), num_bytes=len(ids)), END)


def sequences(batches: list[Batch]) -> list[tuple[int, ...]]:
    """What rows predict, from one fresh batch to the next; inputs must be the targets before."""
    found: list[list[int]] = []
    rows: list[list[int]] = []
    for batch in batches:
        assert batch.mask_BT is not None
        if batch.fresh:
            found += rows
            rows = [[] for _ in range(batch.num_rows)]
        assert batch.num_rows == len(rows)
        for row, (tokens, targets, mask) in enumerate(
            zip(batch.tokens_BT, batch.targets_BT, batch.mask_BT, strict=True)
        ):
            for token, target in zip(tokens[mask].tolist(), targets[mask].tolist(), strict=True):
                assert token == (rows[row][-1] if rows[row] else BOUNDARY)
                rows[row].append(target)
    return [tuple(row) for row in found + rows if row]


@given(texts, st.integers(1, 4), st.integers(1, 10), st.booleans())
@settings(max_examples=60, deadline=None)
def test_an_epoch_has_each_line_once_from_a_fresh_state(
    rows: list[list[int]], batch_size: int, chunk_length: int, last_ends: bool
) -> None:
    if not last_ends and not rows[-1]:
        return
    text = lines(rows, last_ends=last_ends)
    expected = Counter(
        (*row, END) if last_ends or i < len(rows) - 1 else tuple(row) for i, row in enumerate(rows)
    )
    batches = LineBatches(
        text, boundary_id=BOUNDARY, batch_size=batch_size, chunk_length=chunk_length
    )
    for epoch in range(2):
        seen = []
        while batches.epoch == epoch:
            seen.append(next(batches))
        assert {batch.num_rows for batch in seen} == {batch_size}
        assert max(batch.tokens_BT.shape[1] for batch in seen) <= chunk_length
        assert Counter(sequences(seen)) == expected
        assert sum(batch.num_targets for batch in seen) == batches.tokens_per_epoch
    scored = list(scoring_lines(text, boundary_id=BOUNDARY, chunk_length=chunk_length))
    assert Counter(sequences(scored)) == expected


def test_a_stream_resumes_within_a_long_line() -> None:
    text = lines([[2] * 7, [3, 4], [5] * 6, [6], []])
    how = {"boundary_id": BOUNDARY, "batch_size": 2, "chunk_length": 3, "seed": 1}
    whole = LineBatches(text, **how)
    for cut in range(9):
        first, second = LineBatches(text, **how), LineBatches(text, **how)
        for _ in range(cut):
            next(first)
        second.load_state_dict(first.state_dict())
        for _ in range(5):
            a, b = next(first), next(second)
            assert a.fresh == b.fresh
            assert a.tokens_BT.tolist() == b.tokens_BT.tolist()
    assert next(whole).num_rows == 2
    other = LineBatches(text, **{**how, "chunk_length": 4})
    with pytest.raises(Exception, match="chunk_length was 3 and is now 4"):
        other.load_state_dict(whole.state_dict())
