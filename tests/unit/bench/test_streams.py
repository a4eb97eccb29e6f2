"""`elman bench streams`: both sides make all tokens of all streams."""

from __future__ import annotations

from elman.bench.sizes import Size
from elman.bench.streams import measure


def test_rows_for_each_number_of_streams() -> None:
    rows = list(
        measure([Size(8, 1, 4)], [1, 3], num_tokens=4, prompt_length=3, repeat=1, device="cpu")
    )
    assert [(row.name, row.settings["batch_size"], row.unit) for row in rows] == [
        ("streams", 1, "tokens/s"),
        ("streams, first token", 1, "ms"),
        ("streams", 3, "tokens/s"),
        ("streams, first token", 3, "ms"),
    ]
    for row in rows:
        assert row.ours > 0
        assert row.peer is not None
        assert row.peer > 0
    # The first token comes before the last of all.
    tokens, first = rows[2], rows[3]
    assert first.ours < 1000 * 3 * 4 / tokens.ours
