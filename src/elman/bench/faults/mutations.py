"""Damage to files: pure functions `(random, bytes) -> bytes`, in tables by name.

`MUTATIONS[kind]` are those that suit a kind of file: the ones of any bytes, and those that know the
structure, so that the damage gets past the first check of a format. `PLACES` damage the entry in
the folder instead: a FIFO, a folder or a dangling link where a file should be.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

Mutation = Callable[[Random, bytes], bytes]

DEPTH = 100_000
"""Levels of nested brackets: more than any parser that recurses can take."""
DIGITS = 5_000
"""Digits of a number: more than Python converts by default (4,300)."""
_DEEP_MARK, _DIGITS_MARK = "<deep>", "<digits>"


# Bytes of any format.


def _span(random: Random, data: bytes) -> tuple[int, int]:
    """A random part, mostly short."""
    start = random.randrange(len(data) + 1)
    return start, min(len(data), start + random.choice((1, 2, 7, 64, 1024)))


def flip_bit(random: Random, data: bytes) -> bytes:
    changed = bytearray(data)
    if changed:
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def flip_many_bits(random: Random, data: bytes) -> bytes:
    for _ in range(random.choice((2, 8, 64))):
        data = flip_bit(random, data)
    return data


def truncate(random: Random, data: bytes) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def cut_end(random: Random, data: bytes) -> bytes:
    return data[: -random.choice((1, 2, 4, 8))]


def cut_beginning(random: Random, data: bytes) -> bytes:
    return data[random.choice((1, 2, 4, 8, 100)) :]


def insert_bytes(random: Random, data: bytes) -> bytes:
    at, _ = _span(random, data)
    return data[:at] + random.randbytes(random.choice((1, 4, 100))) + data[at:]


def remove_block(random: Random, data: bytes) -> bytes:
    start, end = _span(random, data)
    return data[:start] + data[end:]


def repeat_block(random: Random, data: bytes) -> bytes:
    start, end = _span(random, data)
    return data[:end] + data[start:end] * random.choice((1, 3)) + data[end:]


def swap_blocks(random: Random, data: bytes) -> bytes:
    a, b, c, d = sorted(random.randrange(len(data) + 1) for _ in range(4))
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def zero_block(random: Random, data: bytes) -> bytes:
    start, end = _span(random, data)
    return data[:start] + bytes(end - start) + data[end:]


def fill_block(random: Random, data: bytes) -> bytes:
    start, end = _span(random, data)
    return data[:start] + b"\xff" * (end - start) + data[end:]


def append_bytes(random: Random, data: bytes) -> bytes:
    return data + random.choice((b"\0", b"\n", b"}", random.randbytes(100), bytes(4096)))


def double(random: Random, data: bytes) -> bytes:
    return data + data


def empty(random: Random, data: bytes) -> bytes:
    return b""


def all_zero(random: Random, data: bytes) -> bytes:
    return bytes(len(data))


def noise(random: Random, data: bytes) -> bytes:
    return random.randbytes(min(len(data), 4096))


ANY: dict[str, Mutation] = {
    "flip-bit": flip_bit,
    "flip-many": flip_many_bits,
    "truncate": truncate,
    "cut-end": cut_end,
    "cut-beginning": cut_beginning,
    "insert": insert_bytes,
    "remove": remove_block,
    "repeat": repeat_block,
    "swap": swap_blocks,
    "zeros": zero_block,
    "ones": fill_block,
    "append": append_bytes,
    "double": double,
    "empty": empty,
    "all-zero": all_zero,
    "noise": noise,
}


# Values: JSON and TOML.


ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 0.5, -0.0, 1e308, float("nan"), float("inf"), -float("inf")),
    *(2**31, 2**63, 2**64, -(2**63), "", "x", "\0", "../../etc/passwd", "é" * 300, [], {}),
    *([[]], {"a": 1}, [1, "2", None], _DEEP_MARK, _DIGITS_MARK),
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to all values inside a value."""
    found = [path]
    if isinstance(value, (dict, list)):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            found += _places(each, (*path, key))
    return found


def _parent(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        value = value[key]
    return value


def _somewhere(random: Random, value: Any, wanted: Callable[[Any], bool] = bool) -> Any:
    """A random path below the top, mostly to a value near the top; None if there is none."""
    paths = [path for path in _places(value) if path and wanted(_parent(value, path)[path[-1]])]
    if not paths:
        return None
    near = [path for path in paths if len(path) <= 2]
    return random.choice(near if near and random.random() < 0.5 else paths)


def _anything(value: Any) -> bool:
    return True


def delete_entry(random: Random, value: Any) -> Any:
    if path := _somewhere(random, value, _anything):
        del _parent(value, path)[path[-1]]
    return value


def rename_key(random: Random, value: Any) -> Any:
    paths = [path for path in _places(value) if path and isinstance(path[-1], str)]
    if paths:
        path = random.choice(paths)
        parent = _parent(value, path)
        new = random.choice((path[-1] + "x", path[-1].upper(), "", "é", "__class__"))
        parent[new] = parent.pop(path[-1])
    return value


def odd_value(random: Random, value: Any) -> Any:
    if path := _somewhere(random, value, _anything):
        _parent(value, path)[path[-1]] = random.choice(ODD_VALUES)
    return value


def odd_number(random: Random, value: Any) -> Any:
    """Replace a number by one that its reader may not expect."""
    path = _somewhere(random, value, lambda each: type(each) in (int, float))
    if path:
        parent = _parent(value, path)
        now = parent[path[-1]]
        parent[path[-1]] = random.choice(
            (
                now + 1,
                now - 1,
                -now,
                now * 1000,
                now + 0.5,
                2**31,
                2**63,
                10**9,
                1e400,
                -1,
                str(now),
            )
        )
    return value


def many_digits(random: Random, value: Any) -> Any:
    if path := _somewhere(random, value, _anything):
        _parent(value, path)[path[-1]] = _DIGITS_MARK
    return value


def nest_value(random: Random, value: Any) -> Any:
    if path := _somewhere(random, value, _anything):
        _parent(value, path)[path[-1]] = _DEEP_MARK
    return value


def duplicate_entry(random: Random, value: Any) -> Any:
    path = _somewhere(random, value, lambda each: isinstance(each, list) and bool(each))
    if path:
        parent = _parent(value, path)
        where = random.randrange(len(parent[path[-1]]))
        parent[path[-1]].insert(where, parent[path[-1]][where])
    return value


def exchange_values(random: Random, value: Any) -> Any:
    paths = [path for path in _places(value) if path]
    if len(paths) > 1:
        one, other = random.sample(paths, 2)
        if one != other[: len(one)] and other != one[: len(other)]:
            a, b = _parent(value, one), _parent(value, other)
            a[one[-1]], b[other[-1]] = b[other[-1]], a[one[-1]]
    return value


def other_top(random: Random, value: Any) -> Any:
    return random.choice((None, 1, "x", [], {}, [value], {"a": value}, True, 1.5, _DEEP_MARK))


VALUES: dict[str, Callable[[Random, Any], Any]] = {
    "delete-entry": delete_entry,
    "rename-key": rename_key,
    "odd-value": odd_value,
    "odd-value-2": odd_value,
    "odd-number": odd_number,
    "odd-number-2": odd_number,
    "digits": many_digits,
    "nest": nest_value,
    "duplicate": duplicate_entry,
    "exchange": exchange_values,
    "other-top": other_top,
}

SEAL = re.compile(rb',?\s*"check": "[0-9a-f]{8}"')


def _json_text(value: Any, random: Random, indent: int | None = None) -> str:
    """JSON of a value, with the marks for nested values and long numbers replaced."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    text = text.replace(f'"{_DIGITS_MARK}"', "9" * DIGITS)
    return text.replace(f'"{_DEEP_MARK}"', _deep(random))


def _deep(random: Random) -> str:
    return random.choice(
        ("[" * DEPTH + "]" * DEPTH, '{"a":' * DEPTH + "1" + "}" * DEPTH, "[" * DEPTH)
    )


def on_json(change: Callable[[Random, Any], Any]) -> Mutation:
    """Parse, change and write a document; without its seal, as if changed on purpose."""

    def mutate(random: Random, data: bytes) -> bytes:
        value = change(random, json.loads(SEAL.sub(b"", data)))
        return _json_text(value, random, indent=2).encode("utf-8", "surrogatepass")

    return mutate


def on_json_sealed(change: Callable[[Random, Any], Any]) -> Mutation:
    """Change a value of a document and keep its seal, which is then wrong."""

    def mutate(random: Random, data: bytes) -> bytes:
        seal = SEAL.search(data)
        changed = on_json(change)(random, data)
        end = changed.rstrip().removesuffix(b"}")
        return end + seal[0] + b"}\n" if seal and end != changed.rstrip() else changed

    return mutate


def on_json_line(change: Callable[[Random, Any], Any]) -> Mutation:
    """Change one line of JSON lines, without its seal."""

    def mutate(random: Random, data: bytes) -> bytes:
        lines = data.splitlines()
        where = random.randrange(len(lines))
        value = change(random, json.loads(SEAL.sub(b"", lines[where])))
        lines[where] = _json_text(value, random).encode("utf-8", "surrogatepass")
        return b"\n".join(lines) + b"\n"

    return mutate


def on_json_text(random: Random, data: bytes) -> bytes:
    """Write it in another way that JSON allows, or nearly."""
    text = data.decode()
    return random.choice(
        (
            b"\xef\xbb\xbf" + data,
            data.replace(b"\n", b"\r\n"),
            text.encode("utf-16"),
            text.encode("utf-32"),
            b"// comment\n" + data,
            data.replace(b",", b",,", 1),
            data.replace(b'"', b"'", 2),
            data.replace(b"{", b'{"a": "\\ud800", ', 1),
            data.replace(b"{", b'{"a": NaN, ', 1),
            data.replace(b"{", b'{"a": -Infinity, ', 1),
        )
    )


def deep_document(random: Random, data: bytes) -> bytes:
    return _deep(random).encode()


JSON: dict[str, Mutation] = {
    **{f"json-{name}": on_json(change) for name, change in VALUES.items()},
    "json-sealed-odd": on_json_sealed(odd_value),
    "json-sealed-number": on_json_sealed(odd_number),
    "json-text": on_json_text,
    "json-deep": deep_document,
}


def toml_change(random: Random, data: bytes) -> bytes:
    """Replace the value of a key, as text."""
    lines = data.decode().splitlines()
    where = random.choice([i for i, line in enumerate(lines) if " = " in line])
    key = lines[where].split(" = ")[0]
    odd = (
        *("nan", "inf", "-inf", "0", "-1", "1e400", "9" * DIGITS, "''", '""', "[]", "{}", "true"),
        *(
            "[" * DEPTH + "]" * DEPTH,
            "[" * DEPTH,
            "{a=" * DEPTH,
            "1979-05-27",
            "0x7fffffffffffffff",
        ),
        *('"\\u0000"', '"../../x"', "[1, 'a', []]", "{a = {b = 1}}", "'''", "1_000_000_000"),
    )
    lines[where] = f"{key} = {random.choice(odd)}"
    return "\n".join(lines).encode()


def toml_structure(random: Random, data: bytes) -> bytes:
    text = data.decode()
    return random.choice(
        (
            text + "\n[model]\n",
            text.replace("[model]", "[[model]]"),
            text.replace("[model]", "[model.model]"),
            text.replace("[model]", "[" + "a." * 20_000 + "a]"),
            text.replace("[model]", "model = 1\n[other]"),
            "a" + ".a" * 20_000 + " = 1\n" + text,
            text.replace("task", "Task"),
            "",
        )
    ).encode()


ODD_TEXTS = (
    *(
        "",
        " ",
        "nan",
        "inf",
        "-inf",
        "0",
        "-1",
        "-0.0",
        "1e400",
        "1e-400",
        "9" * DIGITS,
        "''",
        "[]",
    ),
    *("{}", "true", "null", "[" * DEPTH, "[" * DEPTH + "]" * DEPTH, "{a=" * DEPTH, "1979-05-27"),
    *("0x7fffffffffffffff", "..", "/dev/zero", "[1, 'a', []]", "{a = {b = 1}}", '"', "=", "\ud800"),
    *("os:system", "builtins:exec", "a.b:c", "é" * 1000, "\x1b[2J", "x\ny = 1", "1]"),
)
"""Values of settings that no setting expects."""


# Headers: safetensors.


def split_safetensors(data: bytes) -> tuple[dict[str, Any], bytes]:
    (size,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def join_safetensors(random: Random, header: Any, body: bytes) -> bytes:
    text = _json_text(header, random).encode("utf-8", "surrogatepass")
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
        entries[name] = _json_text(value, random)
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
            *([size + 1 for size in shape], [*shape, 1], [10**9, 0], [_DIGITS_MARK]),
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
    return join_safetensors(random, {**header, "extra": _DIGITS_MARK}, body)


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


# Lines of text, with or without columns.


def _one_line(change: Callable[[Random, bytes], bytes]) -> Mutation:
    def mutate(random: Random, data: bytes) -> bytes:
        lines = data.split(b"\n")
        where = random.randrange(len(lines))
        lines[where] = change(random, lines[where])
        return b"\n".join(lines)

    return mutate


def drop_line(random: Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    del lines[random.randrange(len(lines))]
    return b"\n".join(lines)


def repeat_line(random: Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    where = random.randrange(len(lines))
    return b"\n".join(lines[:where] + [lines[where]] * 3 + lines[where + 1 :])


def shuffle_lines(random: Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    random.shuffle(lines)
    return b"\n".join(lines)


def bad_utf8(random: Random, line: bytes) -> bytes:
    return line + random.choice(
        (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xc0\x80")
    )


def odd_characters(random: Random, line: bytes) -> bytes:
    odd = random.choice(
        (
            "\0",
            "\x1b[2J",
            "\u2028",
            "\x85",
            "\x0c",
            "\r",
            "\ufeff",
            "\u202e",
            "\U0010ffff",
            '"',
            "\ue000",
        )
    )
    at = random.randrange(len(line) + 1)
    return line[:at] + odd.encode() + line[at:]


def long_line(random: Random, line: bytes) -> bytes:
    return (line or b"x") * (200_000 // (len(line) or 1))


def long_word(random: Random, line: bytes) -> bytes:
    return b"x" * 200_000


def empty_line(random: Random, line: bytes) -> bytes:
    return random.choice((b"", b" ", b"\t", b"\t\t\t\t\t\t\t\t\t\t\t"))


def join_all_lines(random: Random, data: bytes) -> bytes:
    return data.replace(b"\n", random.choice((b"", b" ", b"\r", b"\0")))


def crlf(random: Random, data: bytes) -> bytes:
    return data.replace(b"\n", b"\r\n")


def other_encoding(random: Random, data: bytes) -> bytes:
    text = data.decode(errors="replace")
    return random.choice((text.encode("utf-16"), b"\xef\xbb\xbf" + data, text.encode("utf-32-le")))


LINES: dict[str, Mutation] = {
    "drop-line": drop_line,
    "repeat-line": repeat_line,
    "shuffle-lines": shuffle_lines,
    "bad-utf8": _one_line(bad_utf8),
    "odd-characters": _one_line(odd_characters),
    "odd-characters-2": _one_line(odd_characters),
    "long-line": _one_line(long_line),
    "long-word": _one_line(long_word),
    "empty-line": _one_line(empty_line),
    "join-lines": join_all_lines,
    "crlf": crlf,
    "encoding": other_encoding,
}


def _fields(change: Callable[[Random, list[bytes]], None]) -> Mutation:
    """Change the columns of a line, which are separated by tabs, commas or spaces."""

    def on_line(random: Random, line: bytes) -> bytes:
        mark = next((mark for mark in (b"\t", b",", b" ") if mark in line), b"\t")
        fields = line.split(mark)
        change(random, fields)
        return mark.join(fields)

    def mutate(random: Random, data: bytes) -> bytes:
        lines = data.split(b"\n")
        where = random.choice([i for i, line in enumerate(lines) if line] or [0])
        lines[where] = on_line(random, lines[where])
        return b"\n".join(lines)

    return mutate


def drop_field(random: Random, fields: list[bytes]) -> None:
    del fields[random.randrange(len(fields))]


def extra_field(random: Random, fields: list[bytes]) -> None:
    fields.insert(random.randrange(len(fields) + 1), random.choice((b"", b"x", b"1")))


def odd_field(random: Random, fields: list[bytes]) -> None:
    fields[random.randrange(len(fields))] = random.choice(
        (
            *(
                b"",
                b"nan",
                b"inf",
                b"-inf",
                b"1e999",
                b"-1",
                b"0",
                b"9" * DIGITS,
                b'"',
                b'""',
                b"'",
            ),
            *(b"\0", b"_", b"1-1", b"1.1", b"2-1", b"../x", b"/etc/passwd", b"99999999999", b"1_0"),
            *(b"0x10", "１２".encode(), b"-0", b"\xff"),
        )
    )


COLUMNS: dict[str, Mutation] = {
    **LINES,
    "drop-field": _fields(drop_field),
    "extra-field": _fields(extra_field),
    "odd-field": _fields(odd_field),
    "odd-field-2": _fields(odd_field),
    "odd-field-3": _fields(odd_field),
}


def arpa_counts(random: Random, data: bytes) -> bytes:
    """Change the number of n-grams that the header promises, or the order."""
    found = list(re.finditer(rb"ngram (\d+)=(\d+)", data))
    match = random.choice(found)
    count = int(match[2])
    odd = (count + 1, count - 1, 0, -1, 2**31, 2**63, 10**12, "x", "", "9" * DIGITS)
    order = (
        match[1].decode() if random.random() < 0.8 else random.choice(("0", "9", "-1", "999999"))
    )
    new = f"ngram {order}={random.choice(odd)}".encode()
    return data[: match.start()] + new + data[match.end() :]


def arpa_sections(random: Random, data: bytes) -> bytes:
    marks = [match[0] for match in re.finditer(rb"\\[^\n]+\\|\\[^\n]+:", data)]
    mark = random.choice(marks)
    return data.replace(mark, random.choice((b"", b"\\x:", mark + b"\n" + mark, b"\\9-grams:")), 1)


ARPA: dict[str, Mutation] = {
    **COLUMNS,
    "counts": arpa_counts,
    "counts-2": arpa_counts,
    "sections": arpa_sections,
}


# Compressed text.


def _gz_parts(random: Random, data: bytes) -> bytes:
    text = gzip.decompress(data)
    half = len(text) // 2
    one, two = gzip.compress(text[:half]), gzip.compress(text[half:])
    return random.choice(
        (one + two, one + b"\0" * 512 + two, one + two[:-4], one + b"rest", two[:10])
    )


def _gz_check(random: Random, data: bytes) -> bytes:
    at = len(data) - random.choice((1, 5))  # the length, the CRC
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


BOMB = 32 << 20
"""Bytes of the one line that a bomb unfolds to; once a line took 120 times its size in memory."""


def _gz_bomb(random: Random, data: bytes) -> bytes:
    return gzip.compress(b"a " * (BOMB // 2))


def _zst(text: bytes, *, checksum: bool = True, size: bool = True) -> bytes:
    import zstandard

    packer = zstandard.ZstdCompressor(write_checksum=checksum, write_content_size=size)
    return packer.compress(text)


def _zst_text(data: bytes) -> bytes:
    import zstandard

    found: bytes = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read()
    return found


def _zst_parts(random: Random, data: bytes) -> bytes:
    text = _zst_text(data)
    half = len(text) // 2
    one, two = _zst(text[:half]), _zst(text[half:])
    return random.choice(
        (one + two, one + two[:-6], one + b"rest", one[:-1] + two, b"\x50\x2a\x4d\x18" + data)
    )


def _zst_check(random: Random, data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def _zst_unsized(random: Random, data: bytes) -> bytes:
    return _zst(_zst_text(data), checksum=random.random() < 0.5, size=False)


def _zst_unfinished(random: Random, data: bytes) -> bytes:
    """No checksum and no size: only the end of the last block shows that it is whole."""
    whole = _zst(_zst_text(data), checksum=False, size=False)
    return whole[: random.randrange(len(whole))]


def _zst_bomb(random: Random, data: bytes) -> bytes:
    return _zst(b"a " * (BOMB // 2), size=random.random() < 0.5)


def _recompressed(
    pack: Callable[[bytes], bytes], unpack: Callable[[bytes], bytes]
) -> dict[str, Mutation]:
    """The mutations of lines on the text inside."""

    def inside(mutation: Mutation) -> Mutation:
        return lambda random, data: pack(mutation(random, unpack(data)))

    return {f"inside-{name}": inside(mutation) for name, mutation in LINES.items()}


GZ: dict[str, Mutation] = {
    "parts": _gz_parts,
    "parts-2": _gz_parts,
    "check": _gz_check,
    "bomb": _gz_bomb,
    **_recompressed(gzip.compress, gzip.decompress),
}
ZST: dict[str, Mutation] = {
    "parts": _zst_parts,
    "parts-2": _zst_parts,
    "check": _zst_check,
    "unsized": _zst_unsized,
    "unfinished": _zst_unfinished,
    "unfinished-2": _zst_unfinished,
    "bomb": _zst_bomb,
    **_recompressed(_zst, _zst_text),
}


# Word vectors, HDF5, pictures.


def word2vec_header(random: Random, data: bytes) -> bytes:
    count, size = map(int, data.split(b"\n", 1)[0].split())
    odd = (0, 1, -1, 2**31, 2**62, "9" * DIGITS, "x", 10**9, count + 1, size + 1)
    pair = (random.choice(odd), size) if random.random() < 0.5 else (count, random.choice(odd))
    return f"{pair[0]} {pair[1]}\n".encode() + data.split(b"\n", 1)[1]


def word2vec_long_word(random: Random, data: bytes) -> bytes:
    head, rest = data.split(b"\n", 1)
    return head + b"\n" + b"x" * 200_000 + rest


def on_hdf5(change: Callable[[Random, Any, str], None]) -> Mutation:
    """Change a file by means of h5py; `change` gets the file and the path of a data set."""

    def mutate(random: Random, data: bytes) -> bytes:
        import h5py

        buffer = io.BytesIO(data)
        with h5py.File(buffer, "r+") as file:
            names: list[str] = []
            file.visititems(
                lambda name, item: names.append(name) if hasattr(item, "dtype") else None
            )
            change(random, file, random.choice(names))
        return buffer.getvalue()

    return mutate


def _hdf5_drop(random: Random, file: Any, name: str) -> None:
    del file[name if random.random() < 0.5 else name.split("/")[0]]


def _hdf5_type(random: Random, file: Any, name: str) -> None:
    shape = file[name].shape
    del file[name]
    dtype = random.choice(("S3", "i4", "f8", "f2", "u1", "c8", [("a", "f4"), ("b", "i2")], "?"))
    file.create_dataset(name, shape, dtype)


def _hdf5_objects(random: Random, file: Any, name: str) -> None:
    import h5py

    shape = file[name].shape
    del file[name]
    dtype = random.choice((h5py.string_dtype(), h5py.ref_dtype, h5py.vlen_dtype("f4")))
    file.create_dataset(name, shape, dtype)


def _hdf5_shape(random: Random, file: Any, name: str) -> None:
    shape = file[name].shape
    del file[name]
    wrong = random.choice(
        (
            *((), (0,), (1,), shape[::-1], (*shape, 1), tuple(size + 1 for size in shape)),
            *((1 << 40,), (1 << 20, 1 << 20)),
        )
    )
    chunks = tuple(min(size, 64) for size in wrong) if wrong and min(wrong) > 0 else None
    file.create_dataset(name, wrong, "f4", chunks=chunks)


def _hdf5_group(random: Random, file: Any, name: str) -> None:
    del file[name]
    file.create_group(name)


def _hdf5_link(random: Random, file: Any, name: str) -> None:
    import h5py

    target = name if random.random() < 0.5 else name.split("/")[0]
    del file[target]
    file[target] = random.choice(
        (
            *(h5py.SoftLink("/" + name), h5py.SoftLink("/nowhere"), h5py.SoftLink("/")),
            *(h5py.ExternalLink("../some.txt", "/"), h5py.ExternalLink("other.h5", "/" + name)),
        )
    )


def _hdf5_external(random: Random, file: Any, name: str) -> None:
    shape = file[name].shape
    del file[name]
    outside = random.choice(("/etc/passwd", "some.txt", "../some.txt"))
    file.create_dataset(name, shape, "f4", external=[(outside, 0, 4 << 20)])


def _hdf5_virtual(random: Random, file: Any, name: str) -> None:
    import h5py

    shape = file[name].shape
    del file[name]
    layout = h5py.VirtualLayout(shape, "f4")
    layout[...] = h5py.VirtualSource("other.h5", "x", shape)
    file.create_virtual_dataset(name, layout)


def _hdf5_not_finite(random: Random, file: Any, name: str) -> None:
    file[name][...] = random.choice((float("nan"), float("inf")))


def _hdf5_compressed(random: Random, file: Any, name: str) -> None:
    shape = file[name].shape
    del file[name]
    file.create_dataset(name, shape, "f4", compression="gzip", chunks=True)


HDF5: dict[str, Mutation] = {
    "hdf5-drop": on_hdf5(_hdf5_drop),
    "hdf5-type": on_hdf5(_hdf5_type),
    "hdf5-objects": on_hdf5(_hdf5_objects),
    "hdf5-shape": on_hdf5(_hdf5_shape),
    "hdf5-shape-2": on_hdf5(_hdf5_shape),
    "hdf5-group": on_hdf5(_hdf5_group),
    "hdf5-link": on_hdf5(_hdf5_link),
    "hdf5-link-2": on_hdf5(_hdf5_link),
    "hdf5-external": on_hdf5(_hdf5_external),
    "hdf5-virtual": on_hdf5(_hdf5_virtual),
    "hdf5-not-finite": on_hdf5(_hdf5_not_finite),
    "hdf5-compressed": on_hdf5(_hdf5_compressed),
}


def huge_picture(random: Random, data: bytes) -> bytes:
    """A small file that says it has billions of pixels."""
    width, height = random.choice(
        ((60_000, 60_000), (2**31 - 1, 1), (1, 2**31 - 1), (100_000, 9_000))
    )
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = b"IDAT" + zlib.compress(bytes(100_000))
    chunks = (header, body, b"IEND")
    packed = [struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def svg_picture(random: Random, data: bytes) -> bytes:
    return random.choice(
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"%PDF-1.4\n")
    )


PICTURE: dict[str, Mutation] = {"huge": huge_picture, "huge-2": huge_picture, "vector": svg_picture}

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


# The entry in the folder.


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _missing(path: Path) -> None:
    path.unlink()


def _link(target: str) -> Callable[[Path], None]:
    def replace(path: Path) -> None:
        path.unlink()
        path.symlink_to(target)

    return replace


def _itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


PLACES: dict[str, Callable[[Path], None]] = {
    "fifo": _fifo,
    "folder": _folder,
    "missing": _missing,
    "dangling-link": _link("nowhere"),
    "link-to-itself": _itself,
    "endless": _link("/dev/zero"),
    "device": _link("/dev/null"),
    "no-permission": lambda path: path.chmod(0),
}
"""What can lie where a file should."""
