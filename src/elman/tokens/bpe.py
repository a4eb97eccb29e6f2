"""Byte-pair encoding over bytes: frequent words are one token, any text at all can be written.

Our own files never merge across a line end, and so a text may be cut at any line end and encoded
piece by piece to the very same ids. Files from elsewhere (GPT-2's, say) are read too; there a cut
beside blank lines may show as another token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from elman.tokens.bytes import byte_spellings
from elman.tokens.kind import BOUNDARY, Ids, Kind, PieceTable, normaliser

# As GPT-2's (Radford and others, 2019), with three changes: a line end is always by itself;
# accents that stand as characters of their own belong to their letter, so that Indic scripts are
# not cut to shreds; numbers are cut into at most three digits.
PATTERN = (
    r"\n|'(?:[sdmt]|ll|ve|re)| ?[\p{L}\p{M}]+| ?\p{N}{1,3}| ?[^\s\p{L}\p{M}\p{N}]+"
    r"|[^\S\n]+(?!\S)|[^\S\n]+"
)

# The same in coarser pieces that Python can find: a stretch without white space with the space
# before it. Every place where this cuts, PATTERN cuts too. White space is spelled out because
# Python's \s has four more characters.
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
    """Learn merges from `texts` until there are `vocab_size` tokens or nothing to merge."""
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
    # The trainer also lists the boundary as an added token, which would be cut out of running text.
    spec = json.loads(backend.to_str())
    spec["added_tokens"] = []
    return tokenizers.Tokenizer.from_str(json.dumps(spec))


class BytePairs(Kind):
    """Ids by a table of remembered stretches; the backend encodes those not met before."""

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
        """Byte-level pair encoding."""
        is_byte_level = "ByteLevel" in json.dumps(spec["pre_tokenizer"])
        return spec["model"].get("type") == "BPE" and is_byte_level

    def encode(self, text: str) -> Ids:
        """The ids of the merged pairs."""
        if self._table is not None:
            return self._table.encode(_COARSE.findall(text))
        encoding = self.backend.encode(text, add_special_tokens=False)
        return np.array(encoding.ids, np.int32)

    def _encode_ascii(self, stretch: str) -> list[int]:
        """The ids of a stretch of ASCII; its words are remembered in turn."""
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
        """The bytes that each token spells; special tokens spell none."""
        byte_of = {spelling: byte for byte, spelling in enumerate(byte_spellings())}
        special = {BOUNDARY} | {
            token.content for token in self.backend.get_added_tokens_decoder().values()
        }
        pieces = [b""] * (max(self.vocab.values()) + 1)
        for token, i in self.vocab.items():
            if token not in special:
                pieces[i] = bytes(byte_of[character] for character in token)
        return pieces
