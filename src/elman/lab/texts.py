"""Texts for experiments: built-in corpora, split by the seed; files of labels and of tags."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from elman.lab.experiment import Trial
from elman.text.corpora import materialise


def paragraphs(corpus: str = "python-docs") -> list[str]:
    """The paragraphs of a built-in corpus, a line each; repeated ones once.

    Python's topics overlap: a paragraph that is held out must not be in the training text as well.
    """
    (path,) = materialise(corpus)
    found = path.read_text(encoding="utf-8").split("\n\n")
    return list(dict.fromkeys(" ".join(each.split()) for each in found if each.strip()))


def split(
    trial: Trial, lines: Sequence[str], held_out: float = 0.1, *, one_stretch: bool = False
) -> tuple[Path, Path]:
    """Write files of lines to train and to test on; the seed decides which are held out.

    They are drawn from everywhere, or (`one_stretch`) follow one another.
    """
    draw = random.Random(trial.seed)
    number = max(1, int(held_out * len(lines)))
    start = draw.randrange(len(lines))
    turned = [*lines[start:], *lines[:start]] if one_stretch else draw.sample(lines, len(lines))
    train = written(trial, "train.txt", turned[number:])
    return train, written(trial, "test.txt", turned[:number])


def written(trial: Trial, name: str, lines: Sequence[str]) -> Path:
    path = trial.folder / name
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def write_labelled(path: Path, rows: Iterable[tuple[str, str]]) -> None:
    """Write a table of labels and texts."""
    path.write_text("".join(f"{label}\t{text}\n" for label, text in rows), encoding="utf-8")


def write_tagged(path: Path, rows: Iterable[tuple[Sequence[str], Sequence[str]]]) -> None:
    """Write sentences of words and their tags, in columns."""
    sentences = (
        "".join(f"{word}\t{tag}\n" for word, tag in zip(*row, strict=True)) for row in rows
    )
    path.write_text("\n".join(sentences), encoding="utf-8")
