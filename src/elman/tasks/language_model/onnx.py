"""Language models as ONNX graphs, and back: a handle of the step graph.

    step        tokens (B), state -> log probabilities of the next token (B, V), state
    sequence    tokens (B, T), state -> those after each token (B, T, V), state

B batch, T time steps, V vocabulary.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from elman.base.documents import damaged
from elman.base.errors import UsageError
from elman.base.files import regular
from elman.models.onnx_model import OnnxLM
from elman.nn.character_cnn import CharacterCNN
from elman.nn.inputs import Lookup
from elman.nn.onnx.files import need_onnxruntime, session
from elman.nn.onnx.tracing import Function, Input
from elman.tasks.language_model_base import TextModel
from elman.tasks.language_model_handle import LM
from elman.tasks.onnx_files import (
    changed,
    entries_of,
    state_inputs,
    state_of,
    tokenizer_entries,
)
from elman.tasks.opening import OpenedRun
from elman.tasks.task import OnnxForm
from elman.tokens.tokenizer import Tokenizer

SUFFIX = ".onnx"


def form(run: OpenedRun) -> OnnxForm:
    model, tokenizer = run.model, run.tokenizer
    if getattr(model, "contexts", None) is not None:
        raise UsageError(
            f"{run.path} has a MaxEnt layer of hashed n-grams, which cannot be converted to ONNX",
            "train without it: --set model.maxent_order=0",
        )
    if isinstance(getattr(model, "input", None), CharacterCNN):
        model.input = _looked_up(model.input)
    state = model.initial_state(2)
    text = TextModel("", model, tokenizer, [run])
    entries = {
        **tokenizer_entries(tokenizer),
        "ends": sorted(text.end_ids()),
        "unit": text.unit,
        "initial": {
            name: tensor[0].tolist() for name, tensor in state.flatten().items() if tensor.any()
        },
    }

    def graph(name: str, *sizes: str) -> Function:
        def call(values: dict[str, Tensor]) -> dict[str, Tensor]:
            tokens, before = values["tokens"], state_of(values)
            if name == "step":
                logprobs, after = model.step(tokens, before)
            else:
                hidden, after = model.hidden(tokens, before)
                logprobs = model.head.logprobs_all(hidden.dropped_BTH)
            return {"logprobs": logprobs, **changed(after, values)}

        tokens = Input("tokens", sizes, torch.int64, limit=tokenizer.vocab_size)
        return Function(name, model, [tokens, *state_inputs(state)], call)

    graphs = [graph("step", "batch"), graph("sequence", "batch", "time")]
    return OnnxForm(graphs=graphs, entries=entries)


def _looked_up(characters: CharacterCNN) -> Lookup:
    """The vectors of all words, which depend on nothing but their spelling, as a matrix."""
    with torch.no_grad():
        vectors_VE = characters.all_types()
    lookup = Lookup(*vectors_VE.shape)
    lookup.embedding.weight = nn.Parameter(vectors_VE)
    return lookup.eval()


class OnnxHandle(LM):
    """A language model of an ONNX file."""

    model: OnnxLM
    entries: dict[str, Any]

    @property
    def kind(self) -> str:
        return "onnx"

    @property
    def unit(self) -> str:
        return str(self.entries["unit"])

    def info(self) -> dict[str, Any]:
        parts = {name: "x".join(map(str, shape)) for name, (shape, _) in self.model.parts.items()}
        spelled = ", ".join(f"{name} {shape}" for name, shape in parts.items())
        details = {"computed by": "onnxruntime", "state": spelled}
        return {**super().info(), "details": details}


def open_onnx_file(path: Path, name: str, device: str) -> OnnxHandle | None:
    """Open an ONNX file; None if `path` is another file. Nothing in it is executed on opening."""
    if path.suffix.lower() != SUFFIX or not path.is_file():
        return None
    need_onnxruntime()
    content = regular(path).read_bytes()
    try:
        opened = session(content)
    except Exception as error:  # onnxruntime's own classes
        raise damaged(path, str(error)) from error
    entries = entries_of(opened.get_modelmeta().custom_metadata_map, path)
    about = entries["elman"]
    if "tokenizer" not in entries or about.get("graph") != "step" or "unit" not in entries:
        raise UsageError(
            f"{path} is the {about.get('graph')} graph of a model of the task {about.get('task')}, "
            "which onnxruntime reads",
            "Elman opens the step graphs of language models: elman convert RUN model.onnx",
        )
    tokenizer = Tokenizer.from_json(json.dumps(entries["tokenizer"]), path)
    handle = OnnxHandle(name, OnnxLM(opened, entries["initial"]), tokenizer)
    handle.entries = entries
    return handle
