"""The Python API refuses bytes and other types where it expects text, in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import elman
from elman import LM, UsageError

WRONG: list[Any] = [b"abc", bytearray(b"abc"), 3, 1.5, None]


@pytest.fixture(scope="module")
def lm(model: Path) -> LM:
    return elman.load(model, kind=LM)


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
@pytest.mark.parametrize("name", ["generate", "complete", "next", "surprisal", "logprob", "embed"])
def test_anything_but_text_is_refused(lm: LM, name: str, wrong: Any) -> None:
    use: Callable[[Any], object] = getattr(lm, name)
    with pytest.raises(UsageError, match="must be a str, not") as caught:
        use(wrong)
    assert caught.value.hint


@pytest.mark.parametrize("wrong", [*WRONG, [b"abc"]], ids=repr)
def test_anything_but_paths_is_refused(lm: LM, wrong: Any) -> None:
    with pytest.raises(UsageError, match="a path must be a str or a Path, not"):
        lm.evaluate(wrong)


@pytest.mark.parametrize("empty", [[], iter([]), iter(())], ids=["list", "texts", "tuple"])
def test_no_data_does_not_mean_the_built_in_corpus(empty: Any) -> None:
    """Such as a pattern that matches no file, or a filter that leaves nothing."""
    with pytest.raises(UsageError, match="the data is empty"):
        elman.train_lm(empty, steps=1)


def test_misspelt_keywords_of_training() -> None:
    for wrong, right in (("minuts", "minutes"), ("hiden_size", "model.hidden_size")):
        with pytest.raises(UsageError, match=wrong) as caught:
            elman.train_lm("python-docs", **{wrong: 1})
        assert caught.value.hint == f"did you mean '{right}'?"


@pytest.mark.parametrize("k", [0, "3", 1.5, None])
def test_a_number_of_words_is_whole(lm: LM, k: Any) -> None:
    with pytest.raises(UsageError, match="k cannot be"):
        lm.next("the", k=k)


def test_ids_are_checked(lm: LM) -> None:
    ids: Any = lm.tokenizer.encode("the")
    options = {"max_tokens": 3, "seed": 1}
    assert lm.complete(ids, **options) == lm.complete(ids.tolist(), **options)
    assert lm.complete(ids, **options)[0].text == lm.generate("the", **options)
    for wrong in ([0.5], ["a"], [-1], [lm.tokenizer.vocab_size], np.array([1.0])):
        with pytest.raises(UsageError, match="ids must be"):
            lm.complete(wrong, **options)  # type: ignore[arg-type]


def test_lines_must_be_text(lm: LM) -> None:
    lines: Any = [b"the"]
    with pytest.raises(UsageError, match="must be a str, not bytes"):
        lm.surprisal(lines)
