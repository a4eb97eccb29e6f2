"""C13: its rules on made-up rows, the probe, and the merged words."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from elman.lab.c13_layers import (
    EXPERIMENT,
    MEANING,
    PAIRS,
    SYNTAX,
    WITH,
    WITHOUT,
    occurrences,
    probed,
    write_marked,
)
from elman.lab.verdicts import answers, joint
from elman.lab.verses import unmarked


def rows(lift: float, syntax: float, meaning: float) -> list[dict[str, object]]:
    """Effects in points: of the tagger, of layer 1 over 2, and of layer 2 over 1."""
    probes = [
        {"kind": kind, "layer": layer, "accuracy": 0.7 + points / 100}
        for kind, layer, points in (
            *((SYNTAX, 1, syntax), (SYNTAX, 2, 0.0)),
            *((MEANING, 1, 0.0), (MEANING, 2, meaning)),
        )
    ]
    taggers = [{"tagger": WITHOUT, "share": 0.8}, {"tagger": WITH, "share": 0.8 + lift / 100}]
    return [{"seed": seed, **row} for seed in range(5) for row in (*probes, *taggers)]


def test_it_holds_and_fails_by_its_rules() -> None:
    assert joint(answers(EXPERIMENT, rows(1.0, 1.0, 1.0))) == "holds"
    assert joint(answers(EXPERIMENT, rows(0.0, 1.0, 1.0))) == "does not hold here"
    assert joint(answers(EXPERIMENT, rows(1.0, -1.0, 1.0))) == "does not hold here"
    assert joint(answers(EXPERIMENT, rows(1.0, 1.0, 0.1))) == "does not hold here"


def test_the_effects_are_in_points() -> None:
    effects = [finding.mean for finding in answers(EXPERIMENT, rows(3.0, 1.0, 2.0))]
    assert effects == pytest.approx([3.0, 1.0, 2.0])


def test_no_word_is_merged_twice() -> None:
    words = [word for pairs in PAIRS.values() for pair in pairs for word in pair]
    assert len(words) == len(set(words))


def test_the_probe_finds_a_direction_and_nothing_in_noise() -> None:
    torch.manual_seed(1)
    labels_N = torch.arange(400) % 2
    noise_ND = torch.randn(400, 8)
    assert abs(probed(noise_ND, labels_N) - 0.5) < 0.1
    noise_ND[:, 3] += 4.0 * labels_N
    assert probed(noise_ND, labels_N) > 0.95


def test_the_probe_knows_nothing_of_equal_vectors() -> None:
    assert probed(torch.ones(40, 4), torch.tensor([0] * 20 + [1] * 20)) < 0.7


def test_occurrences_are_where_the_word_stands_once() -> None:
    verses = [unmarked(line) for line in ("The king came.", "King of kings.", "The king, the king")]
    found = sorted(occurrences(random.Random(1), verses, "king", 9))
    assert found == [(("king", "of", "kings"), 0), (("the", "king", "came"), 1)]


def test_marked_verses_have_the_merged_words(tmp_path: Path) -> None:
    write_marked(tmp_path / "a.txt", [unmarked("He said, Go")], {"said": "housesaid"})
    assert (tmp_path / "a.txt").read_text() == "he\tplain\nhousesaid\tend\ngo\tplain\n"
