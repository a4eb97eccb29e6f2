"""Held-out text of an ELMo run: its sentences are whole, wherever blocks of ids end."""

from __future__ import annotations

from pathlib import Path

import pytest

from elman.batches.encoded import encode_files
from elman.tasks.elmo import task as elmo
from elman.tokens.tokenizer_config import TokenizerConfig
from elman.tokens.train import train_tokenizer


@pytest.mark.parametrize("block", [1, 3, 4, 5, 7, 100])
def test_sentences_are_not_cut_where_a_block_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    lines = ["a b c", "", "a b c d e f g h i", "d", "a b", "c a b e"]
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{line}\n" for line in lines))
    tokenizer, _ = train_tokenizer(path, TokenizerConfig(kind="pretokenized", min_count=1))
    text = encode_files([path], tokenizer)
    monkeypatch.setattr(elmo, "BLOCK", block)
    found = [" ".join(words) for words in elmo.decode_sentences(text, tokenizer, 4)]
    assert found == ["a b c", "a b c d", "e f g h", "i", "d", "a b", "c a b e"]
