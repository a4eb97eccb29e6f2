"""What `elman info` and `elman train` print about an n-gram model.

The lecture's two problems in figures: storage grows with n, and so does the share of unseen
n-grams.
"""

from __future__ import annotations

from typing import Any

from elman.tasks.counted import counted_rows, summary_table
from elman.terminal.console import number, size


def rows(part: dict[str, Any]) -> list[tuple[str, str]]:
    growth = [
        (f"{row['order']}-grams", f"{row['ngrams']:,}, {size(row['bytes'])} up to here")
        for row in part["ngrams"]
    ]
    growth += _unseen("in the validation text, never seen in training", part.get("unseen"))
    growth += _unseen("in the held-out text, not listed in the model", part.get("held_out"))
    if "summary" not in part:  # an ARPA file says no more about itself
        return growth + [("note", text) for text in part["notes"]]
    return growth + counted_rows(part)


def summary_rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    arpa = [("ARPA file", summary["arpa"])] if summary.get("arpa") else []
    return summary_table(summary, [("n-grams", number(sum(summary["ngrams"])))]) + arpa


def _unseen(what: str, found: list[dict[str, Any]] | None) -> list[tuple[str, str]]:
    """A row that says what is measured, then one for each order."""
    if not found:
        return []
    rows = [(what, f"of {found[0]['ngrams']:,} tokens")]
    for row in found:
        text = f"{row['unseen_ngrams']:.1%} of {row['ngrams']:,}"
        if row["order"] > 1:
            text += f", and {row['unseen_contexts']:.1%} of their contexts"
        rows.append((f"  {row['order']}-grams", text))
    return rows
