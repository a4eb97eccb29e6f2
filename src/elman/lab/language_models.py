"""What experiments with character language models share: a text, settings, learning curves.

The text is Python's reference manual, a built-in corpus (for the larger size: the source code of
the standard library), without its repeated paragraphs. It is in random order by sections, so that
each seed trains and measures on other parts of it.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from elman.api import load
from elman.base.files import write_text
from elman.decode.beam import beam_search
from elman.decode.options import DecodeOptions
from elman.decode.sample import sample
from elman.lab.experiment import Row, Trial
from elman.lab.training import fitted
from elman.tasks.language_model_handle import LM
from elman.text.corpora import materialise

CORPORA = {"tiny": "python-docs", "small": "python-docs", "large": "python-source"}
LARGER = "The larger size learns 12 MB of source code, Python's standard library, with more units."
PROMPT = 32
"""Characters of a prompt."""
SECTION = 4000
"""The least characters of a section: what keeps its order."""
CHARACTER_MODEL: Mapping[str, Any] = {
    "tokenizer.kind": "char",
    "optimiser.kind": "adam",
    "schedule.kind": "constant",
    "schedule.warmup_steps": 20,
    "training.sample_length": 0,
}
"""Settings of all neural models: a constant rate, so that any two points of two learning curves can
be compared."""


def text_of(trial: Trial) -> str:
    """The text, with its sections in this trial's order."""
    (path,) = materialise(CORPORA[trial.size])
    paragraphs = dict.fromkeys(re.split(r"\n\s*\n", path.read_text(encoding="utf-8")))
    sections = [""]
    for paragraph in paragraphs:
        if len(sections[-1]) >= SECTION:
            sections.append("")
        sections[-1] += paragraph.strip("\n") + "\n\n"
    random.Random(trial.seed).shuffle(sections)
    text = "".join(sections)
    return text[: trial.pick(tiny=30_000, small=len(text), large=len(text))]


def write_parts(trial: Trial, **shares: float) -> dict[str, Path]:
    """Write a file for each part of the text, by the part's share of it."""
    text, start, paths = text_of(trial), 0.0, {}
    for name, share in shares.items():
        end = start + share
        paths[name] = trial.folder / f"{name}.txt"
        write_text(paths[name], text[round(start * len(text)) : round(end * len(text))])
        start = end
    return paths


def curve(
    trial: Trial,
    parts: Mapping[str, Path],
    name: str,
    model: Mapping[str, Any],
    *,
    steps: int,
    batch: tuple[int, int],
    points: int = 8,
    task: str = "lm",
    settings: Mapping[str, Any] | None = None,
) -> Iterator[Row]:
    """Train on the part `train` in the folder `name`; yield the loss on `valid` at points.

    `model` has settings of the model; `settings` have dotted names. `batch`: lanes, and characters
    of each in an update.
    """
    chosen = {**CHARACTER_MODEL, "training.validate_every": max(1, steps // points)}
    chosen |= {"training.batch_size": batch[0], "training.chunk_length": batch[1]}
    # A GRU of 512 units diverges with the higher rate.
    chosen["optimiser.learning_rate"] = trial.pick(tiny=0.005, small=0.005, large=0.002)
    chosen |= {f"model.{key}": value for key, value in model.items()} | dict(settings or {})
    reports = fitted(
        *(trial, task, [parts["train"]]),
        valid=[parts["valid"]],
        out=name,
        settings=chosen,
        steps=steps,
    )
    for report in reports:
        if report.kind == "valid" and report.valid_loss is not None:
            yield {"arm": name, "update": report.step, "loss": round(report.valid_loss, 5)}


def counted(trial: Trial, parts: Mapping[str, Path], name: str, order: int) -> float:
    """Count a Kneser-Ney model in the folder `name`; return its loss on `valid`."""
    settings = {"tokenizer.kind": "char", "model.order": order}
    data = [parts["train"]]
    *_, done = fitted(trial, "ngram", data, valid=[parts["valid"]], out=name, settings=settings)
    assert done.summary is not None
    return round(math.log(done.summary["perplexity"]), 5)


def judging(
    trial: Trial, number: int, length: int
) -> tuple[dict[str, Path], LM, list[str], list[str]]:
    """Write the parts of the text, and count a judge on one that no other model reads.

    Return the parts, the judge, and prompts from places all over a text, with what people wrote
    after them.
    """
    parts = write_parts(trial, train=0.5, other=0.4, valid=0.1)
    counted(trial, {**parts, "train": parts["other"]}, "judge", 6)
    judge = load(trial.folder / "judge", device="cpu", kind=LM)
    text = parts["valid"].read_text(encoding="utf-8")
    last = len(text) - PROMPT - length
    places = [round(i * last / max(1, number - 1)) for i in range(number)]
    prompts = [text[place : place + PROMPT] for place in places]
    return parts, judge, prompts, [text[p + PROMPT : p + PROMPT + length] for p in places]


def continued(lm: LM, prompts: Sequence[str], **options: Any) -> list[str]:
    """Continue each prompt by `max_tokens` characters."""
    chosen = DecodeOptions(**options)
    ids = [[int(id) for id in lm.tokenizer.encode(prompt)] for prompt in prompts]
    boundary_id = lm.tokenizer.boundary_id
    if chosen.beam_size > 1:
        found = beam_search(lm.decoding, ids, chosen, boundary_id=boundary_id)
        return [lm.tokenizer.decode(best[0].tokens) for best in found]
    said: list[list[int]] = [[] for _ in prompts]
    for step in sample(lm.decoding, ids, chosen, boundary_id=boundary_id):
        said[step.row].append(step.token)
    return [lm.tokenizer.decode(tokens) for tokens in said]


def surprisals(judge: LM, prompts: Sequence[str], texts: Sequence[str]) -> list[list[float]]:
    """Nats of each character of each text under another model, after its prompt."""
    found = []
    for prompt, text in zip(prompts, texts, strict=True):
        before, own = ([int(i) for i in judge.tokenizer.encode(part)] for part in (prompt, text))
        ids = torch.tensor([[judge.tokenizer.boundary_id, *before, *own]])
        state = judge.model.initial_state(1)
        logprobs_BT, _ = judge.model.logprobs(ids[:, :-1], ids[:, 1:], state)
        found.append([-float(value) for value in logprobs_BT[0, len(before) :]])
    return found
