"""Attention and the decoder against the lecture's equations, written out in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from elman.models.decoder import DecoderConfig
from elman.nn.attention import Attention
from elman.tasks.translation.model import SequenceToSequenceConfig


def softmax(scores: Any) -> Any:
    exponentials = np.exp(scores - scores.max())
    return exponentials / exponentials.sum()


def score(layer: Attention, query: Any, vector: Any) -> Any:
    if layer.kind == "dot":
        return query @ vector
    memory = layer.memory.weight.detach().numpy()
    if layer.kind == "bilinear":
        return query @ memory @ vector
    weight, bias = layer.query.weight.detach().numpy(), layer.query.bias.detach().numpy()
    return layer.score.weight.detach().numpy()[0] @ np.tanh(weight @ query + bias + memory @ vector)


@pytest.mark.parametrize("kind", ["dot", "bilinear", "additive"])
def test_attention_is_the_equation(kind: str) -> None:
    torch.manual_seed(0)
    layer = Attention(kind, 5, 5, 4).double()  # type: ignore[arg-type]
    queries_BTH = torch.randn(2, 3, 5, dtype=torch.float64)
    memory_BSM = torch.randn(2, 6, 5, dtype=torch.float64)
    lengths = [6, 4]
    mask_BS = torch.arange(6) < torch.tensor(lengths)[:, None]
    contexts_BTM, weights_BTS = layer(queries_BTH, layer.keys(memory_BSM), memory_BSM, mask_BS)
    for row, length in enumerate(lengths):
        memory = memory_BSM[row, :length].numpy()
        for time in range(3):
            query = queries_BTH[row, time].numpy()
            weights = softmax(np.array([score(layer, query, vector) for vector in memory]))
            np.testing.assert_allclose(weights_BTS[row, time, :length].detach(), weights)
            np.testing.assert_allclose(contexts_BTM[row, time].detach(), weights @ memory)


def _model(**settings: Any) -> Any:
    torch.manual_seed(1)
    decoder = DecoderConfig(
        cell="rnn", nonlinearity="sigmoid", hidden_size=6, embedding_size=5, **settings
    )
    config = SequenceToSequenceConfig(decoder=decoder, bidirectional=False)
    return config.build(7, source_vocab_size=9).double().eval()


def _numbers(module: Any) -> tuple[Any, Any, Any]:
    cell = module.layers[0].cell
    return tuple(
        parameter.detach().numpy()
        for parameter in (cell.input_weight, cell.recurrent_weight, cell.bias)
    )


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("context", ["start", "every_step", "both"])
@pytest.mark.parametrize("attention", ["none", "dot", "bilinear", "additive"])
def test_the_whole_model_is_the_lecture(context: str, attention: str) -> None:
    """c = h_n of the encoder; h_0 = c; h_i = g(y_{i-1}, h_{i-1}, c_i), c_i from h_{i-1}."""
    looks = {} if attention == "none" else {"attend": "before"}
    model = _model(context=context, attention=attention, **looks)
    source, target = [3, 8, 1, 0], [0, 4, 2, 6]
    W, U, b = _numbers(model.encoder)
    embedding = model.input.embedding.weight.detach().numpy()
    hidden, states = np.zeros(6), []
    for word in source:
        hidden = _sigmoid(U @ hidden + W @ embedding[word] + b)
        states.append(hidden)
    c = hidden

    W, U, b = _numbers(model.decoder.stack)
    embedding = model.decoder.input.embedding.weight.detach().numpy()
    V = model.head.softmax.weight.detach().numpy()
    bias = model.head.softmax.bias.detach().numpy()
    hidden = np.zeros(6) if context == "every_step" else c
    expected = []
    for word in target[:-1]:
        inputs = [embedding[word]]
        if context != "start":
            inputs.append(c)
        if attention != "none":
            layer = model.decoder.attention
            weights = softmax(np.array([score(layer, hidden, state) for state in states]))
            inputs.append(weights @ np.array(states))
        hidden = _sigmoid(U @ hidden + W @ np.concatenate(inputs) + b)
        expected.append(np.log(softmax(V @ hidden + bias)))
    tokens_BT = torch.tensor([target])
    state = model.condition(torch.tensor([source]))
    logprobs_BT, _ = model.logprobs(tokens_BT[:, :-1], tokens_BT[:, 1:], state)
    found = logprobs_BT[0].detach().numpy()
    np.testing.assert_allclose(
        found, [row[word] for row, word in zip(expected, target[1:], strict=True)], rtol=1e-6
    )
