"""How much memory a served model may take to read a text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from elman.serve.http.served import PAIR_BYTES, WIDTH_BYTES, Served
from elman.serve.limits import Limits
from elman.tasks.elmo.model import ElmoConfig
from tiny_models import TINY


def reading_bytes(model: Any) -> int:
    """For a text of ten words."""
    served = Served("a", SimpleNamespace(model=model, task=None), Limits())
    return served.reading_bytes("word " * 10)


@pytest.mark.parametrize("shared", [True, False])
def test_words_that_elmo_can_predict_take_no_memory_to_read_a_text(shared: bool) -> None:
    config = ElmoConfig(num_layers=1, hidden_size=12, shared_softmax=shared)
    without = reading_bytes(config.build())
    assert without > 0
    assert reading_bytes(config.build(20_000)) == without


def test_vocabularies_of_a_translator_take_no_memory_to_read_a_text() -> None:
    config = TINY["attention additive"]
    few, many = (reading_bytes(config.build(size, size)) for size in (10, 20_000))
    assert few == many > 10 * 12 * WIDTH_BYTES + 100 * PAIR_BYTES
