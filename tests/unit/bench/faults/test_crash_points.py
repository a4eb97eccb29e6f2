from __future__ import annotations

from pathlib import Path

from elman.bench.faults.crash_points import fingerprint


def test_cards_are_compared_without_their_times(tmp_path: Path) -> None:
    card = tmp_path / "card.md"
    found = []
    for text in ("a", "b"):
        for seconds in ("0.9", "1.1", "1,234.5"):
            check = f"<!-- check: {seconds[0]} -->"
            card.write_text(f"{text}\n| made in | {seconds} seconds |\n{check}")
            found.append(fingerprint(card))
    assert len(set(found[:3])) == len(set(found[3:])) == 1
    assert found[0] != found[3]
