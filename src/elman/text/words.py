"""Split ordinary text into words and punctuation marks."""

from __future__ import annotations

import re

_PIECES = re.compile(r"\w+(?:[-'’]\w+)*|[^\w\s]")


def split_words(text: str) -> list[str]:
    return _PIECES.findall(text)
