"""The decoder's states start from a summary, whatever its cell."""

from __future__ import annotations

import pytest
import torch

from elman.models.decoder import Bridge, DecoderConfig
from elman.nn.cells import LSTMCell
from elman.nn.stack import Stack


class OwnLSTM(LSTMCell):
    pass


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn", "mingru", f"{__name__}:OwnLSTM"])
def test_a_bridge_makes_the_state_of_the_cell(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELMAN_PLUGINS", __name__)
    config = DecoderConfig(cell=cell, num_layers=2, hidden_size=5)
    state = Bridge(config, 3)(torch.randn(4, 3))
    expected = Stack(config, 6).initial_state(4).flatten()
    assert {name: t.shape for name, t in state.flatten().items()} == {
        name: t.shape for name, t in expected.items()
    }


def test_a_bridge_draws_random_numbers_for_its_own_weights_alone() -> None:
    torch.manual_seed(1)
    weight = Bridge(DecoderConfig(hidden_size=5), 3).linear.weight
    torch.manual_seed(1)
    assert (weight == torch.nn.Linear(3, 10).weight).all()
