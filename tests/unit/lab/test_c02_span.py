"""C2: its rules on made-up rows; spans and sentences by hand."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elman.lab.c02_span import (
    CONTEXTS,
    EXPERIMENT,
    NOUNS,
    VOCABULARY,
    batch,
    distance,
    recalled,
    sentence,
    span,
)
from elman.lab.verdicts import answers, joint
from elman.models.recurrent import RecurrentLMConfig


def excesses(cell: str, wanted: float) -> list[dict]:
    """Rows whose loss passes 1 % at a context, over log k."""
    return [
        {"cell": cell, "context": k, "excess": 0.01 * (wanted / k) ** 1.0 if k < wanted else 0.0}
        for k in CONTEXTS
    ]


def rows(*, rnn: float = 7.9, lstm: float = 100.0, recall: float = 1.0) -> list[dict]:
    made = []
    for seed in range(5):
        own = [*excesses("rnn", rnn), *excesses("lstm", lstm)]
        for model, share in (("rnn", 0.25), ("lstm", recall)):
            about = {"model": model, "distance": 35}
            own += [about | {"update": 100, "recalled": 0.2}]
            own += [about | {"update": 800, "recalled": share}]
            own += [{"model": model, "distance": 5, "update": 800, "recalled": 1.0}]
        made += [{"seed": seed, **row} for row in own]
    return made


def test_it_holds_and_fails_by_its_rules() -> None:
    assert joint(answers(EXPERIMENT, rows())) == "holds"
    for changed in ({"rnn": 100.0}, {"lstm": 8.0}, {"recall": 0.3}):
        assert joint(answers(EXPERIMENT, rows(**changed))) == "does not hold here", changed


def test_the_span_lies_between_contexts() -> None:
    made = [
        {"cell": "rnn", "context": k, "excess": e} for k, e in ((1, 0.5), (4, 0.03), (16, -0.01))
    ]
    assert span(made, "rnn") == pytest.approx(8.0)  # half way over log k
    assert span(made[:2], "rnn") == 4.0  # at least
    assert span(made[2:], "rnn") == 16.0  # at most


def test_a_context_that_is_good_by_chance_does_not_end_the_span() -> None:
    found = ((1, 0.5), (2, 0.0), (4, 0.03), (8, 0.0))
    made = [{"cell": "rnn", "context": k, "excess": e} for k, e in found]
    assert 4.0 < span(made, "rnn") < 8.0


def test_the_sentence_is_the_lectures() -> None:
    words = sentence(random.Random(1), "tickets", 4)
    assert words[6] == "tickets"  # on the 7th step
    assert words[-4:] == ["finally", "printed", "her", "tickets"]
    assert [distance(parts) for parts in range(5)] == [5, 14, 24, 28, 35]


@given(st.integers(0, 2**32), st.sampled_from(NOUNS), st.integers(0, 4))
def test_sentences_have_two_of_their_noun_and_a_length(seed: int, noun: str, parts: int) -> None:
    words = sentence(random.Random(seed), noun, parts)
    assert [place for place, word in enumerate(words) if word in NOUNS] == [6, len(words) - 1]
    assert len(words) == 7 + distance(parts)
    assert set(words) <= set(VOCABULARY)


def test_a_model_without_memory_recalls_by_chance() -> None:
    model = RecurrentLMConfig(hidden_size=4, embedding_size=4).build(len(VOCABULARY))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    tokens_BT = batch(random.Random(1), 40, 1)
    assert recalled(model, tokens_BT) == pytest.approx(
        float((tokens_BT[:, -1] == VOCABULARY.index(NOUNS[0])).float().mean())
    )
