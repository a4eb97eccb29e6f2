"""C6: its rules on made-up shares, and the text."""

from __future__ import annotations

import pytest

from elman.lab.c06_sharing import EXPERIMENT, GROUPS, MODELS, THINGS, sentences
from elman.lab.verdicts import answers, joint


def rows(**shares: float) -> list[dict[str, object]]:
    found = dict.fromkeys(MODELS, 0.97) | {"n-gram": 0.5}
    found |= {name.replace("_", "-"): share for name, share in shares.items()}
    return [
        {"seed": seed, "model": model, "share": share + off}
        for seed in range(5)
        for model, share in found.items()
        for off in (-0.02, 0.02)
    ]


def test_it_holds_and_fails_by_its_rules() -> None:
    assert joint(answers(EXPERIMENT, rows())) == "holds"
    assert joint(answers(EXPERIMENT, rows(n_gram=0.8))) == "does not hold here"
    for model in ("window", "rnn", "lstm"):
        assert joint(answers(EXPERIMENT, rows(**{model: 0.6}))) == "does not hold here"


def test_the_share_is_a_mean_over_prefixes() -> None:
    assert answers(EXPERIMENT, rows(rnn=0.7))[2].mean == pytest.approx(0.7)


def test_new_words_open_nothing_and_groups_are_as_frequent() -> None:
    lines, new = sentences(1, 1.0, 2000)
    for group, words in new.items():
        for word in words:
            own = [line for line in lines if word in line.split()]
            assert own
            assert not any("their" in line for line in own)
        assert any(f"opened their {THINGS[group]['opened']}" in line for line in lines)
    assert set(new) == set(GROUPS)


def test_without_telling_contexts_new_words_occur_in_neutral_ones() -> None:
    lines, new = sentences(1, 0.0, 400)
    word = new["cooks"][0]
    assert {line.replace(word, "{}") for line in lines if word in line.split()} <= {
        "the {} are here", "we saw the {} today", "where are the {} now"
    }  # fmt: skip
