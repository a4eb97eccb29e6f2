"""What /v1/models tells about a model, and models that take a label."""

from __future__ import annotations

from pathlib import Path

import pytest

import elman
from elman.serve.http.errors import ApiError
from elman.serve.http.model_card import model_card
from elman.serve.http.served import Served
from elman.serve.limits import Limits

SPECIMENS = Path(__file__).parents[2] / "runs" / "specimens"


def test_a_card_has_kind_size_text_and_figures() -> None:
    card = model_card(elman.load(SPECIMENS / "format-1-lm", device="cpu"))
    assert card.what == "a language model"
    assert (card.settings["cell"], card.settings["hidden_size"]) == ("lstm", 8)
    assert card.trained_on == ["toy.txt"]
    assert card.figures["perplexity"] == pytest.approx(9.774, abs=1e-3)
    assert card.parameters
    counts = model_card(elman.load(SPECIMENS / "format-1-ngram"))
    assert (counts.settings["order"], counts.parameters) == (3, None)


def test_a_card_tells_no_paths(tmp_path: Path) -> None:
    lm = elman.load(SPECIMENS / "format-1-lm", device="cpu")
    object.__setattr__(lm.runs[0].config.data, "train", (str(tmp_path / "mine.txt"),))
    assert model_card(lm).trained_on == ["mine.txt"]


@pytest.mark.parametrize(
    ("specimen", "labels"),
    [
        ("format-1-classifier", ["bad", "good"]),
        ("format-1-tagger", ["ADJ", "DET", "NOUN", "PUNCT", "VERB"]),
        ("format-1-tagger-crf", ["B-LOC", "B-PER", "I-LOC", "I-PER", "O"]),
        ("format-1-conditional", ["Lower", "Upper"]),
        ("format-1-lm", []),
        ("format-1-translator", []),
    ],
)
def test_a_card_has_the_labels_that_a_model_gives_or_takes(
    specimen: str, labels: list[str]
) -> None:
    assert model_card(elman.load(SPECIMENS / specimen, device="cpu")).labels == labels


def test_the_source_of_a_translator_comes_before_the_target() -> None:
    translator = elman.load(SPECIMENS / "format-1-translator", device="cpu")
    object.__setattr__(translator.run.config.data, "train", ("train.en", "train.de"))
    assert model_card(translator).trained_on == ["train.en", "train.de"]


def test_every_task_has_a_card() -> None:
    for path in sorted(SPECIMENS.glob("format-1-*")):
        if path.name.endswith(("foreign", "resume")):
            continue
        assert model_card(elman.load(path, device="cpu")).what.startswith("a")


def test_the_model_of_a_label() -> None:
    handle = elman.load(SPECIMENS / "format-1-conditional", device="cpu")
    served = Served("names", handle, Limits())
    try:
        assert served.labels == ["Lower", "Upper"]
        assert {"complete", "next", "score"} <= set(served.abilities)
        assert served.given("Upper") is served.given("Upper")
        assert served.given("Upper").name == "names"
        assert served.given("Upper").engine is not None
        with pytest.raises(ApiError, match="takes a label: Lower, Upper"):
            served.given(None)
    finally:
        served.close()
