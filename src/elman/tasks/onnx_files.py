"""What the ONNX files of several tasks share: inputs for a state, entries for a tokenizer, and the
metadata of a file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from elman.base.documents import damaged
from elman.base.errors import UsageError
from elman.nn.onnx.tracing import Input
from elman.nn.state import State
from elman.tokens.tokenizer import Tokenizer

FORMAT = 1
BEFORE, AFTER = "state.", "next."
"""In front of the names of the parts of a state: what a step reads, and what it returns."""


def state_inputs(state: State, longer: State | None = None) -> list[Input]:
    """The inputs for a state like this one; sizes vary where those of `longer`, a state of a longer
    source, differ."""
    others = (longer or state).flatten()
    return [
        Input(
            BEFORE + name,
            (
                "batch",
                *(
                    size if size == other else "source"
                    for size, other in zip(tensor.shape[1:], others[name].shape[1:], strict=True)
                ),
            ),
            tensor.dtype,
        )
        for name, tensor in state.flatten().items()
    ]


def state_of(values: Mapping[str, Tensor]) -> State:
    """The state among the inputs of a graph."""
    return State.unflatten(
        {
            name.removeprefix(BEFORE): tensor
            for name, tensor in values.items()
            if name.startswith(BEFORE)
        }
    )


def changed(state: State, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parts of a state after a step that the step has changed, as outputs of a graph."""
    return {
        AFTER + name: tensor
        for name, tensor in state.flatten().items()
        if values[BEFORE + name] is not tensor
    }


def tokenizer_entries(tokenizer: Tokenizer) -> dict[str, Any]:
    """What encoding and decoding need without Elman: tokenizer.json, and the text of each id."""
    if ":" in tokenizer.kind:
        raise UsageError(
            f"the tokenizer {tokenizer.kind} is code from outside Elman, which cannot be "
            "converted to ONNX",
            "train with a tokenizer of Elman's: char, byte, bpe, word or pretokenized",
        )
    return {
        "tokenizer": json.loads(tokenizer.to_json()),
        "kind": tokenizer.kind,
        "spellings": tokenizer.spellings(),
        "boundary": tokenizer.boundary_id,
        "unknown": tokenizer.unknown_id,
        "lowercase": tokenizer.lowercase,
    }


def entries_of(metadata: Mapping[str, str], path: Path) -> dict[str, Any]:
    """The entries of a file's metadata."""
    if "elman" not in metadata:
        raise UsageError(
            f"{path} was not written by Elman", "make one of a run: elman convert RUN model.onnx"
        )
    try:
        entries = {key: json.loads(value) for key, value in metadata.items()}
        found = entries["elman"]["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(path, str(error)) from error
    if found != FORMAT:
        raise UsageError(f"{path} has format {found}; this version reads {FORMAT}", "upgrade elman")
    return entries


def refuse_embeddings(run: Any) -> None:
    """Refuse a model that reads the vectors of another one."""
    if run.model.embeddings.wanted:
        raise UsageError(
            f"{run.path} reads the vectors of another model, which cannot be converted to ONNX",
            "train without --embeddings",
        )
