"""Fixtures of the tests of kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from elman.nn.kernels import planning, timing


@pytest.fixture
def nothing_timed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Plans as they are where timing finds no clear difference."""
    monkeypatch.setattr(timing, "fastest", lambda layer, candidates: next(iter(candidates)))
    planning._decide.cache_clear()
    yield
    planning._decide.cache_clear()
