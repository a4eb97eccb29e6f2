"""What tasks that generate text from a condition share."""

from __future__ import annotations

from pathlib import Path

import pytest

from elman.tasks.conditional.task import read_texts
from elman.tasks.conditioned import beginning, num_tokens
from elman.tokens.tokenizer_config import TokenizerConfig
from elman.tokens.train import train_tokenizer


@pytest.mark.parametrize(
    ("limit", "texts"), [(None, 3), (100, 3), (11, 3), (10, 2), (6, 2), (1, 1)]
)
def test_a_beginning_has_whole_texts_and_at_least_one(
    tmp_path: Path, limit: int | None, texts: int
) -> None:
    path = tmp_path / "names.txt"
    path.write_text("ab\nab\nabab\n")  # 3, 3 and 5 tokens with their ends
    tokenizer, _ = train_tokenizer(path, TokenizerConfig(kind="char"))
    read = read_texts([str(path)], tokenizer, ["names"])
    assert num_tokens(read) == 11
    assert len(beginning(read, limit)) == texts
