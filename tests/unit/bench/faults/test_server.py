"""What counts as a good answer of a server."""

from __future__ import annotations

import pytest

from elman.bench.faults.server import CLOSED, HEADS, judge_answer


@pytest.mark.parametrize(
    ("status", "expected", "result"),
    [
        (200, (200,), "legal"),
        (200, (421,), "difference"),
        (404, (400, 404), "sentence"),
        (503, (200,), "difference"),
        (422, None, "sentence"),
        (503, None, "sentence"),
        (500, None, "traceback"),
    ],
)
def test_the_status_must_be_one_that_is_expected(
    status: int, expected: tuple[int, ...] | None, result: str
) -> None:
    answer = f"HTTP/1.1 {status} X\r\n\r\n".encode()
    assert judge_answer(answer, b"", expected)[0] == result


def test_only_what_is_no_request_may_be_closed_without_an_answer() -> None:
    assert judge_answer(b"", b"")[0] == "crash"
    assert judge_answer(b"", b"", may_close=True)[0] == "sentence"
    assert judge_answer(b"\0\1", b"", may_close=True)[0] == "difference"


def test_foreign_names_and_paths_outside_must_be_refused() -> None:
    foreign = [allowed for head, allowed in HEADS.items() if b"evil" in head or b"etc" in head]
    assert len(foreign) >= 6
    assert not any({CLOSED, 200} & set(allowed) for allowed in foreign)
