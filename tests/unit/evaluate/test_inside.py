from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from elman import testing
from elman.base.errors import UsageError
from elman.evaluate.inside import num_layers, parts_of, sensitivity, watch
from tiny_models import TINY

TOKENS = [2, 5, 7, 1, 9]


def model(**settings: Any) -> Any:
    return testing.build(replace(TINY["lstm"], **settings))


def test_states_are_those_of_the_model() -> None:
    lm = model()
    tokens_1T = torch.tensor([TOKENS])
    with torch.no_grad():
        _, state = lm.hidden(tokens_1T, lm.initial_state(1))
    for layer in range(num_layers(lm)):
        for part in ("h", "c"):
            seen_TH = watch(lm, TOKENS, layer=layer, part=part)
            torch.testing.assert_close(seen_TH[-1], state.part(str(layer)).tensor(part)[0])
            assert seen_TH.shape == (len(TOKENS), 12)


@pytest.mark.parametrize("join", ["plain", "dense", "residual"])
def test_the_gates_of_an_lstm_make_its_state(join: str) -> None:
    lm = model(join=join)
    assert parts_of(lm, 1) == ["h", "c", "i", "f", "g", "o"]
    seen = {part: watch(lm, TOKENS, layer=1, part=part) for part in parts_of(lm, 1)}
    c_TH = seen["f"][1:] * seen["c"][:-1] + seen["i"][1:] * seen["g"][1:]
    torch.testing.assert_close(c_TH, seen["c"][1:])
    torch.testing.assert_close(seen["o"] * torch.tanh(seen["c"]), seen["h"])


def test_the_gates_of_a_gru_are_between_0_and_1() -> None:
    lm = model(cell="gru", gru_form="reset_before")
    assert parts_of(lm, 0) == ["h", "r", "u"]
    update_TH = watch(lm, TOKENS, layer=0, part="u")
    assert bool(((update_TH > 0) & (update_TH < 1)).all())


@pytest.mark.parametrize("settings", [{"cell": "rnn"}, {"layer_norm": True}, {"peephole": True}])
def test_cells_without_simple_gates_show_their_states(settings: dict[str, Any]) -> None:
    assert set(parts_of(model(**settings), 0)) <= {"h", "c"}


def test_the_gradient_is_that_of_small_changes() -> None:
    lm = model().double()
    found = sensitivity(lm, TOKENS)
    assert len(found) == len(TOKENS) - 1
    # Against finite differences along the gradient's own direction at the word before the last.
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
    assert sensitivity(lm, [2]) == []


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="no layer 2"):
        watch(model(), TOKENS, layer=2, part="h")
    with pytest.raises(UsageError, match="no part 'x'"):
        watch(model(), TOKENS, layer=0, part="x")
