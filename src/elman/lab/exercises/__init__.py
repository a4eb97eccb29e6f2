"""The exercises of the tour (`docs/tour`), by lecture: `check("004-2", "answer.txt")`."""

from __future__ import annotations

from pathlib import Path

from elman.base.errors import UsageError, nearest
from elman.lab.exercises import (
    lecture_000,
    lecture_001,
    lecture_002,
    lecture_003,
    lecture_004,
)
from elman.lab.exercises.exercise import Exercise, Verdict

__all__ = ["EXERCISES", "Exercise", "Verdict", "check"]

_LECTURES = (lecture_000, lecture_001, lecture_002, lecture_003, lecture_004)
EXERCISES: dict[str, Exercise] = {
    exercise.id: exercise for lecture in _LECTURES for exercise in lecture.EXERCISES
}


def check(exercise_id: str, file: str | Path) -> Verdict:
    """Check the answer to an exercise that a file (or a run folder) holds."""
    if exercise_id not in EXERCISES:
        raise UsageError(f"there is no exercise '{exercise_id}'", nearest(exercise_id, EXERCISES))
    return EXERCISES[exercise_id].check(file)
