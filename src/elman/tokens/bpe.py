"""Byte-level byte-pair encoding: frequent words are one token, and any text can be encoded.

Our own files never merge across a line end, so a text may be cut at any line end and encoded piece
by piece to the same ids. Files from other toolkits (GPT-2's, for example) can be read too; with
those a cut next to blank lines may give a different token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from elman.base.errors import UsageError
from elman.text.sources import sample
from elman.tokens.bytes import byte_spellings
from elman.tokens.choose import fitting_vocab_size
from elman.tokens.kind import (
    BOUNDARY,
    SAMPLE_BYTES,
    Counts,
    Ids,
    Kind,
    PieceTable,
    counts_in,
    normaliser,
)
from elman.tokens.tokenizer_config import TokenizerConfig

# GPT-2's pattern (Radford and others, 2019) with three changes: a line end is always by itself;
# combining marks belong to their letter, so that Indic scripts are not broken up; numbers are split
# into groups of at most three digits.
PATTERN = (
    r"\n|'(?:[sdmt]|ll|ve|re)| ?[\p{L}\p{M}]+| ?\p{N}{1,3}| ?[^\s\p{L}\p{M}\p{N}]+"
    r"|[^\S\n]+(?!\S)|[^\S\n]+"
)

# A coarser pattern that Python can match: a stretch without white space and the space before it.
# PATTERN also cuts wherever this one does. White space is spelled out because Python's \s has four
# more characters.
_SPACE = r"\t\x0b\x0c\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_COARSE = re.compile(rf"\n| ?[^{_SPACE}\n]+|[{_SPACE}]+(?![^{_SPACE}\n])|[{_SPACE}]+")

# PATTERN for ASCII, where Python and the backend agree on what a letter is.
_FINE = re.compile(
    r"\n|'(?:[sdmt]|ll|ve|re)| ?[A-Za-z]+| ?[0-9]{1,3}| ?[^\sA-Za-z0-9]+|[^\S\n]+(?!\S)|[^\S\n]+",
    re.ASCII,
)

MAX_REMEMBERED_WORDS = 50_000


def train(
    texts: Iterable[str], vocab_size: int, *, lowercase: bool = False
) -> tokenizers.Tokenizer:
    """Learn merges from `texts` until there are `vocab_size` tokens or nothing is left to merge."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.normalizer = normaliser(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[BOUNDARY],
        initial_alphabet=byte_spellings(),
        max_token_length=32,
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    # The trainer also adds the boundary as an added token, which would be matched in running text.
    spec = json.loads(backend.to_str())
    spec["added_tokens"] = []
    return tokenizers.Tokenizer.from_str(json.dumps(spec))


class BytePairs(Kind):
    """Look up the ids of cached stretches; the backend encodes new ones."""

    name = "bpe"

    def __init__(self, backend: tokenizers.Tokenizer, spec: dict[str, Any]) -> None:
        super().__init__(backend, spec)
        first = ((spec["pre_tokenizer"] or {}).get("pretokenizers") or [{}])[0]
        ours = (first.get("pattern") or {}).get("Regex") == PATTERN
        self._table = PieceTable(backend, self._encode_ascii) if ours else None
        self._ids_of_word: dict[str, list[int]] = {}
        self._spelled = dict(enumerate(byte_spellings()))

    @classmethod
    def recognises(cls, spec: dict[str, Any]) -> bool:
        is_byte_level = "ByteLevel" in json.dumps(spec["pre_tokenizer"])
        return spec["model"].get("type") == "BPE" and is_byte_level

    @classmethod
    def train(
        cls, files: list[Path], config: TokenizerConfig
    ) -> tuple[tokenizers.Tokenizer, Counts]:
        blocks, num_bytes = sample(files, SAMPLE_BYTES)
        size = config.vocab_size or fitting_vocab_size(num_bytes)
        if size < 257:
            raise UsageError(
                f"a bpe vocabulary of {size} is too small for the 256 bytes and {BOUNDARY}",
                "set tokenizer.vocab_size to 512 or more, or tokenizer.kind to byte",
            )
        lines = (line for block in blocks for line in block.text.splitlines(keepends=True))
        backend = train(lines, size, lowercase=config.lowercase)
        kind = cls(backend, json.loads(backend.to_str()))
        return backend, counts_in(blocks, kind.encode, kind.vocab_size)

    def encode(self, text: str) -> Ids:
        if self._table is not None:
            return self._table.encode(_COARSE.findall(text))
        encoding = self.backend.encode(text, add_special_tokens=False)
        return np.array(encoding.ids, np.int32)

    def _encode_ascii(self, stretch: str) -> list[int]:
        """Encode a stretch of ASCII, caching the ids of its words."""
        known = self._ids_of_word
        if len(known) > MAX_REMEMBERED_WORDS:
            known.clear()
        ids: list[int] = []
        for word in _FINE.findall(self.lowered(stretch)):
            if word not in known:
                tokens = self.backend.model.tokenize(word.translate(self._spelled))
                known[word] = [token.id for token in tokens]
            ids += known[word]
        return ids

    def pieces(self) -> list[bytes]:
        byte_of = {spelling: byte for byte, spelling in enumerate(byte_spellings())}
        added = self.backend.get_added_tokens_decoder().values()
        special = {BOUNDARY, self.boundary, *(token.content for token in added)}
        pieces = [b""] * self.vocab_size
        for token, i in self.vocab.items():
            if token not in special and byte_of.keys() >= set(token):
                pieces[i] = bytes(byte_of[character] for character in token)
        return pieces
