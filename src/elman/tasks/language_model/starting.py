"""Go on from an earlier run: its weights and its tokenizer on a new text, with a new optimiser.

Pre-train on much text, then fine-tune on a little of another kind. The model and the tokenizer are
those of the run. Without a recipe so are the other settings, but the length of the run follows from
the new text. The learning rate is not lowered: a third of it, and a tenth, were worse after 300
updates (docs/guides/train.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from elman.base.config import merge, to_dict
from elman.base.errors import UsageError
from elman.runs.machine import Machine
from elman.runs.run_folder import MODEL_FILE, TOKENIZER_FILE, check_vocabulary, require
from elman.tasks import Draft, Proposal
from elman.tasks.language_model import automatic
from elman.tasks.opening import read_config
from elman.text.sources import expand
from elman.tokens import choose as tokenizer_choice
from elman.tokens.tokenizer import Tokenizer
from elman.train import checkpoint

OWN = ("epochs", "steps", "minutes", "seed", "start")
"""Settings of `training` that are not taken from the earlier run."""
FREE = ("weight_drop", "locked", "kernel", "num_samples")
"""Settings of a model that do not change its weights, beside those of dropout."""


def starting_point(draft: Draft) -> Path | None:
    """The run that the settings name as the start; None for a new model."""
    start = merge(draft.base, draft.asked).get("training", {}).get("start")
    return Path(str(start)) if start else None  # types are checked later


def propose(draft: Draft, machine: Machine, start: Path) -> Proposal:
    """Propose the settings of the run `start`; refuse those of the user that contradict it."""
    run: Any = read_config(start)
    if run.task != draft.task:
        raise UsageError(
            f"{start} is a run of `elman train {run.task}`, not of `elman train {draft.task}`",
            f"name a run of elman train {draft.task}",
        )
    require(start, MODEL_FILE, TOKENIZER_FILE)
    file = start / TOKENIZER_FILE
    tokenizer = Tokenizer.load(file)
    settings = to_dict(run)
    if "vectors" in settings["model"]:
        settings["model"]["vectors"] = ""  # the embeddings come from the run, not from a file
    _refuse_others(draft.asked, settings, tokenizer, start)
    text = automatic.Text(tokenizer_choice.choose(expand(draft.data.train)), tokenizer.kind, file)
    base = draft.base
    if draft.recipe is None:
        chosen = automatic.settings(text, machine, has_valid=bool(draft.data.valid))
        training = {k: v for k, v in settings["training"].items() if k not in OWN}
        lanes = training["batch_size"], training["chunk_length"], int(0.9 * text.num_tokens)
        if (fewer := automatic.fitting_lanes(*lanes)) < training["batch_size"]:
            training |= {"batch_size": fewer, "accumulate": 1}
        base = {
            "data": chosen["data"] | {"unit": settings["data"]["unit"]},
            "objective": settings["objective"],
            "optimiser": settings["optimiser"],
            "schedule": settings["schedule"],
            "training": training | {"epochs": chosen["training"]["epochs"]},
        }
    base = base | {
        "model": settings["model"],
        "tokenizer": {"kind": tokenizer.kind, "file": str(file)},
    }
    asked = {name: value for name, value in draft.asked.items() if name != "tokenizer"}

    def notes(config: Any) -> list[str]:
        automatically = draft.recipe is None
        return [
            f"weights, tokenizer and model of {start}",
            *(automatic.sentences(config, text, machine) if automatically else []),
        ]

    return Proposal(base, asked, notes)


def load_start(model: nn.Module, tokenizer: Tokenizer, start: Path) -> None:
    """Load the weights of the run `start`."""
    require(start, MODEL_FILE)
    tensors, header = checkpoint.read(start / MODEL_FILE)
    check_vocabulary(start, tokenizer, header)
    checkpoint.load_weights(model, tensors, start / MODEL_FILE)


def _refuse_others(
    asked: Mapping[str, Any], settings: Mapping[str, Any], tokenizer: Tokenizer, start: Path
) -> None:
    """Refuse settings of the model and the tokenizer that differ from those of the run."""
    if asked.get("model", {}).get("vectors"):
        raise UsageError(
            f"model.vectors are not read: the embeddings are those of {start}",
            "drop --vectors, or train a new model without --from",
        )
    had = dict(_leaves(settings))
    for part in ("model", "tokenizer"):
        for path, value in _leaves({part: asked.get(part, {})}):
            name = path.rpartition(".")[2]
            if part == "model" and (name in FREE or name.startswith("dropout")):
                continue
            if path == "tokenizer.file" and Tokenizer.load(Path(value)).hash == tokenizer.hash:
                continue
            if value != had.get(path):
                raise UsageError(
                    f"{path} cannot be {value}: it is {had.get(path)} in {start}",
                    "drop the setting, or train a new model without --from",
                )


def _leaves(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """The dotted names and the values of nested settings."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", list(value) if isinstance(value, tuple) else value
