"""Damage is seeded, changes what it is given, and takes any bytes."""

from __future__ import annotations

import gzip
import json
from random import Random

import pytest

from elman.bench.faults.mutations import MUTATIONS
from elman.bench.faults.mutations.any_bytes import ANY
from elman.bench.faults.mutations.values import odd_number, on_json, on_json_sealed
from elman.bench.faults.specimens import compress_zst

DOCUMENT = json.dumps({"format": 2, "model": {"size": 8, "name": "x"}, "list": [1, 2, 3]}).encode()
ROWS = b"the\tDET\nbook\tNOUN\n\n" * 8
SOUND = {
    "json": DOCUMENT,
    "tokenizer": DOCUMENT,
    "jsonl": DOCUMENT + b"\n" + DOCUMENT + b"\n",
    "toml": b"a = 1\n[model]\nsize = 8\n",
    "lines": ROWS,
    "columns": ROWS,
    "arpa": b"\\data\\\nngram 1=2\n\n\\1-grams:\n-1\ta\t-1\n-1\tb\n\n\\end\\\n",
    "gz": gzip.compress(ROWS),
    "zst": compress_zst(ROWS),
    "word2vec": b"1 2\na \0\0\0\0\0\0\0\0\n",
    "picture": b"\x89PNG\r\n\x1a\n" + bytes(64),
    "bytes": bytes(range(64)),
}


@pytest.mark.parametrize("kind", SOUND)
def test_a_seed_determines_the_damage(kind: str) -> None:
    for name, mutation in MUTATIONS[kind].items():
        if name == "bomb":
            continue
        once, again = (mutation(Random(f"7 {name}"), SOUND[kind]) for _ in range(2))
        assert once == again, name


@pytest.mark.parametrize("data", [b"", b"x"])
def test_bytes_of_any_length_can_be_damaged(data: bytes) -> None:
    for mutation in ANY.values():
        for seed in range(5):
            assert isinstance(mutation(Random(seed), data), bytes)


def test_a_flip_changes_one_bit() -> None:
    data = bytes(100)
    changed = ANY["flip-bit"](Random(1), data)
    assert sum(byte.bit_count() for byte in changed) == 1


def test_changed_documents_lose_their_seal_or_keep_a_wrong_one() -> None:
    sealed = b'{"size": 8, "check": "0123abcd"}'
    assert "check" not in json.loads(on_json(odd_number)(Random(1), sealed))
    assert json.loads(on_json_sealed(odd_number)(Random(1), sealed))["check"] == "0123abcd"
