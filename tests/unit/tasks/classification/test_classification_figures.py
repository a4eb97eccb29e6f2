"""Figures of a classifier, worked by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

import elman
from elman.base.errors import ElmanError
from elman.tasks.classification.evaluation import evaluate_classifier, judge
from elman.tasks.classification.pictures import draw_evaluations

SPECIMENS = Path(__file__).parents[2] / "runs" / "specimens"


def test_figures_by_hand() -> None:
    #            ham: 3 of 4 found; spam: 1 of 2 found
    expected = ["ham", "ham", "ham", "ham", "spam", "spam"]
    found_ = ["ham", "ham", "ham", "spam", "spam", "ham"]
    found = judge(expected, found_, known=("ham", "spam"))
    assert found.accuracy == pytest.approx(4 / 6)
    assert found.balanced_accuracy == pytest.approx((3 / 4 + 1 / 2) / 2)
    assert found.f1 == pytest.approx(1 / 2)  # spam is the rarer: 1 right, 2 found, 2 there
    assert found.macro_f1 == pytest.approx((1 / 2 + 2 * 3 / 8) / 2)
    assert found.confusion == {"ham": {"ham": 3, "spam": 1}, "spam": {"ham": 1, "spam": 1}}
    assert found.labels["ham"].precision == pytest.approx(3 / 4)
    assert found.texts == 6


def test_labels_that_training_never_had_are_mistakes() -> None:
    found = judge(["a", "b", "z"], ["a", "b", "a"], known=("a", "b"))
    assert found.unknown_labels == 1
    assert found.accuracy == pytest.approx(2 / 3)
    assert found.balanced_accuracy == pytest.approx(2 / 3)
    assert found.f1 is None


def test_a_label_that_is_only_guessed_does_not_count_in_balanced_accuracy() -> None:
    found = judge(["a", "a"], ["a", "b"], known=("a", "b"))
    assert found.balanced_accuracy == pytest.approx(1 / 2)


def test_nothing_to_evaluate_is_a_sentence() -> None:
    with pytest.raises(ElmanError, match="nothing to evaluate"):
        evaluate_classifier(None, None, [])  # type: ignore[arg-type]


def test_other_labels_than_the_models_are_refused(tmp_path: Path) -> None:
    classifier = elman.load(SPECIMENS / "format-1-classifier", device="cpu")
    path = tmp_path / "a.tsv"
    path.write_text("negative\tdull\npositive\twell made\n")
    with pytest.raises(ElmanError, match="classifier knows none of the labels there") as caught:
        classifier.evaluate(path)
    assert "name files labelled as those it was trained on: bad, good" in caught.value.hint
    path.write_text("negative\tdull\ngood\twell made\n")
    assert classifier.evaluate(path).unknown_labels == 1


def test_the_picture_is_drawn(tmp_path) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("matplotlib")
    path = tmp_path / "confusion.png"
    found = judge(["ham"] * 4 + ["spam"], ["ham"] * 3 + ["spam"] * 2)
    draw_evaluations({"run": found}, path)
    assert path.read_bytes().startswith(b"\x89PNG")
