"""What the units of a layer compute, and the places of a text that they treat alike."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from elman import testing
from elman.evaluate.inside import alike, inside, layer_steps, parts_of
from tiny_models import TINY

TOKENS = [2, 5, 7, 1, 9]


def model(**settings: Any) -> Any:
    return testing.build(replace(TINY["lstm reference"], **settings))


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_steps_are_the_parts_of_a_layer(cell: str) -> None:
    lm = model(cell=cell)
    steps = layer_steps(lm, TOKENS, 1)
    for part in parts_of(lm, 1):
        seen = inside(lm, TOKENS, list(map(str, TOKENS)), layer=1, part=part).values
        np.testing.assert_allclose(steps[part], seen, atol=1e-6)


@pytest.mark.parametrize("form", ["reset_before", "reset_after"])
def test_the_new_content_of_a_gru_makes_its_state(form: str) -> None:
    steps = layer_steps(model(cell="gru", gru_form=form), TOKENS, 0)
    h, u, n = steps["h"], steps["u"], steps["n"]
    np.testing.assert_allclose((1 - u[1:]) * h[:-1] + u[1:] * n[1:], h[1:], atol=1e-6)


def test_the_sums_of_a_simple_cell_make_its_state() -> None:
    steps = layer_steps(model(cell="rnn", nonlinearity="tanh"), TOKENS, 0)
    np.testing.assert_allclose(np.tanh(steps["x"] + steps["s"]), steps["h"], atol=1e-6)


def test_units_that_stay_on_and_places_alike() -> None:
    # Unit 0 is on at tokens 2, 3 and 6; unit 1 is on, below zero, at 2, 3 and 6; unit 2 always.
    values_TH = np.array(
        [
            [0.0, 0.0, 0.9],
            [0.1, 0.0, 0.9],
            [0.8, -0.7, 0.9],
            [0.9, -0.6, 0.9],
            [0.0, 0.2, 0.9],
            [0.2, 0.0, 0.9],
            [0.7, -0.5, 0.9],
            [0.0, 0.0, 0.9],
        ],
        dtype=np.float32,
    )
    found = alike(values_TH, 2, 3, threshold=0.4)
    assert [(unit, sign) for unit, sign, _ in found.units] == [(0, 1), (1, -1)]
    assert found.places == [(6, 6, 1.0)]
    assert alike(values_TH, 2, 4, threshold=0.4).units == []
