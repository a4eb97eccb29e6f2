"""Many streams a step further, on packed weights: as reading the whole texts at once."""

from __future__ import annotations

import threading

import pytest
import torch

from elman import testing
from elman.models import streaming
from elman.models.recurrent import RecurrentLM, RecurrentLMConfig
from elman.nn.kernels import mkl, together
from elman.nn.quantise import quantise
from elman.nn.state import State
from tiny_models import TINY

pytest.importorskip("numba")
pytestmark = pytest.mark.skipif(not mkl.available(), reason="torch has no MKL here")


def stepped(model: RecurrentLM, tokens_BT: torch.Tensor) -> tuple[torch.Tensor, State]:
    """Log probabilities of each next token, a step at a time, and the last state."""
    state, found = model.initial_state(len(tokens_BT)), []
    for tokens_B, targets_B in zip(tokens_BT[:, :-1].T, tokens_BT[:, 1:].T, strict=True):
        logprobs_BV, state = model.step(tokens_B, state)
        found.append(logprobs_BV.gather(1, targets_B[:, None])[:, 0])
    return torch.stack(found, dim=1), state


def check(model: RecurrentLM, batch_size: int) -> None:
    compiled = model._compiled_step()
    assert compiled is not None
    assert compiled.serves(batch_size)
    tokens_BT = torch.randint(0, testing.VOCAB_SIZE, (batch_size, 5))
    before = model.initial_state(batch_size)
    expected, after = model.logprobs(tokens_BT[:, :-1], tokens_BT[:, 1:], before)
    found, state = stepped(model, tokens_BT)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state.flatten(), after.flatten(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batch_size", [2, 16, 17, 49, 64, 130])
@pytest.mark.parametrize("ratio", [0, 100], ids=["embeddings", "table"])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
@torch.no_grad()
def test_steps_equal_the_whole(
    cell: str, ratio: int, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of both sizes, full and filled up; layers of different widths."""
    torch.manual_seed(0)
    monkeypatch.setattr(streaming, "TABLE_RATIO", ratio)
    config = RecurrentLMConfig(
        cell=cell,  # type: ignore[arg-type]
        num_layers=3,
        hidden_size=9,
        embedding_size=5,
        tied=True,
    )
    check(testing.build(config), batch_size)


@torch.no_grad()
def test_rounded_weights_are_packed_too() -> None:
    torch.manual_seed(0)
    model = testing.build(RecurrentLMConfig(hidden_size=9, embedding_size=5))
    quantise(model)
    check(model, 20)


@torch.no_grad()
def test_weights_that_change_are_packed_anew() -> None:
    torch.manual_seed(0)
    model = testing.build(RecurrentLMConfig(hidden_size=9, embedding_size=5))
    check(model, 20)
    for parameter in model.parameters():
        parameter.mul_(1.5)  # in place, as an optimiser does
        check(model, 20)
    for parameter in model.parameters():
        parameter.data = parameter.data / 2  # as averaging swaps them
    check(model, 20)


@torch.no_grad()
def test_what_is_left_to_others() -> None:
    """Cells without gates that can be computed apart take few rows in one call and many not."""
    for name in ("mingru", "gru lecture"):
        compiled = testing.build(TINY[name])._compiled_step()
        assert compiled is not None
        assert compiled.serves(2)
        assert not compiled.serves(20)


@torch.no_grad()
def test_tokens_beyond_the_vocabulary_are_an_error() -> None:
    model = testing.build(TINY["lstm"])
    with pytest.raises(IndexError, match="not in the vocabulary"):
        model.step(torch.full((20,), testing.VOCAB_SIZE), model.initial_state(20))


def test_chunks_cover_all_rows() -> None:
    for num_rows in range(1, 300):
        found = list(together.chunks(num_rows))
        rows = [row for first, last, _ in found for row in range(first, last)]
        assert rows == list(range(num_rows))
        assert all(last - first == size for first, last, size in found[:-1])
        assert all(last - first <= size for first, last, size in found)


def test_steps_in_threads_do_not_disturb_each_other() -> None:
    """Memory of one step must not be given away while it is read."""
    torch.manual_seed(0)
    model = testing.build(RecurrentLMConfig(hidden_size=300, embedding_size=20))
    found: dict[int, torch.Tensor] = {}

    def greedy(start: int) -> torch.Tensor:
        state, tokens_B, said = model.initial_state(20), torch.arange(20) % 9 + start, []
        with torch.no_grad():
            for _ in range(60):
                logprobs_BV, state = model.step(tokens_B, state)
                tokens_B = logprobs_BV.argmax(1)
                said.append(logprobs_BV)
        return torch.stack(said)

    expected = [greedy(start) for start in range(4)]
    threads = [
        threading.Thread(target=lambda i=i: found.__setitem__(i, greedy(i))) for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for start in range(4):
        torch.testing.assert_close(found[start], expected[start], rtol=0, atol=0)
