"""Classifiers as ONNX graphs: tokens (B, T) and lengths (B) -> log probabilities of labels (B, N).

A classifier of pairs also reads "second_tokens" and "second_lengths".

B batch, T time steps, N labels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elman.nn.onnx.tracing import Function, Input
from elman.tasks.classification.batches import LabelledBatch
from elman.tasks.onnx_files import refuse_embeddings, tokenizer_entries
from elman.tasks.opening import OpenedRun
from elman.tasks.task import OnnxForm


def form(run: OpenedRun) -> OnnxForm:
    model, vocabulary = run.model, run.tokenizer
    refuse_embeddings(run)
    inputs, lengths = [], {}
    for prefix in ("", "second_")[: 1 if model.joint is None else 2]:
        size = f"{prefix}time"
        limit = vocabulary.vocab_size
        inputs += [
            Input(f"{prefix}tokens", ("batch", size), torch.int64, limit=limit),
            Input(f"{prefix}lengths", ("batch",), torch.int64),
        ]
        lengths[f"{prefix}lengths"] = size

    def call(values: dict[str, Tensor]) -> dict[str, Tensor]:
        tokens, lengths, *others = values.values()
        second = None
        if others:
            second = LabelledBatch(
                tokens_BT=others[0], lengths_B=others[1], labels_B=others[1], wording=None
            )
        return {"logprobs": model(tokens, lengths, None, second).log_softmax(1)}

    graph = Function("sequence", model, inputs, call, lengths)
    entries = {**tokenizer_entries(vocabulary.tokenizer), "labels": list(vocabulary.labels)}
    return OnnxForm(graphs=[graph], entries=entries)
