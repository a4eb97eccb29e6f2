"""Damage to files of tensors: headers, metadata, numbers."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from random import Random
from typing import Any

from elman.bench.faults.mutations.any_bytes import Mutation
from elman.bench.faults.mutations.values import (
    DIGITS_MARK,
    delete_entry,
    json_text,
    many_digits,
    nest_value,
    odd_number,
    odd_value,
    other_top,
)


def split_safetensors(data: bytes) -> tuple[dict[str, Any], bytes]:
    (size,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def join_safetensors(random: Random, header: Any, body: bytes) -> bytes:
    text = json_text(header, random).encode("utf-8", "surrogatepass")
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def on_header(change: Callable[[Random, Any], Any]) -> Mutation:
    def mutate(random: Random, data: bytes) -> bytes:
        header, body = split_safetensors(data)
        return join_safetensors(random, change(random, header), body)

    return mutate


def on_metadata(change: Callable[[Random, Any], Any]) -> Mutation:
    """Change a value inside the JSON text that is a metadata entry."""

    def mutate(random: Random, data: bytes) -> bytes:
        header, body = split_safetensors(data)
        entries = header.get("__metadata__") or {"elman": "{}"}
        name = random.choice(sorted(entries))
        try:
            value = change(random, json.loads(entries[name]))
        except ValueError:
            value = entries[name]
        entries[name] = json_text(value, random)
        header["__metadata__"] = entries
        return join_safetensors(random, header, body)

    return mutate


def _tensor(random: Random, header: dict[str, Any]) -> dict[str, Any]:
    names = [name for name in header if name != "__metadata__"]
    found: dict[str, Any] = header[random.choice(names)]
    return found


def wrong_dtype(random: Random, header: Any) -> Any:
    odd = ("F64", "F32", "F16", "BF16", "I64", "I32", "U8", "BOOL", "F8_E4M3", "X", "", 3, None)
    _tensor(random, header)["dtype"] = random.choice(odd)
    return header


def wrong_shape(random: Random, header: Any) -> Any:
    tensor = _tensor(random, header)
    shape = list(tensor["shape"])
    tensor["shape"] = random.choice(
        (
            *([], [0], [-1], [2**40], [2**63], [2**32, 2**32], [1.5], ["3"], None, shape[::-1]),
            *([size + 1 for size in shape], [*shape, 1], [10**9, 0], [DIGITS_MARK]),
        )
    )
    return header


def wrong_offsets(random: Random, header: Any) -> Any:
    tensor = _tensor(random, header)
    start, end = tensor["data_offsets"]
    tensor["data_offsets"] = random.choice(
        (
            *([start + 1, end + 1], [start, end - 1], [start, end + 4], [end, start], [0, 0]),
            *([start, 2**63], [-8, end], [2**62, 2**62 + end - start], [start], [start, end, end]),
            *(None, "0", [float(start), float(end)], [0, end - start]),
        )
    )
    return header


def missing_tensor(random: Random, header: Any) -> Any:
    del header[random.choice([name for name in header if name != "__metadata__"])]
    return header


def extra_tensor(random: Random, header: Any) -> Any:
    header["extra"] = {**_tensor(random, header)}
    return header


def exchange_tensors(random: Random, header: Any) -> Any:
    names = [name for name in header if name != "__metadata__"]
    one, other = random.choice(names), random.choice(names)
    header[one], header[other] = header[other], header[one]
    return header


def no_metadata(random: Random, header: Any) -> Any:
    header["__metadata__"] = random.choice((None, {}, [], "x", {"elman": 1}, {"elman": "[]"}))
    if random.random() < 0.3:
        del header["__metadata__"]
    return header


def header_size(random: Random, data: bytes) -> bytes:
    (size,) = struct.unpack("<Q", data[:8])
    odd = (0, 1, size - 1, size + 1, size + 8, 2**31, 2**40, 2**63, 2**64 - 1, len(data), size * 2)
    return struct.pack("<Q", random.choice(odd)) + data[8:]


def header_of_digits(random: Random, data: bytes) -> bytes:
    header, body = split_safetensors(data)
    return join_safetensors(random, {**header, "extra": DIGITS_MARK}, body)


def not_finite(random: Random, data: bytes) -> bytes:
    """Put NaN or infinity into the numbers of a tensor; a checksum, if any, is then wrong."""
    header, body = split_safetensors(data)
    start, end = _tensor(random, header)["data_offsets"]
    value = random.choice((b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\0\0\x80\xff"))
    return join_safetensors(
        random, header, body[:start] + value * ((end - start) // 4) + body[end:]
    )


def extra_body(random: Random, data: bytes) -> bytes:
    header, body = split_safetensors(data)
    at = random.choice((0, len(body), random.randrange(len(body) + 1)))
    return join_safetensors(
        random, header, body[:at] + bytes(random.choice((1, 4, 64))) + body[at:]
    )


SAFETENSORS: dict[str, Mutation] = {
    "header-size": header_size,
    "header-digits": header_of_digits,
    "header-dtype": on_header(wrong_dtype),
    "header-shape": on_header(wrong_shape),
    "header-shape-2": on_header(wrong_shape),
    "header-offsets": on_header(wrong_offsets),
    "header-offsets-2": on_header(wrong_offsets),
    "header-missing": on_header(missing_tensor),
    "header-extra": on_header(extra_tensor),
    "header-exchange": on_header(exchange_tensors),
    "header-no-metadata": on_header(no_metadata),
    "header-odd": on_header(odd_value),
    "header-nest": on_header(nest_value),
    "header-top": on_header(other_top),
    "metadata-delete": on_metadata(delete_entry),
    "metadata-odd": on_metadata(odd_value),
    "metadata-odd-2": on_metadata(odd_value),
    "metadata-number": on_metadata(odd_number),
    "metadata-digits": on_metadata(many_digits),
    "metadata-nest": on_metadata(nest_value),
    "metadata-top": on_metadata(other_top),
    "not-finite": not_finite,
    "extra-body": extra_body,
}
