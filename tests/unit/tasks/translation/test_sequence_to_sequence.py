from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from elman import testing
from elman.base.errors import UsageError
from elman.models.decoder import DecoderConfig
from elman.nn.bidirectional import Merge
from elman.tasks.translation.model import SequenceToSequenceConfig
from tiny_models import TINY

DECODER = DecoderConfig(num_layers=2, hidden_size=8, embedding_size=6)
PAIRS = {
    name: config for name, config in TINY.items() if isinstance(config, SequenceToSequenceConfig)
}


@pytest.mark.parametrize("name", PAIRS)
def test_padding_of_the_source_changes_nothing(name: str) -> None:
    model = testing.build(PAIRS[name])
    source_BS = torch.tensor([[5, 7, 3, 2, 4], [9, 2, 11, 12, 13]])
    mask_BS = torch.tensor([[True] * 5, [True, True, False, False, False]])
    tokens_BT = testing.some_tokens(2, 6)
    together = testing.whole(model, tokens_BT, model.condition(source_BS, mask_BS))
    for row, length in ((0, 5), (1, 2)):
        alone = model.condition(source_BS[row : row + 1, :length])
        found = testing.whole(model, tokens_BT[row : row + 1], alone)
        torch.testing.assert_close(found, together[row : row + 1])


@pytest.mark.parametrize("name", PAIRS)
def test_the_source_matters(name: str) -> None:
    model = testing.build(PAIRS[name])
    tokens_BT = testing.some_tokens(1, 4)
    one, other = (
        testing.whole(model, tokens_BT, model.condition(torch.tensor([source])))
        for source in ([5, 7, 2], [7, 5, 2])
    )
    assert not torch.allclose(one, other)


@pytest.mark.parametrize("merge", ["concat", "mean", "sum"])
def test_the_first_state_is_the_encoders_last(merge: Merge) -> None:
    model = SequenceToSequenceConfig(decoder=DECODER, merge=merge).build(11).eval()
    source_BS = torch.tensor([[4, 3, 1]])
    _, after = model.encoder(model.input(source_BS))
    layers = model.condition(source_BS).part("layers")
    for level in ("0", "1"):
        for key in ("h", "c"):
            right = after.part(level).part("forward").tensor(key)
            left = after.part(level).part("backward").tensor(key)
            found = layers.part(level).tensor(key)
            expected = {
                "concat": torch.cat([right, left], dim=1),
                "mean": (right + left) / 2,
                "sum": right + left,
            }
            torch.testing.assert_close(found, expected[merge])


def test_a_shared_embedding_is_one_matrix() -> None:
    config = SequenceToSequenceConfig(
        decoder=replace(DECODER, tied=True, embedding_size=8), shared_embedding=True
    )
    model = config.build(11)
    matrices = [p for p in model.parameters() if p.shape[:1] == (11,) and p.dim() == 2]
    assert len(matrices) == 1
    with pytest.raises(UsageError, match="one vocabulary, not 12 source tokens"):
        config.build(11, source_vocab_size=12)


def test_settings_that_exclude_each_other_are_explained() -> None:
    for other in ({"attention": "none"}, {"attend": "before"}):
        with pytest.raises(UsageError, match="input_feeding' is set, but nothing reads it"):
            DecoderConfig(input_feeding=True, **other)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="merge' is set, but nothing reads it"):
        SequenceToSequenceConfig(bidirectional=False, merge="sum")
    with pytest.raises(UsageError, match="two directions"):
        SequenceToSequenceConfig(decoder=replace(DECODER, hidden_size=7))
    with pytest.raises(UsageError, match="as wide as its embeddings, not 8 and 6"):
        SequenceToSequenceConfig(decoder=replace(DECODER, attention="none", tied=True)).build(9)
    model = SequenceToSequenceConfig(decoder=replace(DECODER, attention="none")).build(9)
    with pytest.raises(UsageError, match="this model has no attention"):
        model.decoder.weights(torch.zeros(1, 2, dtype=torch.long), model.initial_state(1))


@pytest.mark.parametrize("name", ["attention dot", "attention before", "input feeding"])
def test_weights_are_those_that_the_state_adds_up(name: str) -> None:
    model = testing.build(PAIRS[name])
    source_BS = torch.tensor([[5, 7, 3, 2]])
    tokens_BT = testing.some_tokens(1, 6)
    state = model.condition(source_BS)
    weights_BTS, after = model.decoder.weights(tokens_BT, state)
    assert weights_BTS.shape == (1, 6, 4)
    torch.testing.assert_close(weights_BTS.sum(dim=2), torch.ones(1, 6))
    torch.testing.assert_close(after.tensor("attended"), weights_BTS.sum(dim=1))


@pytest.mark.parametrize(
    "settings",
    [{"attention": "additive"}, {"attention": "dot", "input_feeding": True}, {"attention": "none"}],
)
def test_learns_to_reverse(settings: dict[str, str]) -> None:
    """Every sequence of three letters, reversed, by heart: greedily, without a mistake."""
    torch.manual_seed(0)
    decoder = DecoderConfig(hidden_size=32, embedding_size=16, **settings)  # type: ignore[arg-type]
    model = SequenceToSequenceConfig(decoder=decoder).build(4)
    words = [[a, b, c] for a in range(1, 4) for b in range(1, 4) for c in range(1, 4)]
    source_BS = torch.tensor([[*word, 0] for word in words])
    tokens_BT = torch.tensor([[0, *word[::-1]] for word in words])
    targets_BT = torch.tensor([[*word[::-1], 0] for word in words])
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(120):
        hidden, _ = model.hidden(tokens_BT, model.condition(source_BS))
        loss = model.head.losses(hidden.dropped_BTH, targets_BT).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        state, tokens_B = model.condition(source_BS), torch.zeros(len(words), dtype=torch.long)
        for time in range(4):
            logprobs_BV, state = model.step(tokens_B, state)
            tokens_B = logprobs_BV.argmax(dim=1)
            assert tokens_B.tolist() == targets_BT[:, time].tolist()
