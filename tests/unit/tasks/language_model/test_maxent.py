"""The maximum-entropy model: what it depends on, where it starts, and its place beside an RNN."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from elman import testing
from elman.base.errors import UsageError
from elman.evaluate.embeddings import sequence_vectors
from elman.models.recurrent import RecurrentLMConfig
from elman.tasks.language_model.maxent import MaxEntLM, MaxEntLMConfig
from tiny_models import TINY

RECURRENT = RecurrentLMConfig(num_layers=1, hidden_size=6, embedding_size=6)


def learnt(model: MaxEntLM) -> None:
    """Give a model weights, as if it had seen every n-gram that the tests are about."""
    ngrams = model.head.softmax.ngrams
    torch.nn.init.normal_(ngrams.weight)  # type: ignore[union-attr, arg-type]
    tokens_BT = testing.some_tokens(2, 8) % model.vocab_size
    for tokens in (tokens_BT, torch.tensor([[1, 2, 3, 4], [8, 2, 3, 4], [1, 8, 3, 4]])):
        hidden, _ = model.hidden(tokens, model.initial_state(len(tokens)))
        assert hidden.contexts_BTO is not None
        contexts_NO = hidden.contexts_BTO.flatten(0, 1)
        for word in range(model.vocab_size):
            ngrams.claim(contexts_NO, torch.full((len(contexts_NO),), word))  # type: ignore[union-attr, operator]


def test_starts_at_the_words_frequencies() -> None:
    counts_V = torch.tensor([8, 0, 3])
    model = MaxEntLMConfig(order=3, size=10).build(3, counts_V=counts_V)
    logprobs_BV, _ = model.step(torch.tensor([1]), model.initial_state(1))
    torch.testing.assert_close(logprobs_BV[0].exp(), torch.tensor([9.0, 1.0, 4.0]) / 14)


def test_sees_its_order_and_nothing_before() -> None:
    model = MaxEntLMConfig(order=3, size=100_000).build(9)
    learnt(model)
    tokens_BT = torch.tensor([[1, 2, 3, 4], [8, 2, 3, 4], [1, 8, 3, 4]])
    targets_BT = torch.full_like(tokens_BT, 6)
    logprobs_BT, _ = model.logprobs(tokens_BT, targets_BT, model.initial_state(3))
    torch.testing.assert_close(logprobs_BT[0, 2:], logprobs_BT[1, 2:])
    assert not torch.isclose(logprobs_BT[0, 2], logprobs_BT[2, 2])
    torch.testing.assert_close(logprobs_BT[0, 3], logprobs_BT[2, 3])


def test_joined_to_a_network_it_adds_its_scores() -> None:
    """softmax(V h + b + scores): with zeros in the table the network is what it was without."""
    torch.manual_seed(0)
    plain = RECURRENT.build(testing.VOCAB_SIZE)
    joined = replace(RECURRENT, maxent_order=4, maxent_size=5000).build(testing.VOCAB_SIZE)
    joined.load_state_dict(plain.state_dict(), strict=False)
    tokens_BT = testing.some_tokens(2, 8)
    without = testing.whole(plain, tokens_BT)
    torch.testing.assert_close(testing.whole(joined, tokens_BT), without)

    maxent = MaxEntLMConfig(order=4, size=5000).build(testing.VOCAB_SIZE)
    learnt(maxent)
    joined.head.softmax.ngrams = maxent.head.softmax.ngrams  # type: ignore[union-attr]
    state = joined.initial_state(2), plain.initial_state(2), maxent.initial_state(2)
    for time in range(8):
        results = [
            m.step(tokens_BT[:, time], s)
            for m, s in zip((joined, plain, maxent), state, strict=True)
        ]
        state = tuple(after for _, after in results)
        together, network, ngrams = (logprobs for logprobs, _ in results)
        torch.testing.assert_close(together, torch.log_softmax(network + ngrams, dim=1))


def test_an_order_of_one_has_nothing_to_add() -> None:
    with pytest.raises(UsageError, match=r"model.order cannot be 1"):
        MaxEntLMConfig(order=1)
    with pytest.raises(UsageError, match=r"model.maxent_order cannot be 1"):
        RecurrentLMConfig(maxent_order=1)


def test_it_has_no_vectors_to_give() -> None:
    model = testing.build(TINY["maxent"])
    with pytest.raises(UsageError, match="no hidden vectors"):
        list(sequence_vectors(model, [[1, 2]], boundary_id=0))
