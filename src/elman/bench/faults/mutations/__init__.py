"""Damage to files: pure functions `(random, bytes) -> bytes`, in tables by name.

`MUTATIONS[kind]` are those that suit a kind of file: the ones of any bytes, and those that know the
structure, so that the damage gets past the first check of a format. `places` damage the entry in
the folder instead.

    any_bytes    bytes of any format
    values       JSON and TOML
    tensors      safetensors
    lines        text, columns, ARPA
    compressed   gzip and Zstandard
    arrays       word vectors, HDF5, pictures
    places       what can lie where a file should
"""

from __future__ import annotations

from collections.abc import Mapping

from elman.bench.faults.mutations.any_bytes import ANY, Mutation
from elman.bench.faults.mutations.arrays import HDF5, PICTURE, word2vec_header, word2vec_long_word
from elman.bench.faults.mutations.compressed import GZ, ZST
from elman.bench.faults.mutations.lines import ARPA, COLUMNS, LINES
from elman.bench.faults.mutations.tensors import SAFETENSORS
from elman.bench.faults.mutations.values import (
    JSON,
    VALUES,
    on_json_line,
    toml_change,
    toml_structure,
)

MUTATIONS: Mapping[str, Mapping[str, Mutation]] = {
    "json": {**ANY, **JSON},
    "tokenizer": {**ANY, **JSON},
    "jsonl": {**ANY, **LINES, **{f"json-{n}": on_json_line(c) for n, c in VALUES.items()}},
    "toml": {
        **ANY,
        **LINES,
        **{f"toml-{i}": toml_change for i in range(1, 9)},
        "toml": toml_structure,
    },
    "lines": {**ANY, **LINES},
    "columns": {**ANY, **COLUMNS},
    "arpa": {**ANY, **ARPA},
    "gz": {**ANY, **GZ},
    "zst": {**ANY, **ZST},
    "safetensors": {**ANY, **SAFETENSORS},
    "word2vec": {
        **ANY,
        "counts": word2vec_header,
        "counts-2": word2vec_header,
        "long-word": word2vec_long_word,
    },
    "hdf5": {**ANY, **HDF5},
    "picture": {**ANY, **PICTURE},
    "bytes": ANY,
}
"""The mutations of each kind of file, by name."""
