"""Train a tokenizer on text, in memory that does not grow with the text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from elman.base.errors import UsageError
from elman.base.files import owned_folder
from elman.text.sources import Paths, expand, sample
from elman.tokens.choose import choose
from elman.tokens.kind import SAMPLE_BYTES, Counts, counts_in, kind_named
from elman.tokens.tokenizer import Tokenizer
from elman.tokens.tokenizer_config import TokenizerConfig


def train_on_texts(texts: Iterable[str], config: TokenizerConfig) -> Tokenizer:
    """Train a tokenizer on texts in memory, none of which has a line end."""
    with owned_folder() as folder:
        path = folder / "texts.txt"
        path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        return train_tokenizer(path, config)[0]


def with_new_words(tokenizer: Tokenizer, paths: Paths, min_count: int) -> Tokenizer:
    """Add the words or characters of a text that `tokenizer` lacks, the most frequent first."""
    if tokenizer.kind in ("byte", "bpe", "sentencepiece"):
        what = "bytes" if tokenizer.kind == "byte" else "sub-words"
        raise UsageError(f"a tokenizer of {what} has no unknown words", "drop --new-words")
    config = TokenizerConfig(
        kind=tokenizer.kind, min_count=min_count, lowercase=tokenizer.lowercase
    )
    found, _ = train_tokenizer(paths, config)
    known = set(tokenizer.spellings())
    return tokenizer.extended([word for word in found.spellings() if word not in known])


def train_tokenizer(paths: Paths, config: TokenizerConfig) -> tuple[Tokenizer, Counts]:
    """Return a tokenizer for the text in `paths`, and how often each of its ids occurs there.

    Ids of characters and words are ordered by falling frequency after the special tokens; adaptive
    output layers rely on it. The counts of a bpe tokenizer, and of one read from a file, come from
    a sample.
    """
    files = expand(paths)
    counts_V: Counts | None = None
    if config.file is not None:
        tokenizer = Tokenizer.load(config.file)
    else:
        if config.kind == "auto":
            choice = choose(files)
            size = config.vocab_size or choice.vocab_size
            config = replace(config, kind=choice.kind, vocab_size=size)
        backend, counts_V = kind_named(config.kind).train(files, config)
        tokenizer = Tokenizer(backend, config.kind)
    if counts_V is None:
        blocks, _ = sample(files, SAMPLE_BYTES)
        counts_V = counts_in(blocks, tokenizer.encode, tokenizer.vocab_size)
    return tokenizer, counts_V
