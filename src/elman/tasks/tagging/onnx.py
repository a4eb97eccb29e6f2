"""Taggers as ONNX graphs: words of sentences in, labels and their probabilities out.

    words (B, T)          ids of words; 0 for unknown words
    spellings (B, T)      the row of `characters` that spells each word
    characters (U, C)     spellings: UTF-8 bytes plus 1, between a begin and an end mark
    lengths (B)           words of each sentence

Inputs that a tagger does not read are left out. Labels come from the Viterbi algorithm if the
tagger has a CRF; probabilities are then exact marginals.

B batch, T time steps, U word types, C characters, N labels.
"""

from __future__ import annotations

from dataclasses import asdict

import torch
from torch import Tensor

from elman.nn.character_cnn import KIM
from elman.nn.onnx.tracing import Function, Input
from elman.tasks.onnx_files import refuse_embeddings
from elman.tasks.opening import OpenedRun
from elman.tasks.task import OnnxForm


def form(run: OpenedRun) -> OnnxForm:
    model, vocabulary = run.model, run.tokenizer
    refuse_embeddings(run)
    characters = model.config.character_cnn.max_characters
    inputs = [Input("lengths", ("batch",), torch.int64)]
    sentence = ("batch", "time")
    if model.input is not None:
        inputs.append(Input("words", sentence, torch.int64, limit=vocabulary.vocab_size))
    if model.characters is not None:
        # Ids of spellings are small in examples: there are a few at least.
        inputs += [
            Input("spellings", sentence, torch.int64, limit=1),
            Input("characters", ("types", characters), torch.int64, limit=KIM.num_symbols),
        ]

    def call(values: dict[str, Tensor]) -> dict[str, Tensor]:
        spellings_BT = values.get("spellings")
        words_BT = values.get("words", spellings_BT)
        lengths_B = values["lengths"]
        assert words_BT is not None
        emissions_BTN = model.emissions(
            words_BT,
            words_BT if spellings_BT is None else spellings_BT,
            values.get("characters", words_BT),
            lengths_B,
        )
        mask_BT = torch.arange(words_BT.shape[1]) < lengths_B.unsqueeze(1)
        # A step of padding: onnxruntime cannot scan the words after the first of a single word.
        length = words_BT.shape[1]
        emissions_BTN = torch.cat([emissions_BTN, emissions_BTN[:, :1]], dim=1)
        mask_BT = torch.cat([mask_BT, ~mask_BT[:, :1]], dim=1)
        return {
            "labels": model.best(emissions_BTN, mask_BT)[:, :length],
            "probabilities": model.marginals(emissions_BTN, mask_BT)[:, :length],
        }

    graph = Function("sequence", model, inputs, call, {"lengths": "time"})
    entries = {
        "vocabulary": asdict(vocabulary),
        "characters": {
            "begin": KIM.begin,
            "end": KIM.end,
            "padding": KIM.padding,
            "most": characters,
        },
    }
    return OnnxForm(graphs=[graph], entries=entries)
