"""Texts for experiments: built-in corpora, split by the seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from elman.lab.experiment import Trial
from elman.text.corpora import materialise


def paragraphs(corpus: str = "python-docs") -> list[str]:
    """The paragraphs of a built-in corpus, a line each."""
    (path,) = materialise(corpus)
    found = path.read_text(encoding="utf-8").split("\n\n")
    return [" ".join(each.split()) for each in found if each.strip()]


def split(trial: Trial, lines: Sequence[str], held_out: float = 0.1) -> tuple[Path, Path]:
    """Write files of lines to train and to test on; the seed decides which are held out."""
    shuffled = random.Random(trial.seed).sample(lines, len(lines))
    cut = max(1, int(held_out * len(shuffled)))
    return written(trial, "train.txt", shuffled[cut:]), written(trial, "test.txt", shuffled[:cut])


def written(trial: Trial, name: str, lines: Sequence[str]) -> Path:
    path = trial.folder / name
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path
