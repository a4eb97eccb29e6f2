r"""Read ARPA files of KenLM, SRILM and others.

    \data\                   the number of n-grams of each length: ngram 1=4
    \1-grams:                log10 probability, the words, and, if the n-gram is a context, its
    -1.38   the   -0.30      log10 back-off weight (default 0)
    \end\

Accepted: spaces for tabs, blank lines, text before the data, no `<unk>` (unknown words then get
-100, as in KenLM), positive back-off weights, n-grams whose context is not listed, probabilities of
zero (-inf). Anything else is an error that names the line and the reason. Files are read in blocks,
and memory grows with the n-grams actually read, not with the numbers in the header.

`<s>` and `</s>` become the one boundary token, id 0; `<unk>` is id 1; other words follow in file
order. With a tokenizer (see `arpa_files`), ids are the tokenizer's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from elman.base.errors import ElmanError
from elman.ngrams.arpa_parse import LARGEST, LN_10, REASONS, Section, WordTable, number
from elman.ngrams.arpa_write import words_of
from elman.ngrams.backoff import BackoffModel
from elman.ngrams.from_lists import ListedTwice, NgramList, model_of_lists
from elman.text.sources import byte_blocks
from elman.tokens.kind import BOUNDARY, UNKNOWN
from elman.tokens.tokenizer import Tokenizer

BOUNDARY_ID, UNKNOWN_ID = 0, 1
MISSING_UNKNOWN = -100.0
"""log10 P of an unknown word if a file has no `<unk>`, as in KenLM."""
_BLOCK_SIZE = 1 << 22
_MOST_ORDERS = 100
_LONGEST_QUOTE = 80  # characters of the file in an error message
_SIZE = re.compile(rb"ngram\s+(\d{1,4})\s*=\s*(\d{1,18})")


@dataclass
class ArpaFile:
    model: BackoffModel
    words: list[str]
    """Words by id, boundary and unknown word first; unused if there is a tokenizer."""


def read_arpa(path: Path, tokenizer: Tokenizer | None = None) -> ArpaFile:
    """Read an ARPA file, compressed if its name ends in .gz or .zst.

    `tokenizer` is the one that the file was written with.
    """
    reader = _Reader(path, tokenizer)
    sizes = reader.header()
    unigrams = reader.unigrams(sizes[0])
    table = unigrams.table()
    lists = [unigrams.ngrams()]
    for length, size in enumerate(sizes[1:], start=2):
        lists.append(reader.ngrams(length, size, table, unigrams))
    reader.end()
    try:
        model = model_of_lists(lists, unigrams.boundary_id)
    except ListedTwice as error:
        raise _Reader(path, None).listed_twice(unigrams.spelled(error.ids)) from error
    notes = unigrams.notes() + reader.notes
    model.about = {"source": path.name, "normalised": True, "notes": notes}
    return ArpaFile(model, unigrams.words())


@dataclass
class _Unigrams:
    """The single words of a file, by id."""

    letters: list[bytes] = field(default_factory=lambda: [b"</s>", b"<unk>"])
    boundary_id: int = BOUNDARY_ID
    unknown_id: int | None = UNKNOWN_ID
    ids: dict[bytes, int] | None = None
    """Ids of the words; None to number them in file order."""
    listed: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.logprobs = [-math.inf] * len(self.letters)
        self.weights = [0.0] * len(self.letters)
        if self.unknown_id is not None:
            self.logprobs[self.unknown_id] = MISSING_UNKNOWN

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> _Unigrams:
        """Start with all tokens of a tokenizer, none listed yet."""
        letters = words_of(tokenizer.names(), tokenizer.unknown_id)
        letters[tokenizer.boundary_id] = b"</s>"
        ids = {word: i for i, word in enumerate(letters)}
        return cls(letters, tokenizer.boundary_id, tokenizer.unknown_id, ids)

    def add(self, word: bytes, logprob: float, weight: float) -> bool:
        """Add a word; return False if the tokenizer does not have it.

        The boundary token gets the back-off weight of `<s>` and the probability of `</s>`.
        """
        self.listed.add(word)
        if word == b"<s>":
            self.weights[self.boundary_id] = weight
        elif word == b"</s>":
            self.logprobs[self.boundary_id] = logprob
        elif word in (b"<unk>", b"<UNK>") and self.unknown_id is not None:
            self.logprobs[self.unknown_id], self.weights[self.unknown_id] = logprob, weight
        elif self.ids is None:
            self.letters.append(word)
            self.logprobs.append(logprob)
            self.weights.append(weight)
        elif (id := self.ids.get(word)) is not None:
            self.logprobs[id], self.weights[id] = logprob, weight
        else:
            return False
        return True

    def table(self) -> WordTable:
        """Map words to ids; `<s>` gets an id past the last word."""
        aliases = {b"<s>": len(self.letters)}
        if self.unknown_id is not None:
            aliases[b"<UNK>"] = self.unknown_id
        return WordTable(self.letters, aliases)

    def ngrams(self) -> NgramList:
        ids = np.arange(len(self.letters), dtype=np.int32)[:, None]
        logprob = np.array(self.logprobs, np.float32) * LN_10
        return NgramList(ids, logprob, np.array(self.weights, np.float32) * LN_10)

    def words(self) -> list[str]:
        """Return the words as Elman spells them; a word `<eos>` gets extra brackets."""
        rest = [word.decode() for word in self.letters[2:]]
        return [BOUNDARY, UNKNOWN, *(w if w != BOUNDARY else f"<{w}>" for w in rest)]

    def spelled(self, ids: list[int]) -> list[bytes]:
        """Spell an n-gram as in the file."""
        words = [self.letters[id] for id in ids]
        return [b"<s>" if ids[0] == self.boundary_id else words[0], *words[1:]]

    def notes(self) -> list[str]:
        notes = []
        if self.unknown_id is not None and not self.listed & {b"<unk>", b"<UNK>"}:
            notes.append(f"no {UNKNOWN} in the file: unknown words get a log10 probability of -100")
        if b"</s>" not in self.listed:
            notes.append("no </s> in the file: the end of a line has probability 0")
        return notes


class _Reader:
    """Reads a file section by section, and counts lines for error messages."""

    def __init__(self, path: Path, tokenizer: Tokenizer | None) -> None:
        self.path, self.tokenizer = path, tokenizer
        self.line_number = 0
        self.notes: list[str] = []
        self._blocks = self._whole_lines()
        self._data, self._at = b"", 0
        self._head: bytes | None = None  # the line that begins the next section

    def header(self) -> list[int]:
        """Read up to the first section; return the number of n-grams of each length."""
        while (line := self._line()) is not None and line != b"\\data\\":
            pass
        if line is None:
            raise ElmanError(
                f"{self.path} is not an ARPA file: it has no line \\data\\",
                "use a model in ARPA format, from KenLM, SRILM or `elman convert`",
            )
        sizes: list[int] = []
        while (line := self._line()) is not None and not line.startswith(b"\\"):
            found = _SIZE.fullmatch(line)
            if len(sizes) == _MOST_ORDERS:
                raise self._wrong(f"n-grams are longer than {_MOST_ORDERS} words")
            if found is None or int(found[1]) != len(sizes) + 1:
                raise self._wrong(f"expected 'ngram {len(sizes) + 1}=' and a number")
            sizes.append(int(found[2]))
        self._head = line
        if not sizes:
            raise self._wrong("expected 'ngram 1=' and a number")
        if sizes[0] == 0:
            raise self._wrong("a model without words: 'ngram 1=0'")
        return sizes

    def unigrams(self, size: int) -> _Unigrams:
        self._begin(1)
        unigrams = _Unigrams() if self.tokenizer is None else _Unigrams.of(self.tokenizer)
        while (line := self._line()) is not None and not line.startswith(b"\\"):
            fields = line.split()
            if len(fields) not in (2, 3):
                raise self._wrong(REASONS[2].format(length=1))
            logprob = self._number(fields[0], may_be_zero=True)
            weight = self._number(fields[2]) if len(fields) == 3 else 0.0
            word = fields[1]
            try:
                spelled = word.decode()[:_LONGEST_QUOTE]
            except UnicodeDecodeError as error:
                raise self._wrong(f"a word is not UTF-8 ({error.reason})") from error
            if word in unigrams.listed:
                raise self._wrong(f"'{spelled}' is listed a second time")
            if logprob > 0 and word != b"<s>":
                logprob = 0.0
                self._note_positive()
            if not unigrams.add(word, logprob, weight):
                raise self._wrong(f"the tokenizer beside the file has no '{spelled}'")
        self._head = line
        self._finish(1, size, len(unigrams.listed))
        return unigrams

    def ngrams(self, length: int, size: int, table: WordTable, unigrams: _Unigrams) -> NgramList:
        self._begin(length)
        section = Section(length, table)
        while self._at < len(self._data) or self._more():
            self._at, num_lines, problem = section.read(self._data, self._at)
            self.line_number += num_lines
            if problem:
                raise self._wrong(problem)
            if self._at < len(self._data):  # the next line begins another section
                break
        self._head = self._line()
        self._finish(length, size, section.num_ngrams)
        ngrams = section.ngrams(len(unigrams.letters), unigrams.boundary_id)
        if (ngrams.logprob > 0).any():
            np.minimum(ngrams.logprob, 0, out=ngrams.logprob)
            self._note_positive()
        return ngrams

    def listed_twice(self, words: list[bytes]) -> ElmanError:
        """Read again up to the second occurrence of an n-gram; return the error for that line."""
        length, num_found = 0, 0
        while num_found < 2 and (line := self._line()) is not None:
            if line.startswith(b"\\"):
                length += 1 if line != b"\\data\\" else 0
                continue
            found = line.replace(b"<UNK>", b"<unk>").split()[1 : length + 1]
            num_found += length == len(words) and found == words
        spelled = b" ".join(words).decode()[:_LONGEST_QUOTE]
        return self._wrong(f"'{spelled}' is listed a second time")

    def end(self) -> None:
        if self._head is None:
            raise self._wrong("the file is truncated: its last line should be \\end\\")
        if self._head != b"\\end\\":
            raise self._wrong("expected \\end\\")

    def _begin(self, length: int) -> None:
        if self._head is None:
            raise self._wrong(f"the file is truncated: \\{length}-grams: should follow")
        if self._head.replace(b" ", b"") != b"\\%d-grams:" % length:
            raise self._wrong(f"expected \\{length}-grams:")

    def _finish(self, length: int, expected: int, found: int) -> None:
        if expected != found:
            cut = " and is truncated" if self._head is None else ""
            raise self._wrong(
                f"the header says {expected} {length}-grams, the file has {found}{cut}"
            )

    def _note_positive(self) -> None:
        note = "log probabilities above 0 are taken as 0"
        if note not in self.notes:
            self.notes.append(note)

    def _number(self, text: bytes, may_be_zero: bool = False) -> float:
        value, spelled = number(text), text[:_LONGEST_QUOTE].decode(errors="replace")
        if value is None:
            raise self._wrong(REASONS[1].format(word=spelled))
        if not (abs(value) <= LARGEST or (may_be_zero and text.lower() == b"-inf")):
            raise self._wrong(REASONS[4].format(word=spelled))
        return value

    def _line(self) -> bytes | None:
        """Return the next non-blank line, stripped; None at the end."""
        while self._at < len(self._data) or self._more():
            end = self._data.find(b"\n", self._at)
            end = len(self._data) if end < 0 else end
            line = self._data[self._at : end].strip()
            self._at = end + 1
            self.line_number += 1
            if line:
                return line
        return None

    def _more(self) -> bool:
        self._data, self._at = next(self._blocks, b""), 0
        return bool(self._data)

    def _whole_lines(self) -> Iterator[bytes]:
        """Yield the file in blocks that end at line ends, except the last."""
        waiting = b""
        for block in byte_blocks(self.path, _BLOCK_SIZE):
            if waiting and not waiting.endswith(b"\n"):
                self.line_number += waiting.count(b"\n") + 1
                raise self._wrong(f"the line is longer than {_BLOCK_SIZE >> 20} MiB")
            if waiting:
                yield waiting
            waiting = block.data
        if waiting:
            yield waiting

    def _wrong(self, reason: str) -> ElmanError:
        return ElmanError(
            f"{self.path}, line {self.line_number}: {reason}",
            "the file is damaged or not in ARPA format: write it again",
        )
