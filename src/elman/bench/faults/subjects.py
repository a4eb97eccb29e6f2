"""Tiny data and settings for each task: a run takes a fraction of a second and has all its files.

A task that is not listed reads the text and takes the settings that every task has.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from elman.tasks import task_named

_SENTENCES = [
    f"the {who} {verb} {whose} {thing} ."
    for who, verb, whose, thing in product(
        ("pupil", "teacher", "old professor"),
        ("opened", "lost"),
        ("the", "her"),
        ("book", "exam paper", "window", "key"),
    )
]
TEXT = "".join(f"{sentence}\n" for sentence in _SENTENCES)
_TAGS = {"the": "DET", "her": "DET", "opened": "VERB", "lost": "VERB", ".": "PUNCT"}


def _text(folder: Path) -> list[Path]:
    return [_written(folder / "text.txt", TEXT)]


def _pairs(folder: Path) -> list[Path]:
    backwards = "".join(" ".join(reversed(line.split())) + "\n" for line in _SENTENCES)
    return [*_text(folder), _written(folder / "text.backwards", backwards)]


def _tagged(folder: Path) -> list[Path]:
    blocks = (
        "".join(f"{word}\t{_TAGS.get(word, 'NOUN')}\n" for word in line.split())
        for line in _SENTENCES
    )
    return [_written(folder / "tagged.tsv", "\n".join(blocks))]


def _labelled(folder: Path) -> list[Path]:
    lines = (f"{'good' if 'opened' in line else 'bad'}\t{line}\n" for line in _SENTENCES)
    return [_written(folder / "labelled.tsv", "".join(lines))]


def _by_label(folder: Path) -> list[Path]:
    parts = {"found": "opened", "missed": "lost"}
    for name, verb in parts.items():
        lines = (f"{line}\n" for line in _SENTENCES if verb in line)
        _written(folder / "labels" / f"{name}.txt", "".join(lines))
    return [folder / "labels"]


def _pictures(folder: Path) -> list[Path]:
    rows = ["image\tsentence"]
    colours = {"red": (255, 0, 0), "green": (0, 128, 0), "blue": (0, 0, 255), "black": (0, 0, 0)}
    for number in range(24):
        name = list(colours)[number % 4]
        (folder / "images").mkdir(exist_ok=True)
        (folder / "images" / f"{number}.png").write_bytes(one_colour(colours[name]))
        rows.append(f"{number}.png\tThere is a {name} wall.")
    return [_written(folder / "walls.tsv", "\n".join(rows) + "\n")]


def one_colour(colour: tuple[int, int, int]) -> bytes:
    """A small PNG of one colour."""
    width, height = 6, 4
    rows = (b"\0" + bytes(colour) * width) * height
    header = struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )


def _written(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


_LOOP = {
    "training.batch_size": 4,
    "training.report_every": 2,
    "training.validate_every": 2,
    "training.checkpoint_seconds": 0,
}
_SAMPLE = {"training.sample_length": 3}
_LANES = {**_SAMPLE, "training.chunk_length": 8, "tokenizer.kind": "word"}
_DECODER = {
    **_SAMPLE,
    "tokenizer.kind": "word",
    "model.decoder.hidden_size": 4,
    "model.decoder.embedding_size": 4,
}
STEPS = 4


@dataclass(frozen=True)
class Subject:
    """What to train on, and how."""

    task: str
    data: Callable[[Path], list[Path]] = _text
    """Writes the data into a folder; returns the arguments."""
    settings: Mapping[str, object] = field(default_factory=dict)
    options: Sequence[str] = ()
    constants: Mapping[str, int] = field(default_factory=dict)
    """Limits of Elman, package.module:NAME, to lower for data this small."""

    @property
    def counts(self) -> bool:
        """Whether the task is fitted in one go, so that there is nothing to resume."""
        return task_named(self.task).fit is not None

    def command(self, data: Sequence[Path]) -> list[str]:
        """The command line that trains, without --out."""
        settings = dict(self.settings) if self.counts else {**_LOOP, **self.settings}
        words = ["train", self.task, *map(str, data), *self.options]
        if not self.counts:
            words += ["--steps", str(STEPS), "--seed", "3", "--device", "cpu"]
        for name, value in settings.items():
            words += ["--set", f"{name}={value}"]
        return words


_SMALL = {"model.hidden_size": 4, "model.embedding_size": 4}
SUBJECTS = {
    "lm": [Subject("lm", settings={**_LANES, **_SMALL})],
    "window": [Subject("window", settings={**_LANES, **_SMALL})],
    "maxent": [Subject("maxent", settings={**_LANES, "model.size": 64, "model.head.kind": "full"})],
    "ngram": [
        Subject("ngram", options=("--order", "3", "--arpa", "out/model.arpa")),
        Subject(
            "ngram",
            options=("--order", "3", "--memory", "4K"),
            constants={
                "elman.ngrams.scratch:SMALLEST_MEMORY": 1,
                "elman.ngrams.scratch:LEAST_ROOM": -(1 << 62),
            },
        ),
    ],
    "snm": [Subject("snm", settings={"model.num_epochs": 1}, options=("--order", "3"))],
    "infinigram": [Subject("infinigram", options=("--order", "3"))],
    "tagger": [Subject("tagger", _tagged, {"model.hidden_size": 4, "model.character_size": 4})],
    "classifier": [Subject("classifier", _labelled, _SMALL)],
    "translator": [Subject("translator", _pairs, {**_DECODER, "model.decoder.tied": "false"})],
    "captioner": [Subject("captioner", _pictures, {**_DECODER, "model.channels": "[2, 3]"})],
    "conditional": [Subject("conditional", _by_label, _DECODER)],
    "elmo": [
        Subject(
            "elmo",
            settings={
                "model.hidden_size": 4,
                "model.character_cnn.filters": "[2, 2]",
                "model.head.num_samples": 5,
            },
        )
    ],
}
"""By task. The second n-gram model is counted on disk."""


def subjects(task: str) -> list[Subject]:
    return SUBJECTS.get(task, [Subject(task)])
