"""Damage to values in JSON and TOML, and to how they are written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from random import Random
from typing import Any

from elman.bench.faults.mutations.any_bytes import DEPTH, DIGITS, Mutation

_DEEP_MARK, DIGITS_MARK = "<deep>", "<digits>"


ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 0.5, -0.0, 1e308, float("nan"), float("inf"), -float("inf")),
    *(2**31, 2**63, 2**64, -(2**63), "", "x", "\0", "../../etc/passwd", "é" * 300, [], {}),
    *([[]], {"a": 1}, [1, "2", None], _DEEP_MARK, DIGITS_MARK),
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
        _parent(value, path)[path[-1]] = DIGITS_MARK
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


def json_text(value: Any, random: Random, indent: int | None = None) -> str:
    """JSON of a value, with the marks for nested values and long numbers replaced."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    text = text.replace(f'"{DIGITS_MARK}"', "9" * DIGITS)
    return text.replace(f'"{_DEEP_MARK}"', _deep(random))


def _deep(random: Random) -> str:
    return random.choice(
        ("[" * DEPTH + "]" * DEPTH, '{"a":' * DEPTH + "1" + "}" * DEPTH, "[" * DEPTH)
    )


def on_json(change: Callable[[Random, Any], Any]) -> Mutation:
    """Parse, change and write a document; without its seal, as if changed on purpose."""

    def mutate(random: Random, data: bytes) -> bytes:
        value = change(random, json.loads(SEAL.sub(b"", data)))
        return json_text(value, random, indent=2).encode("utf-8", "surrogatepass")

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
        lines[where] = json_text(value, random).encode("utf-8", "surrogatepass")
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
