"""Measuring contextual word vectors."""

from __future__ import annotations

import pytest

from elman.base.errors import UsageError
from elman.bench.elmo import measure


def test_all_recipes_are_checked_before_the_first_is_measured() -> None:
    rows = measure(["elmo-tiny", "char-lstm"], [["a", "word"]], device="cpu", repeat=1)
    with pytest.raises(UsageError, match="char-lstm is not an ELMo recipe"):
        next(rows)
