"""The cache folder is where the user says, and a temporary one where it cannot be written to."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from elman.base.cache import cache_folder


def test_the_environment_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path / "mine"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "mine"
    assert (tmp_path / "mine").is_dir()
    monkeypatch.delenv("ELMAN_CACHE")
    assert cache_folder() == tmp_path / "xdg" / "elman"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "elman"


def test_an_unusable_folder_is_replaced_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path / "file" / "cache"))
    with caplog.at_level(logging.WARNING, logger="elman"):
        folder = cache_folder()
        assert cache_folder() == folder
    assert folder.is_dir()
    assert len(caplog.records) == 1
    assert "ELMAN_CACHE" in caplog.text
