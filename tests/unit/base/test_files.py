"""A reader never meets half a file, and errors about files say what to do."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from elman.base.documents import read_json, write_json
from elman.base.errors import ElmanError, UsageError
from elman.base.files import explain, replacing
from elman.base.tables import look_up


def test_json_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "value.json"
    write_json(path, {"ä": [1, 2.5, None]})
    assert read_json(path) == {"ä": [1, 2.5, None]}
    assert [p.name for p in path.parent.iterdir()] == ["value.json"]


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    write_json(path, 1)
    with pytest.raises(RuntimeError), replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError("power cut")
    assert read_json(path) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["value.json"]


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    with pytest.raises(ElmanError, match="disk is full"), replacing(tmp_path / "x"):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_damaged_json_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": ')
    with pytest.raises(ElmanError, match=r"x\.json is damaged"):
        read_json(tmp_path / "x.json")
    with pytest.raises(ElmanError, match="does not exist"):
        read_json(tmp_path / "y.json")


def test_every_explanation_has_a_hint() -> None:
    for code in (errno.ENOSPC, errno.ENOENT, errno.EISDIR, errno.EACCES, errno.EIO):
        assert explain(OSError(code, "text"), "p").hint


def test_tables_propose_the_nearest_name() -> None:
    assert look_up({"json": "json:dumps"}, "json", "thing")(1) == "1"
    with pytest.raises(UsageError, match="no thing called 'jsn'") as caught:
        look_up({"json": "json:dumps"}, "jsn", "thing")
    assert "json" in caught.value.hint
