"""What `/v1/models` says about the runs of each task."""

from __future__ import annotations

from pathlib import Path

import pytest

import elman
from elman.serve.http.app import _about
from elman.serve.http.served import Served
from elman.serve.limits import Limits

SPECIMENS = Path(__file__).parents[2] / "runs" / "specimens"


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("captioner", (11, "word")),
        ("classifier", (None, None)),
        ("conditional", (7, "char")),
        ("elmo", (None, None)),
        ("lm", (25, "char")),
        ("ngram", (19, "word")),
        ("tagger", (None, None)),
        ("translator", (None, None)),
    ],
)
def test_vocabulary_size_and_tokenizer(task: str, expected: tuple[int | None, str | None]) -> None:
    served = Served(task, elman.load(SPECIMENS / f"format-1-{task}", device="cpu"), Limits())
    try:
        about = _about(served)
    finally:
        served.close()
    assert (about.vocab_size, about.tokenizer) == expected
