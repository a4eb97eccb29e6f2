"""Figures of a tagger, worked by hand as conlleval works them."""

from __future__ import annotations

import pytest
import torch

from elman.base.errors import ElmanError
from elman.evaluate.labels import label_figures
from elman.tasks.tagging.batches import encode_tagged
from elman.tasks.tagging.evaluation import (
    entity_figures,
    evaluate_tagger,
    marginals,
    predict,
)
from elman.tasks.tagging.model import TaggerConfig
from elman.tasks.tagging.vocabulary import make_vocabulary

TRUE = [
    ["B-PER", "I-PER", "O", "B-LOC", "O"],
    ["B-ORG", "O", "B-PER"],
    ["O", "O"],
    ["B-LOC", "I-LOC"],
]
FOUND = [
    ["B-PER", "I-PER", "O", "B-ORG", "O"],  # the place is called an organisation
    ["B-ORG", "O", "O"],  # the person is missed
    ["B-PER", "O"],  # nobody is there
    ["B-LOC", "B-LOC"],  # one place cut in two: both wrong
]


def test_entities_are_counted_as_conlleval_counts_them() -> None:
    overall, by_type = entity_figures(TRUE, FOUND)
    # 5 entities are there, 6 were found, 2 of them right.
    assert overall.precision == pytest.approx(2 / 6)
    assert overall.recall == pytest.approx(2 / 5)
    assert overall.f1 == pytest.approx(2 * (2 / 6) * (2 / 5) / (2 / 6 + 2 / 5))
    assert by_type["PER"].precision == pytest.approx(1 / 2)
    assert by_type["PER"].recall == pytest.approx(1 / 2)
    assert by_type["LOC"].f1 == 0
    assert by_type["ORG"].precision == pytest.approx(1 / 2)
    assert by_type["ORG"].recall == 1
    assert {kind: figures.count for kind, figures in by_type.items()} == {
        "LOC": 2,
        "ORG": 1,
        "PER": 2,
    }


def test_nothing_there_and_nothing_found_is_no_division_by_zero() -> None:
    overall, by_type = entity_figures([["O"]], [["O"]])
    assert overall.f1 == 0
    assert by_type == {}


def test_labels_are_counted_word_for_word() -> None:
    by_label = label_figures(["A", "B", "A"], ["A", "A", "C"])
    assert by_label["A"].precision == by_label["A"].recall == pytest.approx(1 / 2)
    assert (by_label["B"].recall, by_label["C"].precision) == (0, 0)


ROWS = [
    (["one", "two", "three"], ["X", "Y", "X"]),
    (["two"], ["Y"]),
    (["three", "three"], ["X", "X"]),
]


def tiny(output: str = "softmax") -> tuple[torch.nn.Module, object]:
    vocabulary, counts = make_vocabulary(ROWS)
    torch.manual_seed(0)
    config = TaggerConfig(hidden_size=6, embedding_size=5, character_size=4, output=output)  # type: ignore[arg-type]
    return config.build(vocabulary.vocab_size, 2, counts_V=torch.tensor(counts)), vocabulary


def test_unknown_words_tags_and_empty_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    model, vocabulary = tiny()
    rows = [
        (["one", "ten"], ["X", "Z"]),  # a word and a tag that training never had
        ([], []),
        (["two", "two"], [None, "Y"]),  # a word whose tag nobody knows
    ]
    found = evaluate_tagger(model, vocabulary, rows)  # type: ignore[arg-type]
    assert (found.tokens, found.sentences) == (3, 3)
    assert found.unknown_words == 1
    assert found.unknown_tags == 1
    assert found.unknown_accuracy == 0
    assert found.f1 is None
    with pytest.raises(ElmanError, match="no word has a tag"):
        evaluate_tagger(model, vocabulary, [(["one"], [None])])  # type: ignore[arg-type]


def test_order_and_company_do_not_matter() -> None:
    model, vocabulary = tiny("crf")
    sentences = [words for words, _ in ROWS] + [[]] + [["ten"] * 7]
    rows = [(words, [None] * len(words)) for words in sentences]
    together = predict(model, encode_tagged(rows, vocabulary))  # type: ignore[arg-type]
    shares = marginals(model, encode_tagged(rows, vocabulary))  # type: ignore[arg-type]
    assert [len(labels) for labels in together] == [3, 1, 2, 0, 7]
    for row, labels, share in zip(rows, together, shares, strict=True):
        (alone,) = predict(model, encode_tagged([row], vocabulary))  # type: ignore[arg-type]
        assert alone.tolist() == labels.tolist()
        if len(labels):
            torch.testing.assert_close(
                torch.as_tensor(share).sum(1), torch.ones(len(labels)), rtol=1e-5, atol=1e-5
            )


def test_a_sentence_of_ten_thousand_words_is_tagged() -> None:
    model, vocabulary = tiny("crf")
    words = ["one", "two"] * 5000
    (labels,) = predict(model, encode_tagged([(words, [None] * 10_000)], vocabulary))  # type: ignore[arg-type]
    assert len(labels) == 10_000


def test_entities_are_compared_in_the_scheme_of_the_training_file() -> None:
    vocabulary, _ = make_vocabulary([(["a", "b", "c"], ["I-X", "I-X", "O"])])
    assert vocabulary.scheme == "iob1"
    assert vocabulary.labels == ("B-X", "E-X", "O")
    assert vocabulary.to_labels(["B-X", "I-X", "O"]) == ["B-X", "E-X", "O"]
    assert vocabulary.to_tags(["B-X", "E-X", "O"]) == ["I-X", "I-X", "O"]
