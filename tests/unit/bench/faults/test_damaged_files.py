"""Which damage to a file must be noticed."""

from __future__ import annotations

import pytest

from elman.bench.faults.damaged_files import NOTICED, may_differ
from elman.bench.faults.mutations import MUTATIONS
from elman.bench.faults.mutations.places import PLACES
from elman.bench.faults.specimens import Reading


@pytest.mark.parametrize(
    ("file", "kind", "noticed", "legal"),
    [
        ("some.txt", "lines", (), ("truncate", "flip-bit", "drop-line", "empty")),
        ("some.txt.gz", "gz", ("truncate", "cut-end", "check", "parts"), ("inside-drop-line",)),
        ("some.txt.zst", "zst", ("truncate", "unfinished", "check"), ("inside-crlf", "double")),
        ("model.arpa", "arpa", ("truncate", "counts", "drop-line"), ("odd-field", "flip-bit")),
        ("model.arpa.gz", "gz", ("inside-drop-line", "flip-bit"), ("inside-odd-characters",)),
        ("word2vec.bin", "word2vec", ("truncate", "counts"), ("flip-bit",)),
        ("word2vec.txt", "columns", ("truncate", "drop-line"), ("odd-field",)),
        ("x/lm_weights.hdf5", "hdf5", ("truncate", "hdf5-drop", "hdf5-link"), ("hdf5-type",)),
    ],
)
def test_damage_to_data_that_the_format_tells_of(
    file: str, kind: str, noticed: tuple[str, ...], legal: tuple[str, ...]
) -> None:
    reading = Reading(file, (), kind, ())
    assert not any(may_differ(reading, mutation) for mutation in noticed)
    assert all(may_differ(reading, mutation) for mutation in legal)
    assert {*noticed, *legal} <= MUTATIONS[kind].keys()


def test_of_own_files_only_those_without_a_seal_may_differ() -> None:
    reading = Reading("words/config.json", (), "json", (), own=True)
    assert may_differ(reading, "json-odd-value")
    for mutation in ("json-sealed-odd", "json-text", "flip-bit", "truncate"):
        assert not may_differ(reading, mutation)


def test_the_table_names_damage_that_is_done() -> None:
    known = {name for kind in MUTATIONS.values() for name in kind} | PLACES.keys()
    assert not set().union(*NOTICED.values()) - known
