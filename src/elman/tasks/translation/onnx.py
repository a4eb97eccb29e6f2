"""Translators as ONNX graphs.

    encoder    source (B, S), lengths (B) -> the state of the empty translation
    step       tokens (B), state -> log probabilities of the next token (B, V), changed state

Parts of the state that a step does not change, such as the vectors to attend to, are not returned.

B batch, S source steps, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elman.nn.onnx.tracing import Function, Input, plain_torch
from elman.nn.state import State
from elman.tasks.onnx_files import (
    BEFORE,
    changed,
    refuse_embeddings,
    state_inputs,
    state_of,
    tokenizer_entries,
)
from elman.tasks.opening import OpenedRun
from elman.tasks.task import OnnxForm


def form(run: OpenedRun) -> OnnxForm:
    model, pair = run.model, run.tokenizer
    refuse_embeddings(run)

    def encode(values: dict[str, Tensor]) -> State:
        source_BS, lengths_B = values["source"], values["lengths"]
        time_S = torch.arange(source_BS.shape[1])
        state: State = model.condition(source_BS, time_S < lengths_B.unsqueeze(1))
        return state

    def encoder(values: dict[str, Tensor]) -> dict[str, Tensor]:
        return {BEFORE + name: tensor for name, tensor in encode(values).flatten().items()}

    def step(values: dict[str, Tensor]) -> dict[str, Tensor]:
        logprobs, after = model.step(values["tokens"], state_of(values))
        return {"logprobs": logprobs, **changed(after, values)}

    reading = [
        Input("source", ("batch", "source"), torch.int64, limit=pair.source.vocab_size),
        Input("lengths", ("batch",), torch.int64),
    ]
    with plain_torch(model):
        states = [
            encode({"source": torch.zeros(1, size).long(), "lengths": torch.tensor([size])})
            for size in (1, 2)
        ]
    writing = [
        Input("tokens", ("batch",), torch.int64, limit=pair.target.vocab_size),
        *state_inputs(*states),
    ]
    entries = tokenizer_entries(pair.target)
    if not pair.shared:
        entries["source"] = tokenizer_entries(pair.source)
    return OnnxForm(
        graphs=[
            Function("step", model, writing, step),
            Function("encoder", model, reading, encoder, {"lengths": "source"}),
        ],
        entries=entries,
    )
