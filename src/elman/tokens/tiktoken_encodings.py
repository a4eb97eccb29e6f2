"""Encodings of tiktoken as a tokenizer.json with the same ids.

`read_encoding` looks an encoding up by name (tiktoken:cl100k_base), as tiktoken does: it downloads
the ranks or takes them from TIKTOKEN_CACHE_DIR, and finds plug-ins. The ids are those of
`encode_ordinary`: names of special tokens are ordinary text.
"""

from __future__ import annotations

import re
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers

from elman.base.errors import ElmanError, UsageError
from elman.tokens.bytes import byte_spellings
from elman.tokens.kind import BOUNDARY
from elman.tokens.sentence_pieces import pair_of

PREFIX = "tiktoken:"
_BOUNDARIES = ("<|endoftext|>", "<|end_of_text|>", "<|end▁of▁sentence|>", "</s>", BOUNDARY)
# An atom of a pattern: an escape, a class (which may have an escaped bracket), a group's end, any
# other character; then a possessive {m,n}+.
_POSSESSIVE = re.compile(
    r"(\\[pP]\{[^}]*\}|\\.|\[(?:\\.|[^\]\\])*\]|[^()\[\]{}\\])\{(\d+(?:,\d*)?)\}\+"
)


def read_encoding(name: str) -> tokenizers.Tokenizer:
    """Convert the encoding that tiktoken knows by this name, with or without `tiktoken:`."""
    name = name.removeprefix(PREFIX)
    try:
        import tiktoken
    except ImportError as error:
        raise ElmanError(
            f"{PREFIX}{name} needs the tiktoken package", "pip install tiktoken"
        ) from error
    if name not in tiktoken.list_encoding_names():
        known = ", ".join(tiktoken.list_encoding_names())
        raise UsageError(f"tiktoken knows no encoding '{name}'", f"choose one of: {known}")
    try:
        return from_encoding(tiktoken.get_encoding(name))
    except OSError as error:  # requests' errors are of this class
        raise ElmanError(
            f"tiktoken cannot get {name}: {type(error).__name__}",
            "it downloads encodings once; set TIKTOKEN_CACHE_DIR to a folder that has them",
        ) from error


def from_encoding(encoding: Any) -> tokenizers.Tokenizer:
    """Convert a `tiktoken.Encoding`."""
    ranks: dict[bytes, int] = encoding._mergeable_ranks
    spelled = dict(enumerate(byte_spellings()))

    def spelling(token: bytes) -> str:
        return "".join(spelled[byte] for byte in token)

    pairs = [
        pair_of([bytes([byte]) for byte in token], ranks, b"".join)
        for token in sorted(ranks, key=ranks.__getitem__)
        if len(token) > 1
    ]
    vocab = {spelling(token): rank for token, rank in ranks.items()}
    special: dict[str, int] = dict(encoding._special_tokens)
    if not special.keys() & set(_BOUNDARIES):
        special[BOUNDARY] = max([*vocab.values(), *special.values()]) + 1
    for name, id in special.items():
        if name in vocab:
            raise UsageError(
                f"the special token {name} of {encoding.name} is also the spelling of a token",
                "rename it",
            )
        vocab[name] = id
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab,
            [(spelling(left), spelling(right)) for left, right in filter(None, pairs)],
            # tiktoken looks whole words up first: it matters for tokens that no merge makes.
            ignore_merges=None in pairs,
        )
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern_for_oniguruma(encoding._pat_str)), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def pattern_for_oniguruma(pattern: str) -> str:
    """Rewrite a pattern for the library that tokenizers uses.

    There {m,n}+ repeats the repetition; here it forbids to give back what it matched.
    """
    return _POSSESSIVE.sub(r"(?>\1{\2})", pattern)
