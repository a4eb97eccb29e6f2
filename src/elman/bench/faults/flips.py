"""Flip single bits in the files of run folders of every task; count what goes unnoticed.

A flip is noticed if the command ends with a sentence, and harmless if it prints the same as for the
sound file. A case is named file@bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from elman.bench.faults.damaged_files import Runner, compared, specimens
from elman.bench.faults.outcomes import Case, Plan, Result
from elman.bench.faults.specimens import Command, Reading, run_readings

NUMBER, QUICK = 1000, 30
"""Flips in the whole campaign, and in the test suite."""


@dataclass(frozen=True)
class Flip:
    """One bit of a file, and the command that reads it."""

    reading: Reading
    command: Command
    bit: int

    def __str__(self) -> str:
        return f"{self.reading.file}@{self.bit}"


def flips(plan: Plan) -> Iterator[Case]:
    """The target `flips`."""
    place = specimens(plan)
    random = plan.random("flips")
    readings = run_readings(place)
    items = []
    for number in range(QUICK if plan.quick else NUMBER):
        reading = readings[number % len(readings)] if not plan.quick else random.choice(readings)
        num_bits = 8 * (place / reading.file).stat().st_size
        items.append(Flip(reading, random.choice(reading.commands), random.randrange(num_bits)))
    runner = Runner(plan, place)

    def flip(item: Flip, folder: Path) -> tuple[Result, str]:
        expected = runner.sound(item.reading, item.command)
        runner.copy(item.reading, folder)
        path = folder / item.reading.file
        data = bytearray(path.read_bytes())
        data[item.bit // 8] ^= 1 << item.bit % 8
        path.write_bytes(data)
        ended = runner.run(item.reading, item.command, folder)
        result, detail = compared(ended, expected, legal=False)
        return result, f"{detail}  [elman {' '.join(item.command)}]"

    yield from plan.each(flip, items)
