"""Recurrent language models for Hugging Face's transformers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import nn

from elman.base.errors import UsageError
from elman.models.recurrent import RecurrentLM
from elman.tasks.hugging_face import restore_tokenizer, tokenizer_files
from elman.tasks.language_model.settings import LanguageModelRun
from elman.tasks.language_model_base import TextModel
from elman.tasks.opening import OpenedRun
from elman.tasks.task import HuggingFaceForm


def entries(run: OpenedRun) -> dict[str, Any]:
    model, tokenizer = run.model, run.tokenizer
    if not isinstance(model, RecurrentLM):
        raise UsageError(
            f"{run.path} is a {run.config.model.kind} model, which cannot be converted for "
            "transformers",
            "convert a recurrent model: elman train lm",
        )
    if model.contexts is not None:
        raise UsageError(
            f"{run.path} has a MaxEnt layer of n-grams, which cannot be converted for transformers",
            "train without it: --set model.maxent_order=0",
        )
    config = run.config.model
    ends = sorted(TextModel("", model, tokenizer, [run]).end_ids())
    return {
        "vocab_size": tokenizer.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "bos_token_id": tokenizer.boundary_id,
        "eos_token_id": ends[0] if ends else None,
        "pad_token_id": tokenizer.boundary_id,
        "unk_token_id": tokenizer.unknown_id,
    }


def build(config: LanguageModelRun, entries: Mapping[str, Any]) -> nn.Module:
    model: nn.Module = config.model.build(
        entries["vocab_size"], boundary_id=entries["bos_token_id"]
    )
    return model


FORM = HuggingFaceForm(
    architecture="ElmanForCausalLM",
    pipeline="text-generation",
    example='print(pipe("The")[0]["generated_text"])',
    entries=entries,
    build=build,
    files=partial(tokenizer_files, begins=True),
    restore=restore_tokenizer,
)
