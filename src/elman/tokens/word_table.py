"""The words of a large vocabulary in a file beside its tokenizer.json, which opens at once.

The library takes ten seconds to read a tokenizer.json of three million words, and Python as long
again to hash them. So the words are written once more: in the order of their ids, with the ids in
the order of the words to search in, and with what takes long to compute from all of them. The file
is mapped. It is used only if the tokenizer.json beside it is the one that it was made from.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from numpy.typing import NDArray

from elman.base import tensor_files
from elman.base.errors import ElmanError
from elman.base.tensor_files import open_tensors

LARGE = 1 << 18
"""The size from which on a vocabulary has a table."""
MANY = 1 << 16
"""Words to look up from which on a dictionary pays: to make it takes as long."""
HEADER = ("hash", "old_hash", "form", "spec")
"""What is computed from all words, and stored with them: of a `Tokenizer` the hashes and the form,
and its tokenizer.json without words."""
FORMAT = 1
_END = b"\n"


class WordTable(Mapping[str, int]):
    """The ids of words."""

    def __init__(self, header: Mapping[str, Any], words: memoryview, order: NDArray[Any]) -> None:
        """`words` are in the order of their ids, each with a line end; `order` has the ids in the
        order of their words. `header` has `HEADER`."""
        self.header = header
        self.words = words
        self.order = order
        self._ends = np.flatnonzero(np.frombuffer(words, np.uint8) == _END[0])
        self.num_asked = 0
        """How many words were looked up."""
        self.index: Any = None
        """What `ngrams.reading` finds many words with."""

    def __getitem__(self, word: str) -> int:
        self.num_asked += 1
        wanted = word.encode(errors="surrogatepass")
        at = bisect_left(self.order, wanted, key=self.spelling)
        if at < len(self.order) and self.spelling(found := int(self.order[at])) == wanted:
            return found
        raise KeyError(word)

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[str]:
        return iter(bytes(self.words).decode().split("\n")[:-1])

    def spelling(self, id: int) -> bytes:
        start = self._ends[id - 1] + 1 if id > 0 else 0
        return bytes(self.words[start : self._ends[id]])

    def as_dict(self) -> dict[str, int]:
        return {word: id for id, word in enumerate(self)}


class Pieces(Sequence[bytes]):
    """The words by id, one of them replaced."""

    def __init__(self, table: WordTable, replaced: int, by: bytes) -> None:
        self._table, self._replaced, self._by = table, replaced, by

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, id: Any) -> Any:
        return self._by if id == self._replaced else self._table.spelling(id)


class Encoding(NamedTuple):
    """What of the library's `Encoding` is read."""

    ids: list[int]
    offsets: list[tuple[int, int]]


class TableBackend:
    """Stands for the library's tokenizer, which is made only if there is need."""

    def __init__(self, table: WordTable, content: Callable[[], bytes]) -> None:
        """`content` returns the tokenizer.json."""
        self.table = table
        self.spec: dict[str, Any] = table.header["spec"]
        self.content = content

    def get_vocab(self) -> WordTable:
        return self.table

    def encode(self, text: str, add_special_tokens: bool = False) -> Encoding:
        """Split the text as the file says, and look up its words."""
        normaliser, splitter = self._splitter.normalizer, self._splitter.pre_tokenizer
        normal = text if normaliser is None else normaliser.normalize_str(text)
        unknown = self.table[self.spec["model"]["unk_token"]]
        ids = [self.table.get(word, unknown) for word, _ in splitter.pre_tokenize_str(normal)]
        return Encoding(ids, self._splitter.encode(text, add_special_tokens=False).offsets)

    def encode_batch(self, texts: list[str], add_special_tokens: bool = False) -> list[Encoding]:
        return [self.encode(text) for text in texts]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)

    @cached_property
    def _whole(self) -> tokenizers.Tokenizer:
        return tokenizers.Tokenizer.from_str(self.content().decode())

    @cached_property
    def _splitter(self) -> tokenizers.Tokenizer:
        """The same without words."""
        model = {**self.spec["model"], "vocab": {self.spec["model"]["unk_token"]: 0}}
        none = dict.fromkeys(("truncation", "padding", "post_processor", "decoder"))
        whole = {"version": "1.0", **none, "added_tokens": [], **self.spec, "model": model}
        return tokenizers.Tokenizer.from_str(json.dumps(whole))


def table_file(tokenizer_file: Path) -> Path:
    return tokenizer_file.with_name(f"{tokenizer_file.stem}-words.safetensors")


def write_table(
    tokenizer_file: Path, content: bytes, vocab: Mapping[str, int], header: Mapping[str, Any]
) -> None:
    """Write the table of a tokenizer.json with this content, if its ids have no gaps."""
    if isinstance(vocab, WordTable):
        words, order = vocab.words, vocab.order
    else:
        joined = "\n".join([*sorted(vocab, key=vocab.__getitem__), ""]).encode()
        if max(vocab.values()) >= len(vocab) or joined.count(_END) > len(vocab):
            return
        # The order of code points is that of bytes of UTF-8.
        order = np.fromiter((vocab[word] for word in sorted(vocab)), np.int32, len(vocab))
        words = memoryview(joined)
    about = {"format": FORMAT, "of": hashlib.sha256(content).hexdigest()}
    about |= {name: header[name] for name in HEADER}
    arrays: dict[str, Any] = {
        "order": ("I32", [len(order)], [order]),
        "words": ("U8", [len(words)], [words]),
    }
    tensor_files.write(table_file(tokenizer_file), about, arrays)


def read_table(tokenizer_file: Path, content: bytes) -> WordTable | None:
    """Open the table of a tokenizer.json with this content; None if there is none."""
    path = table_file(tokenizer_file)
    if not path.is_file():
        return None
    try:
        with open_tensors(path) as file:
            digest = hashlib.sha256(content).hexdigest()
            if (file.header.get("format"), file.header.get("of")) != (FORMAT, digest):
                return None
            data = file.mapped()
            order, words = (file.table[name] for name in ("order", "words"))
    except ElmanError as error:
        hint = f"remove it: {tokenizer_file.name} has the same words"
        raise ElmanError(error.message, hint) from error
    return WordTable(
        file.header,
        memoryview(data)[words.start : words.end],
        np.frombuffer(data, "<i4", order.shape[0], order.start),
    )
