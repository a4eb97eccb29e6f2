"""What is counted, and what is bad."""

from __future__ import annotations

from elman.bench.faults.outcomes import Case, summarise


def test_cases_that_are_skipped_are_told_and_not_counted() -> None:
    summary = summarise("x", [Case("x", "a", "sentence"), Case("x", "b", "skipped")])
    line = summary.to_dict()
    assert (line["cases"], line["skipped"], summary.bad) == (1, 1, [])


def test_few_cases_may_miss_their_operation() -> None:
    good = [Case("x", str(i), "same output") for i in range(10)]
    missed = [Case("x", f"missed {i}", "not reached") for i in range(5)]
    assert not summarise("x", good + missed[:2]).bad
    assert [case.name for case in summarise("x", good + missed).bad] == ["all"]
