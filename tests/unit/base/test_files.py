"""A reader never meets half a file, and errors about files say what to do."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from elman.base.documents import read_json, read_toml, write_json
from elman.base.errors import ElmanError, UsageError
from elman.base.files import explain, owned_folder, replacing, sweep
from elman.base.tables import look_up
from elman.recipes import read


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


def test_a_new_name_reaches_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with replacing(tmp_path / "a" / "b" / "x", durable=False) as temporary:
        temporary.write_text("x")
    assert synced == []
    with replacing(tmp_path / "c" / "d" / "x") as temporary:
        temporary.write_text("x")
    assert synced == [".", "c", f"c/d/{temporary.parent.name}/x", "c/d"]


HOLDER = """
import sys
from pathlib import Path
from elman.base.files import owned_folder
with owned_folder(Path(sys.argv[1])) as folder:
    (folder / "half").write_text("x")
    print(folder.name, flush=True)
    sys.stdin.read()
"""


def test_only_dead_owners_are_swept(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as other:
        assert other.stdout is not None
        name = other.stdout.readline().strip()
        (tmp_path / ".elman-settings").mkdir()
        with owned_folder(tmp_path) as mine:
            sweep(tmp_path)
            assert {p.name for p in tmp_path.iterdir()} == {mine.name, name, ".elman-settings"}
            other.send_signal(signal.SIGKILL)
            other.wait()
            sweep(tmp_path)
            assert {p.name for p in tmp_path.iterdir()} == {mine.name, ".elman-settings"}
    assert [p.name for p in tmp_path.iterdir()] == [".elman-settings"]


def test_a_folder_swept_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    real = Path.mkdir

    def mkdir_and_lose(self: Path, *arguments: int, **options: int) -> None:
        real(self, *arguments, **options)
        made.append(self)
        if len(made) == 1:
            sweep(tmp_path)

    monkeypatch.setattr(Path, "mkdir", mkdir_and_lose)
    with owned_folder(tmp_path) as folder:
        assert made == [made[0], folder]
        assert [p.name for p in tmp_path.iterdir()] == [folder.name]


def test_a_link_is_not_swept(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / ".elman-01234567").symlink_to(tmp_path / "kept")
    sweep(tmp_path)
    assert (tmp_path / "kept").is_dir()


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


def test_a_name_from_a_file_is_no_key_to_modules_that_are_imported_already(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("elman.base.tables._trusted", set())  # other tests trust their packages
    for name in ("torch.hub:load", "elman.base.files:write_text", f"{__name__}:look_up"):
        with pytest.raises(UsageError, match="code from outside Elman"):
            look_up({}, name, "thing")
    monkeypatch.setenv("ELMAN_PLUGINS", __name__)
    assert look_up({}, f"{__name__}:look_up", "thing") is look_up


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    (tmp_path / "endless.json").symlink_to("/dev/zero")
    for name in ("config.json", "endless.json"):
        with pytest.raises(ElmanError, match="is a pipe or a device"):
            read_json(tmp_path / name)


def test_a_recipe_may_come_from_a_pipe_but_not_from_a_device() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"a = 1\n")
    os.close(writing)
    assert read(f"/dev/fd/{reading}") == {"a": 1}
    os.close(reading)
    with pytest.raises(ElmanError, match="is a pipe or a device"):
        read_toml(Path("/dev/zero"))
