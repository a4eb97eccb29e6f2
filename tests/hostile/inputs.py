"""Files and arguments that once did harm: each is a change of a sound specimen, and a command.

Every finding of a campaign gets an entry. Larger ones (lines of 100 MB, archives that unfold to
gigabytes) are made by `elman bench faults` alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from elman.bench.faults.mutations.any_bytes import DEPTH, DIGITS
from elman.bench.faults.mutations.tensors import join_safetensors, split_safetensors
from elman.bench.faults.mutations.values import SEAL

DEEP = "[" * DEPTH + "]" * DEPTH
SCORE = ("score", "words", "some.txt")
INFO = ("info", "ngram")
NGRAM = ("score", "ngram", "some.txt")
RESUME = ("train", "lm", "--out", "words", "--resume", "--steps", "6")


@dataclass(frozen=True)
class Hostile:
    """A damaged file, and the command that reads it."""

    file: str
    damage: Callable[[bytes], bytes]
    command: tuple[str, ...]
    says: str = ""
    """A part of the error."""


def config(**changes: Any) -> Callable[[bytes], bytes]:
    """Set entries of the model's config."""

    def change(data: bytes) -> bytes:
        value = json.loads(SEAL.sub(b"", data))
        value["model"] |= changes
        return json.dumps(value).encode()

    return change


def text(content: str | bytes) -> Callable[[bytes], bytes]:
    data = content.encode() if isinstance(content, str) else content
    return lambda _: data


def header(change: Callable[[Any], Any]) -> Callable[[bytes], bytes]:
    """Change the header of a safetensors file."""

    def mutate(data: bytes) -> bytes:
        found, body = split_safetensors(data)
        return join_safetensors(Random(0), change(found), body)

    return mutate


def all_nan(data: bytes) -> bytes:
    found, body = split_safetensors(data)
    return join_safetensors(Random(0), found, b"\0\0\xc0\x7f" * (len(body) // 4))


HOSTILE: dict[str, Hostile] = {
    "config nested": Hostile("words/config.json", text(DEEP), SCORE, "nested too deeply"),
    "config of digits": Hostile(
        "words/config.json", text('{"format": ' + "9" * DIGITS + "}"), SCORE, "too many digits"
    ),
    "config wide": Hostile("words/config.json", config(hidden_size=16_000), SCORE),
    "config deep": Hostile("words/config.json", config(num_layers=1_000_000), SCORE),
    "config beyond 64 bits": Hostile("words/config.json", config(hidden_size=2**62), SCORE),
    "config not an object": Hostile("words/config.json", text("[]"), SCORE),
    "config changed": Hostile(
        "words/config.json", lambda data: data.replace(b"lstm", b"gru", 1), SCORE
    ),
    "recipe nested": Hostile(
        *("recipe.toml", text(f"a = {DEEP}")),
        ("train", "lm", "text.txt", "--recipe", "recipe.toml", "--out", "new"),
        "nested too deeply",
    ),
    "weights not finite": Hostile("words/model.safetensors", all_nan, SCORE),
    "weights with a header that is a list": Hostile(
        "words/model.safetensors", header(lambda _: []), SCORE
    ),
    "weights with a nested header": Hostile(
        "words/model.safetensors", lambda _: join_safetensors(Random(0), "<deep>", b""), SCORE
    ),
    "weights with a header of digits": Hostile(
        "words/model.safetensors", header(lambda found: {**found, "x": "<digits>"}), SCORE
    ),
    "weights with another tensor": Hostile(
        "words/model.safetensors", lambda data: data + bytes(64), SCORE
    ),
    "n-grams with extra bytes": Hostile(
        "ngram/ngram.safetensors", lambda data: data[:-64] + bytes(64) + data[-64:], NGRAM
    ),
    "n-grams cut short": Hostile("ngram/ngram.safetensors", lambda data: data[:-64], NGRAM),
    "n-grams with a flipped bit": Hostile(
        "ngram/ngram.safetensors",
        lambda data: data[:-40] + bytes([data[-40] ^ 1]) + data[-39:],
        NGRAM,
    ),
    "train state cut short": Hostile(
        "words/train/state.safetensors", lambda data: data[: len(data) // 2], RESUME
    ),
    "metrics not an object": Hostile("words/metrics.jsonl", text("[1]\n"), ("info", "words")),
    "metrics nested": Hostile("words/metrics.jsonl", text(DEEP + "\n"), ("info", "words")),
    "summary of another type": Hostile(
        "ngram/metrics.jsonl", text('{"summary": {"tokens": 1, "seconds": "x"}}\n'), INFO
    ),
    "summary without an entry": Hostile(
        "ngram/metrics.jsonl", text('{"summary": {"tokens": 1}}\n'), INFO
    ),
    "tokenizer nested": Hostile("words/tokenizer.json", text(DEEP), SCORE),
    "tokenizer of another type": Hostile("words/tokenizer.json", text('{"model": []}'), SCORE),
    "zst cut short": Hostile(
        "some.txt.zst", lambda data: data[:-8], ("score", "words", "some.txt.zst")
    ),
    "gz cut short": Hostile(
        "some.txt.gz", lambda data: data[:-8], ("score", "words", "some.txt.gz")
    ),
    "mixture of infinite weight": Hostile(
        "some.txt", text("the book\n"), ("score", "inf*words+1*ngram", "some.txt")
    ),
    "mixture of no weight": Hostile(
        "some.txt", text("the book\n"), ("score", "nan*words+1*words", "some.txt")
    ),
    "warmup below zero": Hostile(
        *("some.txt", text("x\n")),
        ("train", "lm", "text.txt", "--set", "schedule.warmup_steps=-1", "--out", "new"),
    ),
    "tokenizer file is a date": Hostile(
        "recipe.toml",
        text("[tokenizer]\nfile = 2020-01-01\n"),
        ("train", "lm", "text.txt", "--recipe", "recipe.toml", "--out", "new"),
        "tokenizer.file",
    ),
    "tokenizer is a function": Hostile(
        *("some.txt", text("x\n")),
        ("train", "ngram", "text.txt", "--set", "tokenizer.kind=os:getcwd", "--out", "new"),
        "not a tokenizer",
    ),
    "setting nested": Hostile(
        *("some.txt", text("x\n")),
        ("train", "lm", "text.txt", "--set", f"model.hidden_size={DEEP}", "--out", "new"),
    ),
}
"""By the name of the finding."""

NO_FILES = {
    "words/config.json": SCORE,
    "words/tokenizer.json": SCORE,
    "words/model.safetensors": SCORE,
    "words/train/state.safetensors": RESUME,
    "words/metrics.jsonl": RESUME,
    "text.txt": ("train", "lm", "text.txt", "--steps", "1", "--out", "new"),
}
"""Files that were waited for when they were pipes, and read without end when they were devices."""
