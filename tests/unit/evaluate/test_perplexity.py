from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from elman.base.errors import ElmanError, UsageError
from elman.batches.encoded import EncodedText
from elman.evaluate.perplexity import evaluate
from elman.evaluate.sequences import score_tokens
from elman.models.recurrent import RecurrentLM, RecurrentLMConfig
from elman.tasks.language_model.window import WindowLMConfig

Build = Callable[[int], RecurrentLM]


def text(num_tokens: int, vocab_size: int = 9) -> EncodedText:
    ids = np.random.default_rng(0).integers(vocab_size, size=num_tokens)
    return EncodedText(ids.astype(np.uint16), num_bytes=3 * num_tokens)


def test_one_lane_is_the_chain_rule(network: Build) -> None:
    encoded = text(300)
    found = evaluate(network(9), encoded, boundary_id=0, batch_size=1)
    (scores,), _ = score_tokens(network(9), [encoded.ids.tolist()], previous=0)
    nats = -math.fsum(scores.logprobs)
    assert found.nats_per_token == pytest.approx(nats / 300, rel=1e-6)
    assert found.perplexity == pytest.approx(math.exp(nats / 300), rel=1e-6)
    assert found.bits_per_byte == pytest.approx(nats / math.log(2) / 900, rel=1e-6)
    assert found.tokens == 300
    assert found.oov == 0
    assert found.perplexity_without_unknown == found.perplexity


@pytest.mark.parametrize("batch_size", [2, 3, 7, 50])
@pytest.mark.parametrize("num_tokens", [50, 301])
def test_lanes_are_exact_when_the_overlap_covers_the_models_memory(
    batch_size: int, num_tokens: int
) -> None:
    torch.manual_seed(0)
    model = WindowLMConfig(window_size=2).build(9).eval()
    exact = evaluate(model, text(num_tokens), boundary_id=0, batch_size=1)
    lanes = evaluate(model, text(num_tokens), boundary_id=0, batch_size=batch_size, overlap=2)
    assert lanes.tokens == num_tokens
    assert lanes.nats_per_token == pytest.approx(exact.nats_per_token, rel=1e-6)


def test_the_lanes_that_are_chosen_come_close(network: Build) -> None:
    encoded = text(5_000)
    exact = evaluate(network(9), encoded, boundary_id=0, batch_size=1)
    chosen = evaluate(network(9), encoded, boundary_id=0, overlap=32)  # nine lanes
    assert chosen.tokens == exact.tokens
    assert chosen.perplexity == pytest.approx(exact.perplexity, rel=1e-3)


def test_unknown_tokens_are_counted_and_can_be_left_out(network: Build) -> None:
    encoded = text(200)
    (scores,), _ = score_tokens(network(9), [encoded.ids.tolist()], previous=0)
    known = [s for s, token in zip(scores.logprobs, encoded.ids, strict=True) if token != 4]
    found = evaluate(network(9), encoded, boundary_id=0, unknown_id=4, batch_size=1)
    assert found.oov == 200 - len(known)
    assert found.tokens == 200
    assert found.perplexity_without_unknown == pytest.approx(math.exp(-sum(known) / len(known)))
    assert found.perplexity != pytest.approx(found.perplexity_without_unknown)


def test_impossible_tokens_make_it_infinite_and_never_nan(network: Build) -> None:
    class Impossible(RecurrentLM):
        """Unknown tokens have probability 0."""

        def logprobs(self, tokens_BT: Any, targets_BT: Any, state: Any) -> Any:
            logprobs_BT, state = super().logprobs(tokens_BT, targets_BT, state)
            return logprobs_BT.masked_fill(targets_BT == 4, -torch.inf), state

    model = Impossible(RecurrentLMConfig(hidden_size=4, embedding_size=4), 9)
    found = evaluate(model, text(50), boundary_id=0, unknown_id=4)
    assert found.perplexity == math.inf
    assert found.bits_per_byte == math.inf
    assert math.isfinite(found.perplexity_without_unknown)


def test_dropout_is_off_while_measuring_and_on_again_after() -> None:
    torch.manual_seed(0)
    config = RecurrentLMConfig(hidden_size=8, embedding_size=8, dropout_output=0.5)
    model = config.build(9).train()
    first, second = (evaluate(model, text(50), boundary_id=0) for _ in range(2))
    assert first.perplexity == second.perplexity
    assert model.training


def test_nothing_to_evaluate_is_an_error(network: Build) -> None:
    with pytest.raises(ElmanError, match="empty"):
        evaluate(network(9), text(0), boundary_id=0)


@pytest.mark.parametrize("batch_size", [0, -2])
def test_there_is_at_least_one_lane(network: Build, batch_size: int) -> None:
    with pytest.raises(UsageError, match="batch_size cannot be"):
        evaluate(network(9), text(20), boundary_id=0, batch_size=batch_size)
