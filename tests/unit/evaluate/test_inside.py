from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from elman import testing
from elman.base.errors import UsageError
from elman.evaluate.inside import Inside, inside, num_layers, parts_of
from elman.evaluate.sequences import score_tokens
from elman.nn.state import State
from tiny_models import TINY

TOKENS = [2, 5, 7, 1, 9]


def model(**settings: Any) -> Any:
    return testing.build(replace(TINY["lstm reference"], **settings))


def look(lm: Any, tokens: list[int] = TOKENS, **how: Any) -> Inside:
    return inside(lm, tokens, [str(token) for token in tokens], **how)


def test_states_are_those_of_the_model() -> None:
    lm = model()
    tokens_1T = torch.tensor([TOKENS])
    with torch.no_grad():
        _, state = lm.hidden(tokens_1T, lm.initial_state(1))
    for layer in range(num_layers(lm)):
        for part in ("h", "c"):
            seen_TH = look(lm, layer=layer, part=part).values
            expected = state.part(str(layer)).tensor(part)[0].numpy()
            np.testing.assert_allclose(seen_TH[-1], expected, atol=1e-6)
            assert seen_TH.shape == (len(TOKENS), 12)


@pytest.mark.parametrize("join", ["plain", "dense", "residual"])
def test_the_gates_of_an_lstm_make_its_state(join: str) -> None:
    lm = model(join=join)
    assert parts_of(lm, 1) == ["h", "c", "i", "f", "g", "o"]
    seen = {part: look(lm, layer=1, part=part).values for part in parts_of(lm, 1)}
    c_TH = seen["f"][1:] * seen["c"][:-1] + seen["i"][1:] * seen["g"][1:]
    np.testing.assert_allclose(c_TH, seen["c"][1:], atol=1e-6)
    np.testing.assert_allclose(seen["o"] * np.tanh(seen["c"]), seen["h"], atol=1e-6)


def test_the_gates_of_a_gru_are_between_0_and_1() -> None:
    lm = model(cell="gru", gru_form="reset_before")
    assert parts_of(lm, 0) == ["h", "r", "u"]
    update_TH = look(lm, part="u").values
    assert ((update_TH > 0) & (update_TH < 1)).all()


@pytest.mark.parametrize("settings", [{"cell": "rnn"}, {"layer_norm": True}, {"peephole": True}])
def test_cells_without_simple_gates_show_their_states(settings: dict[str, Any]) -> None:
    assert set(parts_of(model(**settings), 0)) <= {"h", "c"}


@pytest.mark.parametrize("settings", [{}, {"maxent_order": 3, "maxent_size": 97}, {"tied": True}])
def test_surprisal_is_that_of_scoring(settings: dict[str, Any]) -> None:
    lm = model(**settings)
    for parameter in lm.parameters():
        torch.nn.init.uniform_(parameter, -1, 1)
    found = look(lm)
    (scores,), _ = score_tokens(lm, [TOKENS[1:]], previous=TOKENS[0])
    assert found.surprisal[0] is None
    bits = [-x / np.log(2) for x in scores.logprobs]
    assert found.surprisal[1:] == pytest.approx(bits, rel=1e-5)


def test_the_gradient_is_that_of_small_changes() -> None:
    lm = model().double()
    found = look(lm).gradient
    assert len(found) == len(TOKENS) - 1
    # Against finite differences at the word before the last.
    with torch.no_grad():
        embedded = lm.input(torch.tensor([TOKENS[:-1]]))

        def logprob(moved: torch.Tensor) -> float:
            hidden, _ = lm.stack(moved, lm.initial_state(1))
            return float(lm.head.logprobs(hidden[:, -1:], torch.tensor([TOKENS[-1:]])))

        steps = []
        for unit in range(embedded.shape[-1]):
            moved = embedded.clone()
            moved[0, -1, unit] += 1e-6
            steps.append((logprob(moved) - logprob(embedded)) / 1e-6)
    assert found[-1] == pytest.approx(float(torch.tensor(steps).norm()), rel=1e-3)


@pytest.mark.parametrize("settings", [{}, {"cell": "gru"}, {"join": "highway"}])
def test_state_gradients_are_those_of_small_changes_of_the_state(settings: dict[str, Any]) -> None:
    lm = model(**settings).double()
    target, place, top = 4, 1, "1.h"
    norms = look(lm, target=target).state_gradients["h"][1]
    assert len(norms) == target
    with torch.no_grad():
        _, state = lm.hidden(torch.tensor([TOKENS[: place + 1]]), lm.initial_state(1))
        flat = state.flatten()
        rest, wanted = TOKENS[place + 1 : target], torch.tensor([TOKENS[target : target + 1]])

        def logprob(change: torch.Tensor) -> float:
            moved = State.unflatten({**flat, top: flat[top] + change})
            hidden, _ = lm.hidden(torch.tensor([rest]), moved)
            return float(lm.head.logprobs(hidden.dropped_BTH[:, -1:], wanted))

        changes = 1e-6 * torch.eye(flat[top].shape[1], dtype=torch.float64)
        usual = logprob(torch.zeros_like(flat[top]))
        steps = [(logprob(change[None]) - usual) / 1e-6 for change in changes]
    assert norms[place] == pytest.approx(float(torch.tensor(steps).norm()), rel=1e-3)


def test_gradients_of_a_linear_recurrence_fall_by_its_factor() -> None:
    """ReLU units that stay active, recurrent matrix 0.5 I: each step back halves the gradient."""
    lm = model(cell="rnn", nonlinearity="relu", num_layers=1)
    cell = lm.stack.layers[0].cell
    with torch.no_grad():
        cell.recurrent_weight.copy_(0.5 * torch.eye(12))
        cell.bias.fill_(50.0)
    norms = look(lm, [2, *([5, 7, 1] * 20)]).state_gradients["h"][0]
    ratios = np.array(norms[:-1]) / np.array(norms[1:])
    np.testing.assert_allclose(ratios, 0.5, rtol=1e-4)
    assert 0 < norms[0] < 1e-15  # its square is below the smallest float32


def test_a_target_and_an_empty_text() -> None:
    lm = model()
    found = look(lm, target=2)
    assert (found.target, len(found.gradient)) == (2, 2)
    shorter = look(lm, TOKENS[:3])
    assert found.gradient == pytest.approx(shorter.gradient, rel=1e-5)
    nothing = look(lm, [2])
    assert (nothing.target, nothing.gradient, nothing.surprisal) == (0, [], [None])
    assert nothing.state_gradients == {"h": [[], []], "c": [[], []]}


def test_units_that_vary_most_come_first() -> None:
    found = look(model())
    order = found.units(12)
    spread = found.values.std(axis=0)[order]
    assert (np.diff(spread) <= 0).all()
    assert found.units(3) == order[:3]


def test_the_model_is_left_as_it_was() -> None:
    lm = model(dropout_hidden=0.5)
    lm.train()
    first, second = look(lm), look(lm)
    assert lm.training
    assert first.gradient == second.gradient
    assert all(parameter.grad is None for parameter in lm.parameters())


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="no layer 2"):
        look(model(), layer=2)
    with pytest.raises(UsageError, match="no part 'x'"):
        look(model(), part="x")
    for target in (0, 5, -1):
        with pytest.raises(UsageError, match="no token"):
            look(model(), target=target)
