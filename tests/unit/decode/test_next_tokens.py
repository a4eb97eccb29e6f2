from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from elman.decode.sample import next_tokens


def test_the_most_likely_tokens_with_their_probabilities(table_lm: Callable[..., Any]) -> None:
    model = table_lm()
    found = next_tokens(model, [1, 2], k=3, boundary_id=0)
    values, tokens = model.logprobs_VVV[1, 2].exp().topk(3)
    assert [token for token, _ in found] == tokens.tolist()
    assert [probability for _, probability in found] == pytest.approx(values.tolist(), rel=1e-6)


def test_all_of_them_add_up_to_one(table_lm: Callable[..., Any]) -> None:
    found = next_tokens(table_lm(), [], k=99, boundary_id=0)
    assert len(found) == 6
    assert sum(probability for _, probability in found) == pytest.approx(1.0)
