"""Start from an earlier run: its weights and tokenizer on a new text, with a new optimiser.

Pre-train on much text, then fine-tune on a little of another kind. The model and the tokenizer are
those of the run, and so is the unit of text. Without a recipe so are the other settings, but the
length of the run follows from the new text. What the model forgets is measured on the run's own
validation text, before and after.

New words (`training.new_words`) get ids after those of the old ones. Their embeddings and output
vectors start as those of <unk>, and <unk> shares its probability with them. The learning rate is
not lowered: a third of it, and a tenth, were worse after 300 updates
(docs/guides/train.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from elman.base.config import flat, merge, to_dict
from elman.base.errors import ElmanError, UsageError
from elman.batches.encoded import EncodedText, encode_files
from elman.batches.lines import line_end_id
from elman.evaluate.perplexity import evaluate
from elman.runs.machine import Machine
from elman.runs.origin import check_origin
from elman.runs.run_folder import MODEL_FILE, TOKENIZER_FILE, check_vocabulary, require
from elman.tasks import Draft, Proposal
from elman.tasks.language_model import automatic
from elman.tasks.opening import open_run, read_config
from elman.text.sources import expand
from elman.tokens import choose as tokenizer_choice
from elman.tokens.tokenizer import Tokenizer
from elman.train import checkpoint

OWN = ("epochs", "steps", "minutes", "seed", "start")
"""Settings of `training` that are not taken from the earlier run."""
MOST_EARLIER = 50_000
"""Limit on the tokens of the old validation text that are measured."""
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
    base, has_valid, length = draft.base, bool(draft.data.valid), draft.asked.get("training", {})
    if draft.recipe is None:
        chosen = automatic.settings(text, machine, has_valid, length, draft.read_recipe)
        training = {k: v for k, v in settings["training"].items() if k not in OWN}
        lanes = training["batch_size"], training["chunk_length"], int(0.9 * text.num_tokens)
        if (fewer := automatic.fitting_lanes(*lanes)) < training["batch_size"]:
            training |= {"batch_size": fewer, "accumulate": 1}
        base = {
            "data": chosen["data"],
            "objective": settings["objective"],
            "optimiser": settings["optimiser"],
            "schedule": settings["schedule"],
            "training": training | {"epochs": chosen["training"]["epochs"]},
        }
    unit = settings["data"]["unit"]
    unused = _unused(draft, unit, start)
    base = base | {
        "data": {**base.get("data", {}), "unit": unit},
        "model": settings["model"],
        "tokenizer": {"kind": tokenizer.kind, "file": str(file)},
    }
    asked = {name: value for name, value in draft.asked.items() if name != "tokenizer"}

    def notes(config: Any) -> list[str]:
        automatically = draft.recipe is None
        plan = automatic.Plan.of(text, machine, has_valid, length)
        return [
            f"weights, tokenizer and model of {start}",
            *unused,
            *(automatic.sentences(config, plan) if automatically else []),
        ]

    return Proposal(base, asked, notes)


def _unused(draft: Draft, unit: str, start: Path) -> list[str]:
    """Notes about settings of the recipe that the run `start` overrides."""
    notes = [
        f"{part} of the recipe is not used: it is that of {start}"
        for part in ("model", "tokenizer")
        if part in draft.base
    ]
    if draft.base.get("data", {}).get("unit", unit) != unit and not draft.asked["data"].get("unit"):
        notes.append(f"data.unit of the recipe is not used: it is {unit} in {start}")
    return notes


def load_start(model: nn.Module, tokenizer: Tokenizer, start: Path) -> None:
    """Load the weights of the run `start`; `tokenizer` may have new words."""
    require(start, MODEL_FILE, TOKENIZER_FILE)
    tensors, header = checkpoint.read(start / MODEL_FILE)
    old = Tokenizer.load(start / TOKENIZER_FILE)
    if tokenizer.vocab_size == old.vocab_size:
        old = tokenizer
    check_vocabulary(start, old, header)
    if old is not tokenizer:
        assert old.unknown_id is not None
        tensors = _grown(tensors, model, old.vocab_size, tokenizer.vocab_size, old.unknown_id)
    checkpoint.load_weights(model, tensors, start / MODEL_FILE)


def _grown(
    tensors: Mapping[str, Tensor], model: nn.Module, old: int, new: int, unknown_id: int
) -> dict[str, Tensor]:
    """Add rows for new words to the tensors of a model of `old` words."""
    fresh, buffers = model.state_dict(), {name for name, _ in model.named_buffers()}
    share = math.log(new - old + 1)  # <unk> is one of those that share its probability
    grown = dict(tensors)
    for name, tensor in tensors.items():
        target = fresh.get(name)
        if target is None or target.shape == tensor.shape:
            continue
        if name in buffers and tensor.shape == (old,):  # words or ranks, in an order of their own
            grown[name] = torch.cat([tensor, torch.arange(old, new)])
        elif name in buffers:  # made from the vocabulary
            grown[name] = target
        elif target.shape == (len(tensor) + new - old, *tensor.shape[1:]):
            added = target[len(tensor) :]
            if len(tensor) == old:
                added = tensor[unknown_id].expand_as(added)
            grown[name] = torch.cat([tensor, added])
            if tensor.shape == (old,):  # biases
                grown[name][old:] -= share
                grown[name][unknown_id] -= share
    return grown


@dataclass(frozen=True)
class Earlier:
    """The validation text of the run that a model started from, to measure what it forgets.

    Its tokens are those of the old vocabulary also if words were added since, so that the figures
    before and after can be compared.
    """

    start: Path
    text: EncodedText
    tokenizer: Tokenizer
    line_end: int | None

    @classmethod
    def of(cls, start: Path) -> Earlier:
        """Read it; raise an `ElmanError` if it is not here, or if the run is someone else's."""
        config: Any = read_config(start)
        check_origin(start, config)
        tokenizer = Tokenizer.load(start / TOKENIZER_FILE)
        line_end = line_end_id(tokenizer) if config.data.unit == "line" else None
        if config.data.valid:
            text = encode_files(expand(config.data.valid), tokenizer)
        else:
            whole = encode_files(expand(config.data.train), tokenizer)
            text = whole.split(1 - config.data.valid_fraction, line_end)[1]
        if not text.num_tokens:
            raise ElmanError("it is empty")
        return cls(start, text.beginning(MOST_EARLIER), tokenizer, line_end)

    def perplexity(self, model: Any) -> float:
        found = evaluate(
            model,
            self.text,
            boundary_id=self.tokenizer.boundary_id,
            unknown_id=self.tokenizer.unknown_id,
            line_end=self.line_end,
        )
        return found.perplexity

    def before(self, device: torch.device) -> dict[str, Any]:
        """Measure the model of the run itself."""
        old = open_run(self.start, str(device)).model
        return {
            "run": self.start.name,
            "tokens": self.text.num_tokens,
            "before": self.perplexity(old),
        }


def _refuse_others(
    asked: Mapping[str, Any], settings: Mapping[str, Any], tokenizer: Tokenizer, start: Path
) -> None:
    """Refuse settings of the model and the tokenizer that differ from those of the run."""
    if asked.get("model", {}).get("vectors"):
        raise UsageError(
            f"model.vectors are not read: the embeddings are those of {start}",
            "drop --vectors, or train a new model without --from",
        )
    had = flat(settings)
    parts = {part: asked.get(part, {}) for part in ("model", "tokenizer")}
    for path, value in flat(to_dict(parts)).items():
        name = path.rpartition(".")[2]
        if path.startswith("model.") and (name in FREE or name.startswith("dropout")):
            continue
        if path == "tokenizer.file" and Tokenizer.load(Path(value)).hash == tokenizer.hash:
            continue
        if value != had.get(path):
            raise UsageError(
                f"{path} cannot be {value}: it is {had.get(path)} in {start}",
                "drop the setting, or train a new model without --from",
            )
