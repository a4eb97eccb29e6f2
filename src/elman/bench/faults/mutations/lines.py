"""Damage to lines of text, to columns in them, and to ARPA files."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

from elman.bench.faults.mutations.any_bytes import DIGITS, Mutation


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
