"""Tiny configs of every language model, cell, join, input and output layer, for the tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from elman.models.decoder import DecoderConfig
from elman.models.recurrent import RecurrentLMConfig
from elman.nn.character_cnn import CharacterCNNConfig
from elman.nn.heads.adaptive import AdaptiveConfig
from elman.nn.heads.mixture import MixtureConfig
from elman.nn.heads.sampled import SampledConfig
from elman.tasks.captioning.model import CaptionerConfig
from elman.tasks.conditional.model import ConditionalLMConfig
from elman.tasks.language_model.maxent import MaxEntLMConfig
from elman.tasks.language_model.window import WindowLMConfig
from elman.tasks.translation.model import SequenceToSequenceConfig

_RECURRENT = RecurrentLMConfig(num_layers=2, hidden_size=12, embedding_size=10)
_DECODER = DecoderConfig(num_layers=2, hidden_size=12, embedding_size=10)


def _pairs(**settings: Any) -> SequenceToSequenceConfig:
    return SequenceToSequenceConfig(decoder=replace(_DECODER, **settings))


TINY: Mapping[str, Any] = {
    "lstm": _RECURRENT,
    "lstm reference": replace(_RECURRENT, kernel="reference"),
    "lstm peephole": replace(_RECURRENT, peephole=True),
    "lstm projected": replace(_RECURRENT, projection_size=7),
    "lstm layer norm": replace(_RECURRENT, layer_norm=True),
    "gru lecture": replace(_RECURRENT, cell="gru", gru_form="reset_before"),
    "gru torch": replace(_RECURRENT, cell="gru", gru_form="reset_after"),
    "gru layer norm": replace(_RECURRENT, cell="gru", layer_norm=True),
    "rnn sigmoid": replace(_RECURRENT, cell="rnn", nonlinearity="sigmoid"),
    "rnn tanh": replace(_RECURRENT, cell="rnn", nonlinearity="tanh"),
    "rnn relu": replace(_RECURRENT, cell="rnn", nonlinearity="relu"),
    "mingru": replace(_RECURRENT, cell="mingru"),
    "mingru reference": replace(_RECURRENT, cell="mingru", kernel="reference"),
    "minlstm": replace(_RECURRENT, cell="minlstm"),
    "sru": replace(_RECURRENT, cell="sru"),
    "qrnn": replace(_RECURRENT, cell="qrnn"),
    "hgrn": replace(_RECURRENT, cell="hgrn", num_layers=3),
    "rglru": replace(_RECURRENT, cell="rglru"),
    "slstm": replace(_RECURRENT, cell="slstm", num_heads=3),
    "slstm dropped": replace(_RECURRENT, cell="slstm", weight_drop=0.2, dropout_state=0.2),
    "mogrified": replace(_RECURRENT, mogrify_rounds=3, mogrify_rank=4, cap_input=True),
    "sum of layers": replace(_RECURRENT, sum_layers=True, dropout_state=0.2),
    "residual": replace(_RECURRENT, join="residual"),
    "highway": replace(_RECURRENT, join="highway"),
    "dense": replace(_RECURRENT, join="dense"),
    "tied": replace(_RECURRENT, tied=True),
    "regularised": replace(
        _RECURRENT,
        tied=True,
        dropout_embedding=0.1,
        dropout_input=0.2,
        dropout_hidden=0.2,
        dropout_output=0.2,
        weight_drop=0.3,
    ),
    "unlocked dropout": replace(_RECURRENT, dropout_input=0.2, dropout_output=0.2, locked=False),
    "small start": replace(_RECURRENT, init_range=0.05, forget_bias=0.0),
    "character cnn": replace(
        _RECURRENT,
        input="character_cnn",
        character_cnn=CharacterCNNConfig(character_size=4, filters=(3, 4, 5), max_characters=9),
    ),
    "adaptive": replace(_RECURRENT, head=AdaptiveConfig(cutoffs=(5, 12))),
    "adaptive tied": replace(_RECURRENT, head=AdaptiveConfig(), tied=True),
    "sampled softmax": replace(_RECURRENT, head=SampledConfig(num_samples=15)),
    "nce": replace(_RECURRENT, head=SampledConfig(method="nce", num_samples=15)),
    "blackout": replace(_RECURRENT, head=SampledConfig(method="blackout", num_samples=15)),
    "sampled tied": replace(_RECURRENT, head=SampledConfig(num_samples=15), tied=True),
    "mixture of softmaxes": replace(_RECURRENT, head=MixtureConfig(num_components=3)),
    "mixture tied": replace(_RECURRENT, head=MixtureConfig(num_components=3), tied=True),
    "window": WindowLMConfig(window_size=3, embedding_size=6, hidden_size=16),
    "window direct": WindowLMConfig(window_size=3, embedding_size=6, hidden_size=16, direct=True),
    "window deep": WindowLMConfig(
        window_size=2, embedding_size=6, num_layers=3, hidden_size=16, dropout_hidden=0.1
    ),
    "window deep, residual": WindowLMConfig(
        window_size=2, embedding_size=6, num_layers=3, hidden_size=16, join="residual"
    ),
    "window deep, dense": WindowLMConfig(
        window_size=2, embedding_size=6, num_layers=3, hidden_size=16, join="dense", direct=True
    ),
    "window of one": WindowLMConfig(window_size=1, embedding_size=6, hidden_size=16),
    "window adaptive": WindowLMConfig(
        window_size=3, embedding_size=6, hidden_size=16, head=AdaptiveConfig(cutoffs=(7,))
    ),
    "rnn and maxent": replace(_RECURRENT, cell="rnn", maxent_order=9, maxent_size=211),
    "sampled and maxent": replace(
        _RECURRENT, head=SampledConfig(num_samples=15), maxent_order=2, maxent_size=211, tied=True
    ),
    "maxent": MaxEntLMConfig(order=3, size=211),
    "maxent sampled": MaxEntLMConfig(order=5, size=211, head=SampledConfig(num_samples=15)),
    "sequence to sequence": _pairs(attention="none"),
    "context at every step": _pairs(attention="none", context="every_step"),
    "context twice": _pairs(attention="none", context="both", cell="gru"),
    "attention dot": _pairs(attention="dot"),
    "attention bilinear": _pairs(attention="bilinear", context="every_step"),
    "attention additive": _pairs(attention="additive", attention_size=5),
    "attention before": _pairs(attention="dot", attend="before", cell="rnn"),
    "attention before, additive": _pairs(attend="before", context="both"),
    "input feeding": _pairs(attention="bilinear", input_feeding=True, dropout_input=0.1),
    "input feeding, tied": _pairs(input_feeding=True, tied=True, embedding_size=12),
    "captioner": CaptionerConfig(height=6, width=9, channels=(4, 5), decoder=_DECODER),
    "conditional": ConditionalLMConfig(
        labels=("a", "b"), decoder=replace(_DECODER, attention="none", context="both")
    ),
    "decoder projected": _pairs(projection_size=8, peephole=True, weight_drop=0.2),
    "decoder qrnn": _pairs(cell="qrnn"),
    "decoder slstm": _pairs(cell="slstm", num_heads=2),
    "conditional qrnn": ConditionalLMConfig(
        labels=("a", "b"), decoder=replace(_DECODER, attention="none", cell="qrnn")
    ),
    "conditional slstm": ConditionalLMConfig(
        labels=("a", "b"), decoder=replace(_DECODER, attention="none", cell="slstm")
    ),
    "conditional projected": ConditionalLMConfig(
        labels=("a", "b"),
        decoder=replace(_DECODER, attention="none", context="both", projection_size=7),
    ),
    "mean of two encoders": SequenceToSequenceConfig(
        decoder=replace(_DECODER, hidden_size=7, attend="before"), merge="mean"
    ),
    "one-way encoder": replace(_pairs(), bidirectional=False, shared_embedding=True),
}
"""Tiny configs by name: every model of the table, every cell, join, input and output layer."""

CHANGED = {
    "layer_norm": True,
    "peephole": True,
    "projection_size": 2,
    "forget_bias": 0.0,
    "cap_input": True,
    "mogrify_rounds": 2,
    "gru_form": "reset_before",
    "nonlinearity": "relu",
    "num_heads": 2,
}
"""A value other than the default for every setting that some cell does not read."""
