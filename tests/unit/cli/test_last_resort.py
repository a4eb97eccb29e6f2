"""Errors that any code may raise end in a sentence and a hint."""

from __future__ import annotations

import pytest

from elman.cli import main

ALLOCATOR = "[enforce fail] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 9"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "memory of this machine is exhausted"),
        (RuntimeError(ALLOCATOR), "memory of this machine is exhausted"),
        (RecursionError("maximum recursion depth exceeded"), "nested too deeply"),
    ],
)
def test_an_error_of_the_machine_is_a_sentence(
    error: Exception,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Failing:
        def main(self, **options: object) -> None:
            raise error

    monkeypatch.setattr(main, "program", lambda outside, words: Failing())
    assert main.run([]) == 1
    sentence, hint = capsys.readouterr().err.splitlines()
    assert sentence.startswith("error: ")
    assert said in sentence
    assert hint.startswith("hint: ")
