"""The texts of the tour and of its exercises, all made by rule: `write_texts(folder)`.

A rule has two advantages over a text from elsewhere: its entropy is known, so that a model can be
compared with the best possible one, and fresh lines that a model cannot have seen cost nothing.

`school.txt` is about the lectures' prefix "students opened their". Learners and cooks open, close,
find, lose and buy different things, so that a noun depends on a subject three words back. One
combination, "scholars opened their", does not occur in it; `school-test.txt` has it.
"""

from __future__ import annotations

import math
import random
import struct
import zlib
from collections.abc import Iterable
from itertools import product
from pathlib import Path

SUBJECTS = {
    "learners": ("students", "pupils", "scholars", "undergraduates"),
    "cooks": ("cooks", "bakers", "chefs", "waiters"),
}
OBJECTS = {
    "learners": ("books", "laptops", "exams", "minds"),
    "cooks": ("ovens", "kitchens", "jars", "tins"),
}
VERBS = ("opened", "closed", "found", "lost", "bought", "attentively perused")
UNSEEN = "scholars opened their"
"""The prefix that the training text lacks."""
REPEATS = 6
"""How often each sentence occurs in `school.txt`."""

TICKETS = (
    "When she tried to print her tickets, she found that the printer was out of toner. She went to "
    "the stationery store to buy more toner. It was very overpriced. After installing the toner "
    "into the printer, she finally printed her tickets"
)
SENSES = """\
The children love to play outside in the park .
They play the piano beautifully .
She went to see a play at the local theater .
The bank can guarantee deposits will eventually cover future tuition costs .
he cashed a check at the bank .
that bank holds the mortgage on my home .
they pulled the canoe up on the bank .
he sat on the bank of the river and watched the currents .
"""
PREFIXES = """\
students opened their
pupils opened their
scholars opened their
undergraduates opened their
students turned the pages of their
students attentively perused their
"""
RECIPE = """\
description = "64 LSTM units over words, for the tour's small texts"

[tokenizer]
kind = "word"

[model]
kind = "recurrent"
hidden_size = 64
embedding_size = 64

[optimiser]
kind = "adam"
learning_rate = 0.01

[training]
batch_size = 8
chunk_length = 32
sample_length = 1
"""
"""Settings for a text of a few thousand words; the automatic ones are for larger texts."""
OFFERS = ("a prize", "free tickets", "a loan", "a holiday", "cheap pills")
MEETINGS = ("lunch", "the lecture", "the meeting", "the exam", "dinner")
DAYS = ("today", "tomorrow", "on Monday", "on Friday", "next week")
COLOURS = {
    "red": (200, 30, 30),
    "green": (30, 160, 60),
    "blue": (40, 60, 200),
    "yellow": (230, 200, 40),
}
PLACES = {"left": (0, 8), "middle": (8, 16), "right": (16, 24)}


def sentences() -> list[str]:
    """Return every sentence that the rule of `school.txt` allows; all are equally likely."""
    return [
        f"{subject} {verb} their {thing} ."
        for kind, subjects in SUBJECTS.items()
        for subject, verb, thing in product(subjects, VERBS, OBJECTS[kind])
    ]


def school() -> list[str]:
    """Return the training text: every sentence but those with `UNSEEN`, repeated and shuffled."""
    seen = [sentence for sentence in sentences() if not sentence.startswith(UNSEEN)]
    lines = seen * REPEATS
    random.Random(1).shuffle(lines)
    return lines


def school_test(seed: int = 2) -> list[str]:
    """Return fresh text of the same rule: every sentence once, `UNSEEN` included."""
    lines = sentences()
    random.Random(seed).shuffle(lines)
    return lines


def source_bits_per_byte() -> float:
    """Return what the best possible model needs on `school_test`: every sentence has the same
    probability."""
    lines = school_test()
    return math.log2(len(lines)) * len(lines) / sum(len(line) + 1 for line in lines)


def treebank() -> str:
    """Return the training text with parts of speech, as CoNLL-U."""
    tags = {"their": "PRON", ".": "PUNCT", "attentively": "ADV"}
    tags |= {word: "VERB" for verb in VERBS for word in verb.split()[-1:]}
    rows = []
    for line in school()[:200]:
        for number, word in enumerate(line.split(), start=1):
            rows.append(f"{number}\t{word}\t{word}\t{tags.get(word, 'NOUN')}" + "\t_" * 6 + "\n")
        rows.append("\n")
    return "".join(rows)


def messages(number: int, seed: int) -> list[tuple[str, str]]:
    """Return labelled messages, half of them spam."""
    draw = random.Random(seed)
    made = []
    for index in range(number):
        day, offer, meeting = draw.choice(DAYS), draw.choice(OFFERS), draw.choice(MEETINGS)
        spam = (
            f"you have won {offer} , call now to claim it {day}",
            f"{offer} for you {day} , click here",
            f"last chance {day} : claim {offer} now",
        )
        ham = (
            f"see you at {meeting} {day}",
            f"are you coming to {meeting} {day} , or shall I call you ?",
            f"I have no time for {meeting} {day} , sorry",
        )
        label = ("spam", "ham")[index % 2]
        made.append((label, draw.choice(spam if label == "spam" else ham)))
    draw.shuffle(made)
    return made


def reversals(number: int, seed: int) -> list[tuple[str, str]]:
    """Return strings of letters, separated by spaces, with the same strings backwards."""
    draw = random.Random(seed)
    pairs = []
    for _ in range(number):
        letters = draw.choices("abcdefgh", k=draw.randint(3, 8))
        pairs.append((" ".join(letters), " ".join(reversed(letters))))
    return pairs


def write_texts(folder: str | Path = ".") -> None:
    """Write the tour's texts and pictures into a folder."""
    folder = Path(folder)
    tickets = TICKETS + "\n" + TICKETS.replace("her tickets,", "her photos,") + "\n"
    files = {
        "school.txt": _lines(school()),
        "school-test.txt": _lines(school_test()),
        "school.conllu": treebank(),
        "small.toml": RECIPE,
        "prefixes.txt": PREFIXES,
        "tickets.txt": tickets,
        "senses.txt": SENSES,
    }
    for name, number, seed in (("spam", 400, 3), ("spam-test", 100, 4)):
        files[f"{name}.tsv"] = _lines(f"{label}\t{text}" for label, text in messages(number, seed))
    for name, number, seed in (("reverse", 2000, 5), ("reverse-test", 50, 6)):
        pairs = reversals(number, seed)
        files[f"{name}.src"] = _lines(source for source, _ in pairs)
        files[f"{name}.tgt"] = _lines(target for _, target in pairs)
    rows = []
    for colour, place in product(COLOURS, PLACES):
        name = f"{colour}-{place}.png"
        rows.append(f"{name}\ta {colour} bar on the {place}")
        path = folder / "pictures_images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_picture(COLOURS[colour], PLACES[place]))
    files["pictures.tsv"] = _lines(["image\tsentence", *rows])
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _picture(colour: tuple[int, int, int], columns: tuple[int, int]) -> bytes:
    """Return a PNG of 24 by 16 pixels: a bar on white. (Pillow is an extra.)"""
    row = b"".join(
        bytes(colour) if columns[0] <= x < columns[1] else b"\xff\xff\xff" for x in range(24)
    )
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", 24, 16, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress((b"\0" + row) * 16)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
