"""Where the API key comes from, and which keys are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from elman.base.errors import UsageError
from elman.cli.serve import _api_key


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ELMAN_API_KEY", raising=False)


def key_file(tmp_path: Path, content: bytes, mode: int = 0o600) -> Path:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_a_file_is_preferred_to_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _api_key(None, None) is None
    monkeypatch.setenv("ELMAN_API_KEY", "of-the-variable")
    assert _api_key(None, None) == "of-the-variable"
    assert _api_key(key_file(tmp_path, b"of/the+file=~\r\n"), None) == "of/the+file=~"
    assert capsys.readouterr().err == ""


def test_a_key_that_others_can_see_is_warned_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _api_key(None, "sesame") == "sesame"
    err = capsys.readouterr().err
    assert "--api-key shows in `ps`: use --api-key-file or ELMAN_API_KEY instead" in err
    assert _api_key(key_file(tmp_path, b"sesame", 0o644), None) == "sesame"
    assert "other users can read" in (more := capsys.readouterr().err)
    assert "sesame" not in err + more


@pytest.mark.parametrize("key", ["", "two words", "line\nline", "tab\t", "schl\u00fc", "\udcff"])
def test_keys_that_no_client_can_send_are_refused(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError) as refused:
        _api_key(None, key)
    assert not key or key not in refused.value.message
    monkeypatch.setenv("ELMAN_API_KEY", key)
    with pytest.raises(UsageError):
        _api_key(None, None)
    if key != "tab\t":  # space around the key in a file is not part of it
        with pytest.raises(UsageError):
            _api_key(key_file(tmp_path, key.encode("utf-8", "surrogateescape")), None)


def test_files_that_are_no_keys_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none", key_file(tmp_path, b"a" * 5000)):
        with pytest.raises(UsageError):
            _api_key(path, None)
    with pytest.raises(UsageError, match="both"):
        _api_key(key_file(tmp_path, b"a"), "b")
